"""Archives made to break out: whatever they hold, nothing outside the directory changes."""

from __future__ import annotations

import errno
import itertools
import os
import tarfile
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tars import Member, archive, member, unpacked

from sandlot._archive import Extractor, Limits, unpack
from sandlot.errors import SandboxFileError, UnsafeArchiveError

MIB = 1024 * 1024


class Jail:
    """A directory to unpack into, with things around it that must not change."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.dest = root / "dest"
        (root / "outside").mkdir()
        (root / "outside/secret").write_text("secret")
        (root / "outside/run").write_text("#!/bin/sh")
        (root / "secret").write_text("secret")
        self.dest.mkdir()
        (self.dest / "door").symlink_to("../outside")
        (self.dest / "window").symlink_to(root / "secret")
        (self.dest / "old").mkdir()
        (self.dest / "old/file").write_text("mine")
        self.before = self._outside()

    def _outside(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for path in sorted(self.root.rglob("*")):
            if self.dest not in path.parents and path != self.dest:
                status = path.lstat()
                content = path.read_bytes() if path.is_file() else os.listdir(path)
                found[str(path)] = content, status.st_mode, status.st_nlink, status.st_mtime_ns
        return found

    def check(self) -> None:
        """Nothing outside has changed, and no new link leads there."""
        assert self._outside() == self.before
        for old in (self.dest / "door", self.dest / "window"):  # they may lead where they like
            if old.is_symlink():
                old.unlink()
        dest = os.path.realpath(self.dest)
        for path in self.dest.rglob("*"):
            if path.is_symlink() and not loops(path):
                assert f"{os.path.realpath(path)}/".startswith(f"{dest}/"), path


def loops(path: Path) -> bool:
    try:
        path.stat()
    except OSError as exc:
        return exc.errno == errno.ELOOP
    return False


@pytest.fixture
def jail(tmp_path: Path) -> Iterator[Jail]:
    jail = Jail(tmp_path)
    yield jail
    jail.check()


def link(name: str, target: str) -> tarfile.TarInfo:
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def hard(name: str, target: str) -> tarfile.TarInfo:
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def folder(name: str) -> tarfile.TarInfo:
    return member(name, type=tarfile.DIRTYPE, mode=0o755)


ATTACKS: dict[str, tuple[str, list[Member]]] = {
    "a name above": ("../secret", [("../secret", b"x")]),
    "a name above, deep inside": ("a/../../secret", [("a/../../secret", b"x")]),
    "an absolute name": ("/tmp/sandlot-attack", [("/tmp/sandlot-attack", b"x")]),
    "a directory above": ("../made", [folder("../made")]),
    "a link above": ("../made", [link("../made", "x")]),
    "a link out": ("l", [link("l", "../outside")]),
    "a link out by an absolute path": ("l", [link("l", "/etc/passwd")]),
    "a link out of a deep directory": ("a/b/l", [link("a/b/l", "../../../outside")]),
    "a link to the root": ("l", [link("l", "/")]),
    "a link to nothing": ("l", [link("l", "")]),
    "a link out by a link": ("l", [link("a/b/up", "../.."), link("l", "a/b/up/../secret")]),
    "a link out by a link to come": ("l", [link("l", "a/up/../x"), link("a/up", "..")]),
    "a file through a link": ("l", [link("l", "old"), ("l/f", b"x")]),
    "a file deep through a link": ("a/l", [link("a/l", ".."), ("a/l/b/f", b"x")]),
    "a directory through a link": ("l", [link("l", "old"), folder("l/d")]),
    "a directory in place of a link": ("l", [link("l", "old"), folder("l")]),
    "a file through an old link": ("door", [("door/new", b"x")]),
    "a link through an old link": ("door", [link("door/new", "x")]),
    "a hard link through an old link": ("door", [("f", b""), hard("door/new", "f")]),
    "a directory over an old link": ("door", [folder("door")]),
    "a hard link out": ("h", [hard("h", "../secret")]),
    "a hard link out by an absolute path": ("h", [hard("h", "/etc/passwd")]),
    "a hard link to what an old link leads to": ("h", [hard("h", "door/secret")]),
    "a hard link to an old link": ("h", [hard("h", "window")]),
    "a hard link to a link that leads out there": ("l", [link("a/l", ".."), hard("l", "a/l")]),
    "a hard link to a directory": ("h", [hard("h", "old")]),
    "a hard link to nothing": ("h", [hard("h", "missing")]),
    "a hard link through a file": ("h", [hard("h", "old/file/x")]),
    "a hard link to itself": ("h", [hard("h", "h")]),
    "no name": ("", [("", b"x")]),
    "a dot for a name": ("./.", [("./.", b"x")]),
    "an endless name": ("a/" * 3000 + "f", [("a/" * 3000 + "f", b"x")]),
}


@pytest.mark.parametrize(("entry", "members"), ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_an_entry_that_would_leave_is_refused_by_its_name(
    jail: Jail, entry: str, members: list[Member], format: int
) -> None:
    with pytest.raises(UnsafeArchiveError) as caught:
        unpacked(archive(*members, ("after", b""), format=format), jail.dest)
    assert caught.value.context["entry"] == entry
    assert repr(entry)[:100] in str(caught.value)
    assert not (jail.dest / "after").exists()


def test_what_was_written_before_is_counted_in_the_error(jail: Jail) -> None:
    with pytest.raises(UnsafeArchiveError) as caught:
        unpacked(archive(("a", b"12345"), link("b", "a"), ("../x", b"")), jail.dest)
    assert caught.value.context == {"entry": "../x", "files": 2, "bytes": 5}
    assert (jail.dest / "a").read_bytes() == b"12345"


def test_links_that_stay_inside_are_kept(jail: Jail) -> None:
    targets = {
        "l": "anything/that/is/below",
        "a/b/up": "../..",
        "a/b/here": ".",
        "a/b/over": "../../old/file",
        "loop": "loop",
    }
    unpacked(archive(*(link(name, target) for name, target in targets.items())), jail.dest)
    assert {name: os.readlink(jail.dest / name) for name in targets} == targets


def test_a_file_takes_the_place_of_a_link_and_spares_what_it_led_to(jail: Jail) -> None:
    unpacked(archive(("door", b"x"), ("window", b"y")), jail.dest)
    assert not (jail.dest / "door").is_symlink()
    assert (jail.dest / "window").read_text() == "y"


def test_a_second_entry_does_not_write_into_a_hard_link_of_the_first(jail: Jail) -> None:
    os.link(jail.root / "secret", jail.dest / "shared")
    jail.before = jail._outside()
    unpacked(archive(hard("again", "shared"), ("again", b"x")), jail.dest)
    assert (jail.root / "secret").read_text() == "secret"
    (jail.dest / "shared").unlink()
    jail.before = jail._outside()


def test_nothing_takes_the_place_of_a_directory(jail: Jail) -> None:
    (jail.dest / "empty").mkdir()
    for name, make in itertools.product(("old", "empty"), (link, hard, lambda n, t: (n, b""))):
        with pytest.raises(IsADirectoryError):
            unpacked(archive(("f", b""), make(name, "f")), jail.dest)
    assert (jail.dest / "old/file").read_text() == "mine"


NAMES = st.lists(
    st.sampled_from(["..", ".", "", "a", "b", "l", "door", "window", "old", "file"]),
    min_size=1,
    max_size=5,
).map("/".join)
TARGETS = st.one_of(NAMES, st.sampled_from(["/", "/etc/passwd", "a/l/../..", "../../outside"]))
MEMBERS: st.SearchStrategy[Member] = st.one_of(
    st.builds(lambda name: (name, b"payload"), NAMES),
    st.builds(folder, NAMES),
    st.builds(link, NAMES, TARGETS),
    st.builds(hard, NAMES, TARGETS),
    st.builds(lambda name: member(name, type=tarfile.FIFOTYPE), NAMES),
)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.lists(MEMBERS, min_size=1, max_size=8), st.sampled_from([1, 2]))
def test_no_order_of_hostile_entries_reaches_outside(members: list[Member], times: int) -> None:
    data = [archive(entry) for entry in members]  # one by one, so that none hides the next
    with tempfile.TemporaryDirectory() as directory:
        jail = Jail(Path(directory))
        for one in data * times:
            with suppress(UnsafeArchiveError, SandboxFileError, OSError):
                unpacked(one, jail.dest)
        jail.check()


# ------------------------------------------------------------------- limits


def test_more_entries_than_allowed_are_an_error(tmp_path: Path) -> None:
    data = archive(*(folder(str(number)) for number in range(11)))
    unpacked(data, tmp_path / "enough", limits=Limits(max_files=11))
    with pytest.raises(SandboxFileError, match="more than 10 files"):
        unpacked(data, tmp_path / "few", limits=Limits(max_files=10))
    assert len(os.listdir(tmp_path / "few")) == 10


def test_more_bytes_than_allowed_are_an_error_before_they_come(tmp_path: Path) -> None:
    data = archive(("a", b"x" * 600), ("b", b"y" * 401))
    unpacked(data, tmp_path / "enough", limits=Limits(max_bytes=1001))
    extractor = Extractor(str(tmp_path / "few"), Limits(max_bytes=1000))
    with pytest.raises(SandboxFileError, match="more than 1000 bytes"):
        extractor.feed(data[: 512 + 1024 + 512])
    extractor.close()
    assert os.listdir(tmp_path / "few") == ["a"]


def huge_header(kind: bytes, size: int) -> bytes:
    return member("x", type=kind, size=size).tobuf(tarfile.GNU_FORMAT)


def endless(first: bytes) -> Iterator[bytes]:
    yield first
    yield from itertools.repeat(b"0" * 65536)


@pytest.mark.parametrize(
    "first",
    [
        huge_header(tarfile.GNUTYPE_LONGNAME, 2**40),
        huge_header(tarfile.XHDTYPE, 2**40),
        huge_header(tarfile.XGLTYPE, 2**40),
        huge_header(tarfile.REGTYPE, 2**40),
        huge_header(b"Z", 2**40),
        huge_header(tarfile.REGTYPE, -1),
        bytes(1024),
        b"\1" * 512,
    ],
    ids=["name", "pax", "global pax", "file", "unknown", "negative", "trailer", "garbage"],
)
def test_no_header_makes_an_endless_stream_endless_here(tmp_path: Path, first: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(SandboxFileError):
            unpack(endless(first), str(tmp_path / "d"), Limits(100, 50 * MIB))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * MIB


def pax(body: bytes) -> bytes:
    header = member("x", type=tarfile.XHDTYPE, size=len(body)).tobuf(tarfile.USTAR_FORMAT)
    return header + body + bytes(-len(body) % 512)


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        b"0 path=a\n",
        b"9 path=a\n" * 2 + b"99 path=a\n",
        b"11 path=a\n",
        b"-9 path=a\n",
        b"8 path=\n" + b"5 a=\n" + b"3 \n",
        b"9" * 900_000,
        b"10 size=x\n",
        b"11 size=-1\n",
        b"13 mtime=nan\n",
        b"15 mtime=1e999\n",
        b"22 GNU.sparse.major=1\n",
        b"%d size=%s\n" % (5017, b"9" * 5006),
    ],
    ids=lambda body: repr(body[:20]),
)
def test_records_that_make_no_sense_are_refused(tmp_path: Path, body: bytes) -> None:
    with pytest.raises((SandboxFileError, UnsafeArchiveError)):
        unpacked(pax(body) + archive(("f", b"x")), tmp_path)
    assert not (tmp_path / "f").exists()


def test_records_are_read_in_time_that_grows_with_their_length(tmp_path: Path) -> None:
    many = b"5 a=\n" * 200_000
    assert unpacked(pax(many) + archive(("f", b"x")), tmp_path).files == 1


def test_headers_before_an_entry_do_not_pile_up(tmp_path: Path) -> None:
    def headers() -> Iterator[bytes]:
        for first in itertools.count(0, 900):
            keys = range(first, first + 900)
            yield pax(b"".join(b"1018 %06d=%s\n" % (key, b"v" * 1005) for key in keys))

    tracemalloc.start()
    try:
        with pytest.raises(SandboxFileError, match=r"more than \d+ bytes"):
            unpack(headers(), str(tmp_path / "d"), Limits(1000, 30 * MIB))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * MIB
