"""The parsers of what shells print, and listings by real shells."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest
from host_handle import ODD_NAMES, HostHandle, Userland
from host_handle import handle as handle
from host_handle import land as land
from host_handle import limited as limited
from host_handle import place as place
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot import _shell
from sandlot.errors import (
    FeatureNotSupportedError,
    SandboxError,
    SandboxFileError,
    SandboxFileExistsError,
    SandboxFileNotFoundError,
    SandboxFilePermissionError,
    SandboxIsADirectoryError,
    SandboxNotADirectoryError,
)
from sandlot.types import Captured, Command, FileInfo, FileType, SandboxResult

NAMES = st.binary(min_size=1, max_size=40).filter(
    lambda name: not set(name) & {0, 0x2F} and name not in (b".", b"..")
)


def names(infos: list[FileInfo]) -> list[str]:
    return [info.name for info in infos]


# ------------------------------------------------------------------ parsers


def test_the_letters_of_a_mode_are_read_as_the_library_writes_them() -> None:
    for mode in range(0o10000):
        letters = stat.filemode(stat.S_IFREG | mode)
        assert _shell.parse_mode(letters[1:].encode()) == mode, letters


RECORDED = {
    "GNU find": (
        b"drwxr-xr-x 4096 1700000000.1250000000 ./d\n"
        b"-rwsr-x--- 12 1700000001.0000000000 ./a\nb\n"
        b"lrwxrwxrwx 3 1700000002.5000000000 ./l\n\0l\0a\nb\0"
    ),
    "busybox stat": (
        b"-rwsr-x--- 12 1700000001 ./a\nb\ndrwxr-xr-x 4096 1700000000 ./d\n"
        b"lrwxrwxrwx 3 1700000002 ./l\n\0l\0a\nb\0"
    ),
    "ls with access control lists": (
        b"-rwsr-x---+ 12 0 ./a\nb\ndrwxr-xr-x. 4096 0 ./d\nlrwxrwxrwx 3 0 ./l\n\0l\0a\nb\0"
    ),
}


@pytest.mark.parametrize("output", RECORDED.values(), ids=RECORDED)
def test_a_recorded_listing_is_understood(output: bytes) -> None:
    file, directory, link = _shell.parse_listing(output, "/w")
    assert (file.path, file.type, file.mode, file.size) == ("/w/a\nb", FileType.FILE, 0o4750, 12)
    assert (directory.path, directory.is_dir, directory.target) == ("/w/d", True, None)
    assert (link.path, link.type, link.target) == ("/w/l", FileType.SYMLINK, "a\nb")


def test_times_keep_their_fractions_where_the_tool_tells_them() -> None:
    infos = _shell.parse_listing(RECORDED["GNU find"], "/w")
    assert [info.modified for info in infos] == [1700000001.0, 1700000000.125, 1700000002.5]


def test_a_path_is_joined_as_it_was_given() -> None:
    output = b"-rw-r--r-- 1 0 ./f\n\0"
    for given_path, joined in (("/", "/f"), ("a/", "a/f"), (".", "./f"), ("../b", "../b/f")):
        assert _shell.parse_listing(output, given_path)[0].path == joined


HOSTILE = {
    "parent": b"drwxr-xr-x 1 0 ./..\n\0",
    "itself": b"drwxr-xr-x 1 0 ./.\n\0",
    "no name": b"drwxr-xr-x 1 0 ./\n\0",
    "a path": b"-rw-r--r-- 1 0 ./a/b\n\0",
    "upwards": b"-rw-r--r-- 1 0 ./../../etc/passwd\n\0",
    "absolute": b"-rw-r--r-- 1 0 /etc/passwd\n\0",
    "cut off": b"-rw-r--r-- 1 0 ./a\n",
    "no newline": b"-rw-r--r-- 1 0 ./a\0",
    "nothing": b"",
    "prose": b"I am a sandbox\n\0",
    "endless size": b"-rw-r--r-- " + b"9" * 5000 + b" 0 ./a\n\0",
    "no number": b"-rw-r--r-- 0x10 0 ./a\n\0",
    "odd time": b"-rw-r--r-- 1 nan ./a\n\0",
    "odd letters": b"-rw-r--r-? 1 0 ./a\n\0",
}


@pytest.mark.parametrize("output", HOSTILE.values(), ids=HOSTILE)
def test_a_listing_that_can_not_be_true_is_refused(output: bytes) -> None:
    with pytest.raises(SandboxFileError, match=r"/w: .* can't be true"):
        _shell.parse_listing(output, "/w")


def test_a_description_of_several_files_is_not_one_of_a_file() -> None:
    with pytest.raises(SandboxFileError):
        _shell.parse_stat(b"-rw-r--r-- 1 0 ./\n-rw-r--r-- 1 0 ./b\n\0\0\0", "/w")


LINE = b"-rw-r--r-- 1 0 ./"
FRAGMENTS = st.sampled_from([LINE, b"\n", b"\0", b"/", b"..", b".", b"a", b" ", b"lrwxrwxrwx "])


@settings(max_examples=300, derandomize=True)
@given(st.one_of(st.binary(), st.lists(FRAGMENTS, max_size=30).map(b"".join)))
def test_whatever_a_sandbox_prints_no_name_leads_out_of_the_directory(output: bytes) -> None:
    try:
        infos = _shell.parse_listing(output, "/w")
    except SandboxFileError:
        return
    for info in infos:
        assert info.path == f"/w/{info.name}"
        assert info.name not in ("", ".", "..")
        assert "/" not in info.name


@pytest.mark.parametrize(
    ("code", "said", "kind"),
    [
        (71, "", SandboxFileNotFoundError),
        (72, "", SandboxFilePermissionError),
        (73, "", SandboxIsADirectoryError),
        (74, "", SandboxNotADirectoryError),
        (75, "", SandboxFileExistsError),
        (76, "", FeatureNotSupportedError),
        (1, "rm: cannot remove './a': Operation not permitted", SandboxFilePermissionError),
        (1, "rm: x: Read-only file system\nrm: giving up", SandboxFilePermissionError),
        (1, "rm: Permission denied is the file's name", SandboxFileError),
        (1, "tar: ./x: No space left on device", SandboxFileError),
        (137, "", SandboxFileError),
    ],
)
def test_a_failed_script_is_the_error_that_it_means(
    code: int, said: str, kind: type[SandboxError]
) -> None:
    result = SandboxResult(exit_code=code, err=Captured(said.encode(), b"", len(said)))
    assert type(_shell.failure(result, "/w")) is kind


def test_output_that_was_cut_is_not_taken_for_a_whole_listing(place: Path) -> None:
    class Terse(HostHandle):
        async def exec(self, command: Command) -> SandboxResult:
            return SandboxResult(exit_code=0, out=Captured(b"-rw-r--r-- 1 0 ./a\n", b"\0", 99))

    handle = Terse(place, Userland("none", (), ""))
    with pytest.raises(SandboxFileError, match="too long"):
        asyncio.run(handle.list_dir("/"))


# -------------------------------------------------------------------- shell


async def run_line(handle: HostHandle, text: str) -> SandboxResult:
    return await handle.exec(Command(argv=(*handle.shell, text)))


async def test_a_shell_line_arrives_byte_for_byte(handle: HostHandle) -> None:
    every_byte = bytes(set(range(1, 256))) + b"\n"
    text = os.fsdecode(b"cat <<'END'\n" + every_byte + b"END\n")
    assert (await run_line(handle, text)).stdout_bytes == every_byte


async def test_a_shell_line_may_begin_like_an_option(handle: HostHandle) -> None:
    for text in ("-c", "+x", "--help", "-- "):
        assert (await run_line(handle, text)).exit_code == 127, text


async def test_a_shell_line_runs_in_bash_where_there_is_one(handle: HostHandle) -> None:
    result = await run_line(handle, 'echo "$0 ${BASH_VERSION:+is bash} $#"')
    expected = {"busybox": "sh  0\n", "bare": "/bin/sh  0\n"}
    assert result.stdout == expected.get(handle.land.name, "bash is bash 0\n")


# ------------------------------------------------------------------ listing


async def test_odd_names_are_listed_as_they_are(handle: HostHandle) -> None:
    for name in ODD_NAMES:
        (handle.root / name).write_text(name[:3], encoding="utf-8", errors="surrogateescape")
    infos = await handle.list_dir(str(handle.root))
    assert names(infos) == sorted(ODD_NAMES)
    assert all(info.is_file for info in infos)
    assert not (handle.root / "pwned").exists()


def test_any_names_are_listed_as_they_are(handle: HostHandle) -> None:
    @settings(max_examples=15, derandomize=True, deadline=None)
    @given(st.lists(NAMES, max_size=20, unique=True))
    def check(made: list[bytes]) -> None:
        with tempfile.TemporaryDirectory(dir=handle.root) as directory:
            for name in made:
                Path(directory, os.fsdecode(name)).touch()
            infos = asyncio.run(handle.list_dir(directory))
        assert names(infos) == sorted(map(os.fsdecode, made))

    check()


async def test_files_are_described_as_they_are(handle: HostHandle) -> None:
    root = handle.root
    (root / "file").write_bytes(b"x" * 12345)
    (root / "file").chmod(0o4751)
    (root / "old").touch()
    os.utime(root / "old", (0, 946684800))
    (root / "dir").mkdir(mode=0o700)
    (root / "link").symlink_to("no/such\nfile ")
    (root / "dirlink").symlink_to("dir")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket"))
        listed = await handle.list_dir(".")
        described = [await handle.stat(f"./{info.name}") for info in listed]
    assert described == listed
    by_name = {info.name: info for info in listed}
    assert by_name.keys() == set(os.listdir(root))
    assert by_name["link"].target == "no/such\nfile "
    for name, info in by_name.items():
        true = os.lstat(root / name)
        assert info.mode == stat.S_IMODE(true.st_mode)
        assert info.type in (FileType.OTHER, FileType.DIRECTORY) or info.size == true.st_size
        assert info.target == (os.readlink(root / name) if stat.S_ISLNK(true.st_mode) else None)
        if handle.land.name != "bare":
            assert int(info.modified) == int(true.st_mtime)
    assert [by_name[name].type for name in ("file", "dir", "dirlink", "pipe", "socket")] == [
        FileType.FILE,
        FileType.DIRECTORY,
        FileType.SYMLINK,
        FileType.OTHER,
        FileType.OTHER,
    ]


async def test_a_large_directory_is_listed_whole(handle: HostHandle) -> None:
    count = 60 if handle.land.name == "bare" else 1203
    for number in range(count):
        (handle.root / f"{number:05}-{'x' * 200}").touch()
    assert len(await handle.list_dir(".")) == count


async def test_an_empty_directory_holds_nothing(handle: HostHandle) -> None:
    assert await handle.list_dir(".") == []


async def test_a_link_to_a_directory_is_listed_as_the_directory(handle: HostHandle) -> None:
    (handle.root / "d").mkdir()
    (handle.root / "d/f").touch()
    (handle.root / "l").symlink_to("d")
    assert [info.path for info in await handle.list_dir("l")] == ["l/f"]
    assert (await handle.stat("l")).type is FileType.SYMLINK
    assert (await handle.stat("l/")).type is FileType.DIRECTORY
    assert (await handle.stat("l/..")).path == "l/.."


async def test_the_parent_of_a_link_is_that_of_the_directory_it_leads_to(
    handle: HostHandle,
) -> None:
    (handle.root / "d/e").mkdir(parents=True)
    (handle.root / "l").symlink_to("d/e")
    assert names(await handle.list_dir("l/..")) == ["e"]


async def test_the_root_directory_can_be_described(handle: HostHandle) -> None:
    info = await handle.stat("/")
    assert info.is_dir
    assert info.path == "/"
    assert "tmp" in names(await handle.list_dir("/"))


async def test_a_directory_that_may_not_be_read_is_not_taken_for_empty(
    limited: HostHandle,
) -> None:
    for mode in (0o311, 0o644):
        directory = limited.root / f"d{mode}"
        directory.mkdir()
        (directory / "f").touch()
        directory.chmod(mode)
        try:
            if mode == 0o311 or os.geteuid() == 0:
                with pytest.raises(SandboxFilePermissionError):
                    await limited.list_dir(directory.name)
        finally:
            directory.chmod(0o755)
