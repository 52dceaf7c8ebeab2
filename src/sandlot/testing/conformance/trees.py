"""Whole directories, to and from this machine."""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import pytest

from sandlot._files import TransferMethod
from sandlot.errors import (
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
    UnsafeArchiveError,
)
from sandlot.sandbox import AsyncSandbox
from sandlot.testing.conformance.base import Behaviours
from sandlot.testing.conformance.files import ODD_NAMES

Shape: TypeAlias = dict[str, tuple[str, object]]
_METHODS: tuple[TransferMethod, ...] = ("tar", "per_file")


class Trees(Behaviours):
    """Whole directories."""

    async def test_a_tree_comes_back_as_it_went(self, sb: AsyncSandbox, tmp: Path) -> None:
        """Files, modes, links, empty directories and odd names, by either method."""
        _plant(tmp / "up")
        for up in _METHODS:
            await sb.upload_dir(tmp / "up", f"{up}/in", method=up)
            for down in _METHODS:
                await sb.download_dir(f"{up}/in", tmp / f"{up}-{down}", method=down)
                assert _shape(tmp / f"{up}-{down}") == _shape(tmp / "up"), (up, down)

    async def test_commands_see_the_tree(self, sb: AsyncSandbox, tmp: Path) -> None:
        """As it was here, for both methods."""
        _plant(tmp)
        for method in _METHODS:
            await sb.upload_dir(tmp, method, method=method)
            result = await sb.execute_command(
                "./bin/run; cat link; readlink dangling; [ -d empty ] && echo empty", cwd=method
            )
            assert result.stdout == "ran\ntext\nno/where\nempty\n"

    async def test_the_number_of_files_is_told(self, sb: AsyncSandbox, tmp: Path) -> None:
        """Links count; directories do not. Progress comes to the same."""
        _plant(tmp / "up")
        count = sum(1 for kind, _ in _shape(tmp / "up").values() if kind != "dir")
        for method in _METHODS:
            progress = _Progress()
            sent = await sb.upload_dir(tmp / "up", method, method=method, on_progress=progress)
            got = await sb.download_dir(method, tmp / method, method=method)
            assert (sent, got) == (count, count)
            assert progress.seen == sorted(progress.seen)
            assert progress.seen[-1][1] >= len("text\n")

    async def test_an_upload_adds_to_what_is_there(self, sb: AsyncSandbox, tmp: Path) -> None:
        """It replaces files of the same name and removes none."""
        (tmp / "both").write_text("new")
        for method in _METHODS:
            await sb.write_file(f"{method}/both", "old and longer")
            await sb.write_file(f"{method}/theirs", "kept")
            await sb.upload_dir(tmp, method, method=method)
            assert await sb.read_file(f"{method}/both") == b"new"
            assert await sb.read_file(f"{method}/theirs") == b"kept"

    async def test_a_missing_directory_here_is_a_plain_oserror(
        self, sb: AsyncSandbox, tmp: Path
    ) -> None:
        """And a file is no directory."""
        (tmp / "file").write_text("x")
        for name, kind in (("none", FileNotFoundError), ("file", NotADirectoryError)):
            with pytest.raises(kind) as caught:
                await sb.upload_dir(tmp / name, "there")
            assert not isinstance(caught.value, SandboxFileError)

    async def test_a_missing_directory_there_is_said_to_be_missing(
        self, sb: AsyncSandbox, tmp: Path
    ) -> None:
        """By either method."""
        for method in _METHODS:
            with pytest.raises(SandboxFileNotFoundError):
                await sb.download_dir("no-such", tmp / method, method=method)

    async def test_a_pipe_in_the_tree_does_not_hang(self, sb: AsyncSandbox, tmp: Path) -> None:
        """It is left out, up and down."""
        (tmp / "up").mkdir()
        (tmp / "up/file").write_text("x")
        os.mkfifo(tmp / "up/pipe")
        await sb.execute_command("mkdir dir; echo x > dir/file; mkfifo dir/pipe")
        for method in _METHODS:
            async with asyncio.timeout(self.patience):
                await sb.upload_dir(tmp / "up", f"up-{method}", method=method)
                await sb.download_dir("dir", tmp / method, method=method)
            assert [info.name for info in await sb.list_files(f"up-{method}")] == ["file"]
            assert _names(tmp / method) == ["file"]

    async def test_nothing_is_written_outside_the_destination(
        self, sb: AsyncSandbox, tmp: Path
    ) -> None:
        """Whatever the sandbox holds: what would lie elsewhere is refused or left out."""
        outside = tmp / "outside"
        outside.mkdir()
        hostile = (
            f"ln -s {outside} link",
            f"ln -s {outside}/file link",
            "ln -s ../../outside link",
            "ln -s ../../outside/file link",
            "mkdir d; ln -s .. d/up; ln -s d/up/../../outside link",
            "ln -s / link",
        )
        for number, line in enumerate(hostile):
            for method in _METHODS:
                remote, local = f"tree-{method}-{number}", tmp / f"down/{method}-{number}"
                await sb.make_dir(remote)
                await sb.execute_command(line, cwd=remote, check=True)
                await _may_be_refused(sb, remote, local, method)
                # What has come of the link is now in the way of a directory of its name.
                await sb.execute_command("rm link; mkdir link; echo bad > link/file", cwd=remote)
                await _may_be_refused(sb, remote, local, method)
        assert _names(outside) == []
        assert _names(tmp) == ["down", "outside"]

    async def test_a_link_in_the_destination_is_not_followed(
        self, sb: AsyncSandbox, tmp: Path
    ) -> None:
        """What is here may be an earlier download: a file replaces the link itself."""
        await sb.write_file("tree/name", "new")
        for method in _METHODS:
            (tmp / method).mkdir()
            (tmp / f"target-{method}").write_text("old")
            (tmp / method / "name").symlink_to(tmp / f"target-{method}")
            try:
                await sb.download_dir("tree", tmp / method, method=method)
            except SandboxError:
                continue
            finally:
                assert (tmp / f"target-{method}").read_text() == "old"
            assert (tmp / method / "name").read_text() == "new"

    async def test_many_small_files_arrive(self, sb: AsyncSandbox, tmp: Path) -> None:
        """A thousand, in directories."""
        for number in range(1000):
            directory = tmp / "up" / str(number % 20)
            directory.mkdir(parents=True, exist_ok=True)
            (directory / str(number)).write_text(str(number))
        assert await sb.upload_dir(tmp / "up", "many") == 1000
        assert await sb.download_dir("many", tmp / "down") == 1000
        assert _shape(tmp / "down") == _shape(tmp / "up")


