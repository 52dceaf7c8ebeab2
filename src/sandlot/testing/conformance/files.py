"""Reading and writing files."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandlot.errors import (
    SandboxConfigurationError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxFilePermissionError,
    SandboxIsADirectoryError,
    SandboxNotADirectoryError,
)
from sandlot.sandbox import AsyncSandbox
from sandlot.testing.conformance.base import Behaviours, resident_mb, slow

ODD_NAMES = [
    "with space",
    " leading",
    "trailing ",
    "new\nline",
    "tab\there",
    "it's",
    'say "hi"',
    "$HOME",
    "$(id)",
    "`id`",
    "-rf",
    "--help",
    "*",
    "?",
    "[a]",
    "back\\slash",
    "semi;colon",
    "a&b|c>d<e",
    "#hash",
    "~tilde",
    "é☕漢字",
    ".hidden",
    "...",
    "%s%n",
    "n" * 200,
]
"""Names that are fine in a file system and that careless code breaks on."""


class Files(Behaviours):
    """Reading and writing files."""

    async def test_content_comes_back_as_it_was(self, sb: AsyncSandbox) -> None:
        """Empty, small, around the sizes at which transports cut, and a megabyte."""
        for length in (0, 1, 4095, 4096, 18_000, 65_535, 65_536, 65_537, 1_000_000):
            data = (bytes(range(256)) * (length // 256 + 1))[:length]
            await sb.write_file("data", data)
            assert await sb.read_file("data") == data, length
            assert (await sb.stat("data")).size == length

    @slow
    async def test_large_content_comes_back_as_it_was(self, sb: AsyncSandbox) -> None:
        """Thirty-three megabytes: above the limit that many a gateway has."""
        data = bytes(range(256)) * (33 * 4096)
        await sb.write_file("data", data)
        assert await sb.read_file("data") == data
        counted = await sb.execute_command("wc -c < data")
        assert counted.stdout.strip() == str(len(data))

    async def test_text_is_written_as_utf_8(self, sb: AsyncSandbox) -> None:
        """Newlines stay what they are."""
        await sb.write_file("text", "é☕\r\n")
        assert await sb.read_file("text") == "é☕\r\n".encode()

    async def test_names_may_be_odd(self, sb: AsyncSandbox) -> None:
        """Every name that a file system takes works in every method."""
        for name in ODD_NAMES:
            path = f"odd/{name}"
            await sb.write_file(path, name)
            assert await sb.read_file(path) == name.encode()
            assert (await sb.stat(path)).name == name
        listed = [info.name for info in await sb.list_files("odd")]
        assert listed == sorted(ODD_NAMES)
        for name in ODD_NAMES:
            await sb.remove(f"odd/{name}")
        assert await sb.list_files("odd") == []

    async def test_directories_above_are_made(self, sb: AsyncSandbox) -> None:
        """write_file needs no make_dir before."""
        await sb.write_file("a/b/c/file", b"x")
        assert (await sb.stat("a/b/c")).is_dir

    async def test_writing_replaces_the_content(self, sb: AsyncSandbox) -> None:
        """Also by something shorter."""
        await sb.write_file("file", b"long content")
        await sb.write_file("file", b"short")
        assert await sb.read_file("file") == b"short"

    async def test_writing_again_keeps_the_mode(self, sb: AsyncSandbox) -> None:
        """A script stays executable when its text is replaced."""
        await sb.write_file("script", "echo one", mode=0o755)
        await sb.write_file("script", "echo two")
        assert (await sb.stat("script")).mode == 0o755

    async def test_a_mode_can_be_given(self, sb: AsyncSandbox) -> None:
        """And is what the sandbox goes by: the file runs."""
        await sb.write_file("script", "#!/bin/sh\necho ran\n", mode=0o755)
        assert (await sb.execute_command("./script")).stdout == "ran\n"
        await sb.write_file("secret", "x", mode=0o600)
        assert (await sb.stat("secret")).mode == 0o600

    async def test_writing_through_a_link_keeps_the_link(self, sb: AsyncSandbox) -> None:
        """As with any open(2): its target gets the content."""
        await sb.execute_command("echo old > target; ln -s target link")
        await sb.write_file("link", b"new")
        assert await sb.read_file("target") == b"new"
        assert (await sb.stat("link")).target == "target"

    async def test_a_missing_file_is_said_to_be_missing(self, sb: AsyncSandbox) -> None:
        """By our error, which is also the builtin one, and names the path."""
        with pytest.raises(SandboxFileNotFoundError, match="no/such") as caught:
            await sb.read_file("no/such")
        assert isinstance(caught.value, FileNotFoundError)
        with pytest.raises(FileNotFoundError):
            await sb.stat("no/such")

    async def test_a_directory_is_no_file(self, sb: AsyncSandbox) -> None:
        """Neither to read nor to write."""
        await sb.make_dir("dir")
        with pytest.raises(SandboxIsADirectoryError) as caught:
            await sb.read_file("dir")
        assert isinstance(caught.value, IsADirectoryError)
        with pytest.raises(SandboxIsADirectoryError):
            await sb.write_file("dir", b"x")

    async def test_nothing_is_below_a_file(self, sb: AsyncSandbox) -> None:
        """Neither to read nor to write."""
        await sb.write_file("file", b"x")
        with pytest.raises(SandboxNotADirectoryError) as caught:
            await sb.read_file("file/below")
        assert isinstance(caught.value, NotADirectoryError)
        with pytest.raises(SandboxFileError):
            await sb.write_file("file/below", b"x")

    async def test_files_may_be_read_by_whom_commands_may(self, sb: AsyncSandbox) -> None:
        """The file methods may what the sandbox's user may, not more and not less."""
        await sb.write_file("locked", b"content")
        await sb.execute_command("chmod 000 locked")
        if (await sb.execute_command("cat locked")).exit_code == 0:  # root may
            assert await sb.read_file("locked") == b"content"
        else:
            with pytest.raises(SandboxFilePermissionError) as caught:
                await sb.read_file("locked")
            assert isinstance(caught.value, PermissionError)

    async def test_commands_may_change_what_was_written(self, sb: AsyncSandbox) -> None:
        """What the file methods make belongs to whom commands run as."""
        await sb.write_file("dir/file", "one\n")
        await sb.execute_command("echo two >> dir/file; echo x > dir/new; chmod 600 dir/file")
        assert await sb.read_file("dir/file") == b"one\ntwo\n"
        assert (await sb.stat("dir/file")).mode == 0o600
        assert await sb.exists("dir/new")

    async def test_paths_that_cant_be_are_refused(self, sb: AsyncSandbox) -> None:
        """Empty, or with a NUL character."""
        for path in ("", "a\0b"):
            with pytest.raises(SandboxConfigurationError):
                await sb.read_file(path)
            with pytest.raises(SandboxConfigurationError):
                await sb.write_file(path, b"")

    # --------------------------------------------------------------- in pieces
    async def test_a_file_can_be_read_in_pieces(self, sb: AsyncSandbox) -> None:
        """Joined, they are its content."""
        data = bytes(range(256)) * 10_000
        await sb.write_file("data", data)
        assert b"".join([piece async for piece in sb.stream_file("data")]) == data

    async def test_a_missing_file_has_no_pieces(self, sb: AsyncSandbox) -> None:
        """The error is the same as for reading it whole."""
        with pytest.raises(SandboxFileNotFoundError):
            async for _ in sb.stream_file("no-such"):
                pass

    async def test_a_file_can_be_written_in_pieces(self, sb: AsyncSandbox) -> None:
        """From an iterator, or an asynchronous one."""

        async def later() -> AsyncIterator[bytes]:
            for piece in (b"a", b"", b"bc"):
                yield piece

        await sb.write_file("now", iter([b"x" * 100_000, b"", b"y"]))
        await sb.write_file("later", later())
        assert await sb.read_file("now") == b"x" * 100_000 + b"y"
        assert await sb.read_file("later") == b"abc"

    async def test_pieces_that_fail_leave_the_file_as_it_was(self, sb: AsyncSandbox) -> None:
        """The caller's own error comes through, and no half file is seen."""
        await sb.write_file("dir/file", b"old")

        def broken() -> Iterator[bytes]:
            yield from [b"new" * 100_000] * 40  # more than what is gathered on the way
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await sb.write_file("dir/file", broken())
        assert await sb.read_file("dir/file") == b"old"
        assert [info.name for info in await sb.list_files("dir")] == ["file"]

    @slow
    async def test_a_file_larger_than_the_memory_for_it_passes_in_pieces(
        self, sb: AsyncSandbox
    ) -> None:
        """Two hundred megabytes up and down, while this process grows by less than 64."""
        piece = bytes(range(256)) * 4096
        floor, peak = resident_mb(), 0.0
        sent, got = hashlib.sha256(), hashlib.sha256()

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal peak
            for _ in range(200):
                sent.update(piece)
                peak = max(peak, resident_mb())
                yield piece

        await sb.write_file("large", pieces())
        assert (await sb.stat("large")).size == 200 * len(piece)
        async for part in sb.stream_file("large"):
            got.update(part)
            peak = max(peak, resident_mb())
        assert got.hexdigest() == sent.hexdigest()
        assert peak - floor < 64, f"grew by {peak - floor:.0f} MB"

    # -------------------------------------------------- to and from this machine
    async def test_a_file_goes_up_and_comes_down(self, sb: AsyncSandbox, tmp: Path) -> None:
        """With its content and its executable bit."""
        data = bytes(range(256)) * 1000
        (tmp / "up").write_bytes(data)
        (tmp / "up").chmod(0o755)
        await sb.upload_file(tmp / "up", "in/there")
        assert await sb.read_file("in/there") == data
        assert (await sb.stat("in/there")).mode & 0o100
        await sb.download_file("in/there", tmp / "down")
        assert (tmp / "down").read_bytes() == data

    async def test_what_is_missing_here_is_a_plain_oserror(
        self, sb: AsyncSandbox, tmp: Path
    ) -> None:
        """An error of this machine is not taken for one of the sandbox."""
        with pytest.raises(FileNotFoundError) as caught:
            await sb.upload_file(tmp / "none", "there")
        assert not isinstance(caught.value, SandboxFileError)
        assert not await sb.exists("there")

    async def test_a_download_that_fails_leaves_nothing(self, sb: AsyncSandbox, tmp: Path) -> None:
        """And what was there before stays."""
        (tmp / "old").write_bytes(b"old")
        for name in ("new", "old"):
            with pytest.raises(SandboxFileNotFoundError):
                await sb.download_file("no-such", tmp / name)
        assert os.listdir(tmp) == ["old"]
        assert (tmp / "old").read_bytes() == b"old"

    async def test_the_time_of_a_change_is_told(self, sb: AsyncSandbox) -> None:
        """In seconds since the epoch, as far as clocks agree."""
        await sb.write_file("file", b"x")
        assert abs((await sb.stat("file")).modified - time.time()) < 3600
