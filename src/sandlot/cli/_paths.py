"""Copying between this machine and a sandbox, and how the two ends are written."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from sandlot.sandbox import AsyncSandbox
from sandlot.types import FileInfo, FileType

Progress = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Upload:
    """Something of this machine to copy into a sandbox."""

    local: Path
    remote: str

    async def run(self, sandbox: AsyncSandbox, progress: Progress | None = None) -> None:
        """Copy a file, or what a directory holds."""
        if self.local.is_dir():
            await sandbox.upload_dir(self.local, self.remote, on_progress=progress)
        else:
            await sandbox.upload_file(self.local, self.remote)


@dataclass(frozen=True, slots=True)
class Download:
    """Something of a sandbox to copy to this machine."""

    remote: str
    local: Path

    async def run(self, sandbox: AsyncSandbox, progress: Progress | None = None) -> None:
        """Copy a file, or what a directory holds."""
        info = await sandbox.stat(self.remote)
        if await is_dir(sandbox, self.remote, info):
            await sandbox.download_dir(self.remote, self.local, on_progress=progress)
            return
        local = _file_in(self.local, self.remote)
        await sandbox.download_file(self.remote, local)
        if info.is_file and info.mode & 0o100:
            _make_executable(local)


def parse_upload(text: str) -> Upload:
    """Read ``LOCAL[:REMOTE]``; the first colon that leaves something existing divides.

    Raises:
        click.UsageError: If there is no such file or directory.
    """
    if os.path.lexists(text):
        return Upload(Path(text), _under("", text))
    for at, letter in enumerate(text):
        local, remote = text[:at], text[at + 1 :]
        if letter == ":" and local and remote and os.path.lexists(local):
            return Upload(Path(local), _under(remote, local) if remote.endswith("/") else remote)
    raise click.UsageError(f"--upload: there is no {text.partition(':')[0]} here")


def parse_download(text: str) -> Download:
    """Read ``REMOTE[:LOCAL]``, and refuse a destination that can't be, before anything runs.

    Raises:
        click.UsageError: If the destination's directory is not there.
    """
    remote, _, local = text.partition(":")
    name = posixpath.basename(posixpath.normpath(remote))
    if not remote or (not local and name in ("", ".", "..", "/")):
        raise click.UsageError(f"--download: {text!r}: what is it to be called here?")
    target = Path(local or name)
    if local.endswith("/"):
        target = target / name
    check_destination(target)
    return Download(remote, target)


def check_destination(target: Path) -> None:
    """Refuse a place on this machine where nothing can be written.

    Raises:
        click.UsageError: Saying why.
    """
    nearest = target if target.is_dir() else target.parent
    if not nearest.is_dir():
        raise click.UsageError(f"{target}: there is no directory {nearest}")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise click.UsageError(f"{target}: {nearest} can't be written to")


def _under(directory: str, path: str) -> str:
    return posixpath.join(directory, os.path.basename(os.path.abspath(path)))


async def is_dir(sandbox: AsyncSandbox, path: str, info: FileInfo | None = None) -> bool:
    """Whether a path in a sandbox is a directory, or a link to one.

    Raises:
        SandboxFileNotFoundError: If it is not there.
    """
    info = info or await sandbox.stat(path)
    if info.type is not FileType.SYMLINK:
        return info.is_dir
    try:
        return (await sandbox.stat(f"{path}/.")).is_dir
    except (FileNotFoundError, NotADirectoryError):
        return False


def _file_in(place: Path, remote: str) -> Path:
    return place / posixpath.basename(remote) if place.is_dir() else place


def _make_executable(path: Path) -> None:
    mode = path.stat().st_mode
    path.chmod(mode | (mode & 0o444) >> 2)  # for whoever may read it, as umask left it