class _Progress:
    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def __call__(self, files: int, size: int) -> None:
        self.seen.append((files, size))


async def _may_be_refused(
    sandbox: AsyncSandbox, remote: str, local: Path, method: TransferMethod
) -> None:
    with suppress(UnsafeArchiveError):
        await sandbox.download_dir(remote, local, method=method)


def _names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def _plant(root: Path) -> None:
    for directory in ("bin", "deep/er/still", "empty", "odd"):
        (root / directory).mkdir(parents=True)
    (root / "file").write_text("text\n")
    (root / "nothing").write_bytes(b"")
    (root / "deep/er/still/data").write_bytes(bytes(range(256)) * 2000)
    (root / "bin/run").write_text("#!/bin/sh\necho ran\n")
    (root / "bin/run").chmod(0o755)
    (root / "link").symlink_to("file")
    (root / "deep/up").symlink_to("../file")
    (root / "to-dir").symlink_to("deep/er")
    (root / "dangling").symlink_to("no/where")
    for name in ODD_NAMES:
        (root / "odd" / name).write_text(name)


def _shape(root: Path) -> Shape:
    """Return what a directory holds, in a form that can be compared."""
    shape: Shape = {}
    for directory, names, files in os.walk(root):
        for name in names + files:
            path = Path(directory, name)
            key = str(path.relative_to(root))
            if path.is_symlink():
                shape[key] = ("link", os.readlink(path))
            elif path.is_dir():
                shape[key] = ("dir", None)
            else:
                executable = bool(stat.S_IMODE(path.stat().st_mode) & 0o100)
                shape[key] = ("file", (path.read_bytes(), executable))
    return shape
