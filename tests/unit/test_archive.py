"""Packing a directory of this machine, and unpacking archives that are honest but damaged."""

from __future__ import annotations

import io
import os
import shutil
import socket
import stat
import subprocess
import tarfile
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_handle import NOBODY, ODD_NAMES, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from tars import archive, member, unpacked

from requirements import require_program
from sandlot._archive import PIECE, Extractor, Limits, Report, pack, unpack
from sandlot.errors import SandboxFileError, UnsafeArchiveError

MIB = 1024 * 1024
NAMES = st.binary(min_size=1, max_size=120).filter(
    lambda name: not set(name) & {0, 0x2F} and name not in (b".", b"..")
)
Tree = dict[bytes, "Tree | bytes | str"]
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.dictionaries(NAMES, st.binary(max_size=1500), max_size=4),
    lambda below: st.dictionaries(
        NAMES, st.one_of(below, st.just("link"), st.binary(max_size=600)), max_size=4
    ),
    max_leaves=12,
)


def build(directory: bytes, tree: Tree) -> None:
    for name, content in tree.items():
        path = os.path.join(directory, name)
        if isinstance(content, dict):
            os.mkdir(path)
            build(path, content)
        elif isinstance(content, str):
            os.symlink(b"to/" + name, path)
        else:
            with open(path, "wb") as file:
                file.write(content)
            os.chmod(path, 0o600 | len(content) % 0o200)


def packed(root: Path) -> bytes:
    return b"".join(pack(str(root)))


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def no_leaked_descriptors() -> Iterator[None]:
    before = os.listdir("/proc/self/fd")
    yield
    assert os.listdir("/proc/self/fd") == before


# ------------------------------------------------------------------ packing


