"""Directories, links, and what can be done with names."""

from __future__ import annotations

import pytest

from sandlot.errors import (
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxNotADirectoryError,
)
from sandlot.sandbox import AsyncSandbox
from sandlot.testing.conformance.base import Behaviours
from sandlot.types import FileType


class Directories(Behaviours):
    """Directories, links, and what can be done with names."""

    async def test_stat_tells_what_a_path_is(self, sb: AsyncSandbox) -> None:
        """A file, a directory, a link, something else; with its permission bits."""
        await sb.write_file("file", b"12345", mode=0o640)
        await sb.execute_command("mkdir dir; ln -s file link; mkfifo pipe; chmod 750 dir")
        file, directory, link, pipe = [
            await sb.stat(name) for name in ("file", "dir", "link", "pipe")
        ]
        assert (file.type, file.size, file.mode) == (FileType.FILE, 5, 0o640)
        assert (directory.type, directory.mode) == (FileType.DIRECTORY, 0o750)
        assert (link.type, link.target) == (FileType.SYMLINK, "file")
        assert pipe.type is FileType.OTHER
        assert (file.is_file, file.is_dir, directory.is_dir) == (True, False, True)

    async def test_a_link_is_described_as_itself(self, sb: AsyncSandbox) -> None:
        """Not as what it points to, by stat and by list_files."""
        await sb.execute_command("mkdir -p d/sub; ln -s sub d/to-dir; ln -s /nowhere d/to-none")
        for name, target in (("to-dir", "sub"), ("to-none", "/nowhere")):
            info = await sb.stat(f"d/{name}")
            assert (info.type, info.target) == (FileType.SYMLINK, target)
        listed = {info.name: info for info in await sb.list_files("d")}
        assert listed["to-dir"].type is FileType.SYMLINK
        assert listed["to-none"].target == "/nowhere"
        assert listed["sub"].target is None

    async def test_a_link_is_followed_when_read(self, sb: AsyncSandbox) -> None:
        """Its target's content; an error if it leads nowhere."""
        await sb.execute_command("echo content > file; ln -s file link; ln -s none dangling")
        assert await sb.read_file("link") == b"content\n"
        with pytest.raises(SandboxFileNotFoundError):
            await sb.read_file("dangling")

    async def test_exists_tells_what_is_there(self, sb: AsyncSandbox) -> None:
        """Files, directories, and links that lead nowhere; nothing below a file."""
        await sb.execute_command("mkdir dir; touch file; ln -s none dangling")
        for name, there in (
            ("file", True),
            ("dir", True),
            ("dangling", True),
            ("none", False),
            ("none/below", False),
            ("file/below", False),
        ):
            assert await sb.exists(name) is there, name

    async def test_a_listing_is_sorted_by_name(self, sb: AsyncSandbox) -> None:
        """Whatever order the file system has; hidden files included."""
        names = ["b", "a", "C", ".hidden", "10", "9", "é"]
        for name in names:
            await sb.write_file(f"dir/{name}", b"")
        listed = await sb.list_files("dir")
        assert [info.name for info in listed] == sorted(names)
        assert listed[0].path == f"dir/{listed[0].name}"

    async def test_a_long_listing_is_whole(self, sb: AsyncSandbox) -> None:
        """Two thousand files."""
        await sb.execute_command("mkdir many; for n in $(seq 2000); do : > many/file-$n; done")
        listed = {info.name for info in await sb.list_files("many")}
        assert listed == {f"file-{number}" for number in range(1, 2001)}

    async def test_an_empty_directory_lists_nothing(self, sb: AsyncSandbox) -> None:
        """And that is no error."""
        await sb.make_dir("empty")
        assert await sb.list_files("empty") == []

    async def test_only_directories_can_be_listed(self, sb: AsyncSandbox) -> None:
        """What is missing is missing, and a file is no directory."""
        await sb.write_file("file", b"")
        with pytest.raises(SandboxFileNotFoundError):
            await sb.list_files("no-such")
        with pytest.raises(SandboxNotADirectoryError):
            await sb.list_files("file")

    async def test_making_a_directory_makes_those_above(self, sb: AsyncSandbox) -> None:
        """And is fine if it is there."""
        await sb.make_dir("a/b/c")
        await sb.write_file("a/b/c/file", b"kept")
        await sb.make_dir("a/b/c")
        assert await sb.read_file("a/b/c/file") == b"kept"

    async def test_a_directory_is_not_made_over_a_file(self, sb: AsyncSandbox) -> None:
        """The file stays."""
        await sb.write_file("file", b"kept")
        for path in ("file", "file/below"):
            with pytest.raises(SandboxFileError):
                await sb.make_dir(path)
        assert await sb.read_file("file") == b"kept"

    async def test_files_and_empty_directories_can_be_removed(self, sb: AsyncSandbox) -> None:
        """Without more words."""
        await sb.write_file("file", b"")
        await sb.make_dir("empty")
        for name in ("file", "empty"):
            await sb.remove(name)
            assert not await sb.exists(name)

    async def test_what_is_missing_cant_be_removed(self, sb: AsyncSandbox) -> None:
        """Recursively or not."""
        for recursive in (False, True):
            with pytest.raises(SandboxFileNotFoundError):
                await sb.remove("no-such", recursive=recursive)

    async def test_a_full_directory_is_removed_only_on_request(self, sb: AsyncSandbox) -> None:
        """``recursive=True`` says that its content goes as well."""
        await sb.write_file("full/deep/file", b"kept")
        with pytest.raises(SandboxFileError):
            await sb.remove("full")
        assert await sb.read_file("full/deep/file") == b"kept"
        await sb.remove("full", recursive=True)
        assert not await sb.exists("full")

    async def test_removing_a_link_leaves_its_target(self, sb: AsyncSandbox) -> None:
        """Also recursively, and also when it stands inside of what is removed."""
        await sb.write_file("w/target/file", b"kept")
        await sb.make_dir("w/d")
        await sb.execute_command("ln -s target one; ln -s target two; ln -s ../target d/l", cwd="w")
        await sb.remove("w/one")
        await sb.remove("w/two", recursive=True)
        await sb.remove("w/d", recursive=True)
        assert [info.name for info in await sb.list_files("w")] == ["target"]
        assert await sb.read_file("w/target/file") == b"kept"

    async def test_moving_renames(self, sb: AsyncSandbox) -> None:
        """Files with their modes, and directories with what they hold."""
        await sb.write_file("from/file", b"content", mode=0o755)
        await sb.write_file("from/dir/inner", b"inner")
        await sb.make_dir("to")
        await sb.move("from/file", "to/renamed")
        await sb.move("from/dir", "to/dir")
        assert await sb.read_file("to/renamed") == b"content"
        assert (await sb.stat("to/renamed")).mode == 0o755
        assert await sb.read_file("to/dir/inner") == b"inner"
        assert await sb.list_files("from") == []

    async def test_moving_replaces_a_file(self, sb: AsyncSandbox) -> None:
        """As rename(2) does."""
        await sb.write_file("new", b"new")
        await sb.write_file("old", b"old")
        await sb.move("new", "old")
        assert await sb.read_file("old") == b"new"
        assert not await sb.exists("new")

    async def test_moving_does_not_move_into_a_directory(self, sb: AsyncSandbox) -> None:
        """A target that is a directory is an error, not a place for it, as with mv.

        Nor does a directory replace a file.
        """
        await sb.write_file("file", b"x")
        await sb.make_dir("dir")
        with pytest.raises(SandboxFileError):
            await sb.move("file", "dir")
        with pytest.raises(SandboxFileError):
            await sb.move("dir", "file")
        assert await sb.read_file("file") == b"x"
        assert (await sb.stat("dir")).is_dir

    async def test_what_is_missing_cant_be_moved(self, sb: AsyncSandbox) -> None:
        """Nor to a place that is missing."""
        await sb.write_file("file", b"kept")
        with pytest.raises(SandboxFileNotFoundError):
            await sb.move("no-such", "target")
        with pytest.raises(SandboxFileNotFoundError):
            await sb.move("file", "no-such/target")
        assert await sb.read_file("file") == b"kept"
