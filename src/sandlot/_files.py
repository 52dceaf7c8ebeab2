"""The file operations of a sandbox, as users call them."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
)
from contextlib import aclosing
from itertools import islice
from os import PathLike
from typing import Literal, TypeAlias

from sandlot._base import SandboxBase
from sandlot._checks import check_mode, check_path
from sandlot.errors import (
    SandboxConfigurationError,
    SandboxFileNotFoundError,
    SandboxNotADirectoryError,
)
from sandlot.types import FileInfo

HostPath: TypeAlias = str | PathLike[str]
Content: TypeAlias = bytes | str | Iterable[bytes] | AsyncIterable[bytes]
TransferMethod: TypeAlias = Literal["auto", "tar", "per_file"]
FileList: TypeAlias = list[FileInfo]


class FileOperations(SandboxBase):
    """Files inside a sandbox.

    Paths are POSIX; a relative one starts at the working directory. Failures inside the
    sandbox raise `SandboxFileError` (also the matching `OSError`); failures on this machine
    raise plain `OSError`.
    """

    def command_path(self, path: str) -> str:
        """Return the absolute path by which commands know the file ``path``.

        The same, except where commands see more than the sandbox's own files, as on ``local``.
        """
        check_path(path)
        return self._handle.command_path(path)

    async def list_files(self, path: str = "/") -> FileList:
        """Return what a directory holds, sorted by name."""
        check_path(path)
        async with self._operation("list_files"):
            return await self._handle.list_dir(path)

    async def stat(self, path: str) -> FileInfo:
        """Describe a path; a symbolic link as itself."""
        check_path(path)
        async with self._operation("stat"):
            return await self._handle.stat(path)

    async def exists(self, path: str) -> bool:
        """Whether the path is there; also true for a symbolic link that leads nowhere."""
        check_path(path)
        async with self._operation("exists"):
            try:
                await self._handle.stat(path)
            except (SandboxFileNotFoundError, SandboxNotADirectoryError):
                return False
            return True

    async def make_dir(self, path: str) -> None:
        """Make a directory and those above it; fine if it is there."""
        check_path(path)
        async with self._operation("make_dir"):
            await self._handle.make_dir(path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link, an empty directory, or with ``recursive`` a whole tree."""
        check_path(path)
        async with self._operation("remove"):
            await self._handle.remove(path, recursive=recursive)

    async def move(self, source: str, target: str) -> None:
        """Rename a file or directory; an existing target file is replaced."""
        check_path(source)
        check_path(target)
        async with self._operation("move"):
            await self._handle.move(source, target)

    async def read_file(self, path: str) -> bytes:
        """Return a file's content."""
        check_path(path)
        async with self._operation("read_file") as op:
            data = await self._handle.read(path)
            op.note(size=len(data))
            return data

    async def stream_file(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yield a file's content in pieces, without holding it whole."""
        check_path(path)
        async with self._operation("read_file"):
            async with aclosing(self._handle.read_stream(path)) as pieces:
                async for piece in pieces:
                    yield piece

    async def write_file(self, path: str, content: Content, *, mode: int | None = None) -> None:
        """Make or replace a file, and the directories above it.

        Args:
            path: Where.
            content: The bytes, text (written as UTF-8), or pieces of bytes.
            mode: Permission bits; omitted, a new file gets the sandbox's default and an
                existing one keeps its own.
        """
        check_path(path)
        check_mode(mode)
        async with self._operation("write_file", passes=Exception) as op:
            if isinstance(content, str):
                content = content.encode("utf-8", "surrogateescape")
            if isinstance(content, bytes | bytearray | memoryview):
                await self._handle.write(path, bytes(content))
                op.note(size=len(content))
            else:
                await self._handle.write_stream(path, _pieces(content))
            if mode is not None:
                await self._handle.set_mode(path, mode)

    async def upload_file(self, local: HostPath, remote: str) -> None:
        """Copy a file of this machine into the sandbox, its executable bit included."""
        from sandlot import _transfer

        check_path(remote)
        async with self._operation("upload_file", passes=OSError):
            await _transfer.upload_file(self._handle, local, remote)

    async def download_file(self, remote: str, local: HostPath) -> None:
        """Copy a file out of the sandbox; ``local`` appears whole or not at all."""
        from sandlot import _transfer

        check_path(remote)
        async with self._operation("download_file", passes=OSError):
            await _transfer.download_file(self._handle, remote, local)

    async def upload_dir(
        self,
        local: HostPath,
        remote: str,
        *,
        method: TransferMethod = "auto",
        on_progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Copy what a directory of this machine holds into a directory of the sandbox.

        Symbolic links, empty directories and permissions are kept.

        Args:
            local: The directory here.
            remote: The directory there; it is made if need be.
            method: One tar stream, or file by file; ``auto`` takes tar where there is one.
            on_progress: Called with files and bytes moved so far.

        Returns:
            The number of files.
        """
        from sandlot import _transfer

        check_path(remote)
        _check_method(method)
        async with self._operation("upload_dir", passes=Exception) as op:
            count = await _transfer.upload_dir(
                self._handle, local, remote, method=method, on_progress=on_progress
            )
            op.note(files=count)
            return count

    async def download_dir(
        self,
        remote: str,
        local: HostPath,
        *,
        method: TransferMethod = "auto",
        on_progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Copy what a directory of the sandbox holds into a directory of this machine.

        Whatever the sandbox sends, nothing is written outside ``local``.

        Returns:
            The number of files.

        Raises:
            UnsafeArchiveError: If an entry would have been written outside.
        """
        from sandlot import _transfer

        check_path(remote)
        _check_method(method)
        async with self._operation("download_dir", passes=Exception) as op:
            count = await _transfer.download_dir(
                self._handle, remote, local, method=method, on_progress=on_progress
            )
            op.note(files=count)
            return count


def _check_method(method: str) -> None:
    if method not in ("auto", "tar", "per_file"):
        raise SandboxConfigurationError(
            f"method: {method!r} is not known", hint="use 'auto', 'tar' or 'per_file'"
        )


async def _pieces(content: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(content, AsyncIterable):
        async for piece in content:
            yield piece
        return
    source = iter(content)
    while pieces := await asyncio.to_thread(_some, source):
        for piece in pieces:
            yield piece


def _some(source: Iterator[object]) -> list[bytes]:
    pieces: list[bytes] = []
    for piece in islice(source, 16):
        if not isinstance(piece, bytes):
            raise SandboxConfigurationError(f"content: expected bytes, got {type(piece).__name__}")
        pieces.append(piece)
    return pieces