@settings(max_examples=60, derandomize=True, deadline=None)
@given(TREES, st.sampled_from([1, 511, 512, 4000, 10**6]))
def test_any_tree_comes_back_as_it_went(tree: Tree, size: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        source, dest = Path(directory, "source"), Path(directory, "dest")
        source.mkdir()
        build(os.fsencode(source), tree)
        report = unpacked(packed(source), dest, size)
        before, after = snapshot(source), snapshot(dest) if tree else {}
    assert after == before
    assert report.skipped == 0
    assert report.files == sum(
        not (isinstance(found, tuple) and stat.S_ISDIR(found[0])) for found in before.values()
    )


@pytest.mark.parametrize("command", [["tar"], ["busybox", "tar"], ["python"]])
def test_other_tars_read_what_is_packed(tmp_path: Path, command: list[str]) -> None:
    source, dest = tmp_path / "source", tmp_path / "dest"
    dest.mkdir()
    (source / ("d" * 150) / ("e" * 150)).mkdir(parents=True)
    (source / ("d" * 150) / ("e" * 150) / ("f" * 255)).write_text("deep")
    (source / "run").write_text("#!/bin/sh")
    (source / "run").chmod(0o755)
    (source / "run").touch()
    os.utime(source / "run", (1e9, 1e9))
    (source / "before 1970").touch()
    os.utime(source / "before 1970", (-86400, -86400))
    (source / "far").symlink_to("/" + "t" * 300)
    for name in ODD_NAMES:
        (source / name).write_text("odd")
    if command == ["python"]:
        with tarfile.open(fileobj=io.BytesIO(packed(source))) as tar:
            tar.extractall(dest, filter="fully_trusted")
    else:
        require_program(command[0])
        subprocess.run([*command, "-xpf", "-", "-C", dest], input=packed(source), check=True)
    assert snapshot(dest) == snapshot(source)
    assert (dest / "run").stat().st_mtime == 1e9
    assert (dest / "before 1970").stat().st_mtime == 0


def test_owners_and_the_rights_they_lend_are_not_packed(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    (tmp_path / "f").chmod(0o7755)
    with tarfile.open(fileobj=io.BytesIO(packed(tmp_path))) as tar:
        (info,) = tar
    assert (info.uid, info.gid, info.uname, info.gname, info.mode) == (0, 0, "", "", 0o755)


def test_what_is_no_file_is_left_out_and_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("x")
    told: list[tuple[str, str]] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        data = b"".join(pack(str(tmp_path), on_skip=lambda path, why: told.append((path, why))))
    assert [path for path, _ in told] == [str(tmp_path / "pipe"), str(tmp_path / "socket")]
    assert {why for _, why in told} == {"it is not a file, directory or link"}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == ["file"]


@pytest.mark.parametrize("change", [-1, -2 * PIECE, +100])
def test_a_file_that_changes_while_it_is_read_does_not_shift_what_follows(
    tmp_path: Path, change: int
) -> None:
    source, dest = tmp_path / "source", tmp_path / "dest"
    source.mkdir()
    size = 3 * PIECE + 7
    (source / "a").write_bytes(b"a" * size)
    (source / "b").write_text("whole")
    told: list[str] = []
    pieces = pack(str(source), on_skip=lambda path, why: told.append(f"{path}: {why}"))
    data = next(pieces)
    os.truncate(source / "a", size + change)
    unpacked(data + b"".join(pieces), dest)
    assert (dest / "b").read_text() == "whole"
    assert (dest / "a").stat().st_size == size
    left = min(size, size + change)
    assert (dest / "a").read_bytes() == b"a" * left + bytes(size - left)
    lost = [f"{source / 'a'}: it shrank by {-change} bytes while it was read"]
    assert told == (lost if change < 0 else [])


def test_what_vanishes_meanwhile_is_left_out_and_told(tmp_path: Path) -> None:
    for name in "abde":
        (tmp_path / name).touch()
    (tmp_path / "c").symlink_to("x")
    for name in ("seen", "visited"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").touch()
    counted: list[str] = []
    told: list[str] = []

    def on_file(path: str) -> None:
        counted.append(os.path.relpath(path, tmp_path))
        if path.endswith("/a"):
            for name in "bcd":
                (tmp_path / name).unlink()
        if path.endswith("visited/f"):
            shutil.rmtree(tmp_path / "seen")

    def on_skip(path: str, reason: str) -> None:
        told.append(f"{os.path.relpath(path, tmp_path)}: {reason}")

    data = b"".join(pack(str(tmp_path), on_file=on_file, on_skip=on_skip))
    assert counted == ["a", "e", "visited/f"]
    assert told == [f"{name}: it has vanished" for name in ("b", "c", "d", "seen")]
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == ["a", "e", "seen", "visited", "visited/f"]


def test_a_file_that_turns_into_a_pipe_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()

    def swap(path: str) -> None:
        (tmp_path / "b").unlink(missing_ok=True)
        os.mkfifo(tmp_path / "b") if path.endswith("a") else None

    told: list[str] = []
    assert b"".join(pack(str(tmp_path), on_file=swap, on_skip=lambda path, _: told.append(path)))
    assert told == [str(tmp_path / "b")]


def test_a_file_that_can_not_be_read_is_an_error_of_this_machine() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        secret = Path(directory, "secret")
        secret.touch(mode=0o000)
        user = os.geteuid()
        os.seteuid(NOBODY if user == 0 else user)
        try:
            with pytest.raises(PermissionError) as caught:
                packed(Path(directory))
        finally:
            os.seteuid(user)
        assert caught.value.filename == str(secret)
        assert type(caught.value) is PermissionError


def test_a_missing_root_is_an_error_of_this_machine(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        packed(tmp_path / "missing")
    assert caught.value.filename == str(tmp_path / "missing")


def test_a_large_file_passes_in_little_memory(tmp_path: Path) -> None:
    source, dest = tmp_path / "source", tmp_path / "dest"
    source.mkdir()
    (source / "large").touch()
    os.truncate(source / "large", 100 * MIB)
    tracemalloc.start()
    try:
        report = unpack(pack(str(source)), str(dest))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report == Report(files=1, bytes=100 * MIB)
    assert (dest / "large").stat().st_size == 100 * MIB
    assert peak < 4 * MIB


# ---------------------------------------------------------------- unpacking


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_every_format_is_read(tmp_path: Path, format: int) -> None:
    long = format != tarfile.USTAR_FORMAT
    name = ("d" * 60 + "/") * (5 if long else 2) + os.fsdecode(b"\xff\xc3\xa9") + "n" * 90
    data = archive(
        (name, b"content"),
        member("link", type=tarfile.SYMTYPE, linkname="t" * (300 if long else 90)),
        format=format,
    )
    unpacked(data, tmp_path)
    assert (tmp_path / name).read_bytes() == b"content"
    assert len(os.readlink(tmp_path / "link")) == (300 if long else 90)


def test_sizes_and_times_come_from_pax_records(tmp_path: Path) -> None:
    info = member("f", mtime=1234567890.25, size=5)
    info.pax_headers = {"comment": "nothing", "size": "5"}
    unpacked(archive(info), tmp_path)
    assert (tmp_path / "f").stat().st_mtime == 1234567890.25
    assert (tmp_path / "f").stat().st_size == 5


def test_what_the_sandbox_s_tar_makes_is_read(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "empty").mkdir(parents=True)
    (source / "f").write_text("content")
    (source / "also f").hardlink_to(source / "f")
    (source / "link").symlink_to("f")
    (source / "also link").hardlink_to(
        source / "link",
    )
    for number, command in enumerate((["tar"], ["tar", "--format=posix"], ["busybox", "tar"])):
        require_program(command[0])
        command = [*command, "-cf", "-", "."]
        made = subprocess.run(command, cwd=source, capture_output=True, check=True)
        unpacked(made.stdout, tmp_path / str(number))
        assert snapshot(tmp_path / str(number)) == snapshot(source)


def test_permissions_obey_the_umask_and_lend_no_rights(tmp_path: Path) -> None:
    os.umask(0o027)
    unpacked(
        archive(
            member("setuid", mode=0o6777),
            member("read-only", mode=0o444),
            member("nothing", mode=0o000),
            member("closed", type=tarfile.DIRTYPE, mode=0o1000),
            ("closed/f", b""),
        ),
        tmp_path,
    )
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"setuid": 0o750, "read-only": 0o440, "nothing": 0o400, "closed": 0o700}


def test_devices_and_pipes_are_left_out_and_told(tmp_path: Path) -> None:
    told: list[str] = []
    extractor = Extractor(
        str(tmp_path / "d"), on_skip=lambda name, why: told.append(f"{name} {why}")
    )
    kinds = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
    extractor.feed(archive(*(member(kind.decode(), type=kind) for kind in kinds), ("f", b"x")))
    report = extractor.finish()
    assert report == Report(files=1, bytes=1, skipped=3)
    assert told == [f"{kind.decode()} it is a device or pipe" for kind in kinds]
    assert os.listdir(tmp_path / "d") == ["f"]


def test_entries_of_unknown_types_are_left_out_with_their_content(tmp_path: Path) -> None:
    data = archive(member("odd", size=1000), ("f", b"x"), format=tarfile.GNU_FORMAT)
    header = bytearray(data[:512])
    header[156:157] = b"Z"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    assert unpacked(bytes(header) + data[512:], tmp_path) == Report(files=1, bytes=1, skipped=1)
    assert os.listdir(tmp_path) == ["f"]


def test_a_sparse_file_is_refused_rather_than_mangled(tmp_path: Path) -> None:
    require_program("tar")
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", MIB)
    for form in ("gnu", "posix"):
        command = ["tar", "-cSf", "-", f"--format={form}", "sparse"]
        data = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout
        with pytest.raises(SandboxFileError, match="sparse"):
            unpacked(data, tmp_path / "dest")


def test_an_archive_that_breaks_off_is_an_error_wherever_it_does(tmp_path: Path) -> None:
    data = archive(("a", b"x" * 700), ("n" * 200, b"y"))
    end = len(data.rstrip(b"\0")) // 512 * 512 + 512
    for cut in (0, 1, 511, 512, 700, 512 + 700, 1536, 1600, 2048, 3000, end):
        dest = tmp_path / str(cut)
        with pytest.raises(SandboxFileError, match=f"breaks off after {cut} bytes"):
            unpacked(data[:cut], dest)
        assert not dest.exists() or all(path.stat().st_size in (1, 700) for path in dest.iterdir())
    assert unpacked(data[: end + 512], tmp_path / "whole").files == 2


def test_a_file_keeps_its_old_content_until_the_new_is_whole(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    data = archive(("f", b"new" * 1000))
    extractor = Extractor(str(tmp_path))
    extractor.feed(data[:2000])
    assert (tmp_path / "f").read_text() == "old"
    extractor.close()
    extractor.close()
    assert os.listdir(tmp_path) == ["f"]
    assert (tmp_path / "f").read_text() == "old"
    unpacked(data, tmp_path)
    assert (tmp_path / "f").read_text() == "new" * 1000


def test_an_error_of_this_machine_names_the_path_here(tmp_path: Path) -> None:
    (tmp_path / "d/f").mkdir(parents=True)
    (tmp_path / "file").touch()
    for name, kind in (("d/f", IsADirectoryError), ("file/x", NotADirectoryError)):
        with pytest.raises(kind) as caught:
            unpacked(archive((name, b"")), tmp_path)
        assert type(caught.value) is kind
        assert caught.value.filename == str(tmp_path / name.removesuffix("/x"))


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.data())
def test_a_damaged_archive_is_unpacked_or_refused_but_nothing_else(data: st.DataObject) -> None:
    whole = bytearray(
        archive(("a", b"x" * 600), ("é" * 60, b"y"), member("d", type=tarfile.DIRTYPE))
    )
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    failure: OSError | None = None
    with tempfile.TemporaryDirectory() as directory:
        try:
            unpacked(bytes(whole), Path(directory), limits=Limits(10, MIB))
        except (SandboxFileError, UnsafeArchiveError):
            pass
        except OSError as exc:
            failure = exc
    assert failure is None or failure.filename.startswith(directory)
