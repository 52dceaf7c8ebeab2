"""Copying between this machine and a sandbox, and how the two ends are written."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from sandlot.errors import SandboxFileNotFoundError
from sandlot.sandbox import AsyncSandbox

Progress = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Upload:
    """Something of this machine to copy into a sandbox."""

    local: Path
    remote: str


@dataclass(frozen=True, slots=True)
class Download:
    """Something of a sandbox to copy to this machine."""

    remote: str
    local: Path


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


async def upload(sandbox: AsyncSandbox, wanted: Upload, progress: Progress | None = None) -> None:
    """Copy a file, or what a directory holds, into a sandbox."""
    if wanted.local.is_dir():
        await sandbox.upload_dir(wanted.local, wanted.remote, on_progress=progress)
    else:
        await sandbox.upload_file(wanted.local, wanted.remote)


async def download(
    sandbox: AsyncSandbox, wanted: Download, progress: Progress | None = None
) -> None:
    """Copy a file, or what a directory holds, out of a sandbox."""
    if await is_dir(sandbox, wanted.remote):
        await sandbox.download_dir(wanted.remote, wanted.local, on_progress=progress)
        return
    local = wanted.local
    if local.is_dir():
        local = local / posixpath.basename(wanted.remote)
    await sandbox.download_file(wanted.remote, local)


async def is_dir(sandbox: AsyncSandbox, path: str) -> bool:
    """Whether a path in a sandbox is a directory, or a link to one.

    Raises:
        SandboxFileNotFoundError: If it is not there.
    """
    if (await sandbox.stat(path)).is_dir:
        return True
    if path.endswith("/"):
        return False
    try:
        return (await sandbox.stat(f"{path}/.")).is_dir
    except (SandboxFileNotFoundError, NotADirectoryError):
        return False
