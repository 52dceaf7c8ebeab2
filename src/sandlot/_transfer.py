"""Moving files and trees between this machine and a sandbox.

A tree goes as one tar stream, or file by file where the sandbox has no tar; data passes in
pieces. Disk I/O runs in one thread per transfer, a job at a time: so what a cancelled job
has opened is closed by the next. Failures of this machine are plain `OSError` with a path of
this machine; failures of the sandbox are `SandboxError`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeAlias, TypeVar

from sandlot._archive import DEFAULT_LIMITS, PIECE, Extractor, Limits, pack
from sandlot._exec import to_the_end
from sandlot._tree import NewFile, Tree, naming, walk
from sandlot.errors import FeatureNotSupportedError, SandboxError, UnsafeArchiveError
from sandlot.operation import notice
from sandlot.types import FileInfo

if TYPE_CHECKING:
    from sandlot.contract import Handle

HostPath: TypeAlias = str | os.PathLike[str]
TransferMethod: TypeAlias = Literal["auto", "tar", "per_file"]
OnProgress: TypeAlias = Callable[[int, int], object]
"""Called with the files and the bytes moved so far."""

P = ParamSpec("P")
T = TypeVar("T")


# -------------------------------------------------------------------- files


async def upload_file(handle: Handle, local: HostPath, remote: str) -> None:
    """Copy a file into the sandbox, its executable bits included."""
    async with _Thread() as thread:
        await _send(handle, _host_path(local), remote, thread, _Tally())


async def download_file(handle: Handle, remote: str, local: HostPath) -> None:
    """Copy a file out of the sandbox; ``local`` appears, or is replaced, when it is whole."""
    async with _Thread() as thread:
        file = await thread.run(_destination, _host_path(local))
        try:
            await thread.run(file.open)
            async with _ending(handle.read_stream(remote)) as pieces:
                async for piece in pieces:
                    await thread.run(file.write, piece)
            await thread.run(file.commit)
        finally:
            await to_the_end(thread.run(file.discard))


# -------------------------------------------------------------------- trees


async def upload_dir(
    handle: Handle,
    local: HostPath,
    remote: str,
    *,
    method: TransferMethod = "auto",
    on_progress: OnProgress | None = None,
) -> int:
    """Copy what a directory holds into a directory of the sandbox, which is made if need be.

    Symbolic links, empty directories and executable bits are kept; pipes, sockets and
    devices are left out, with a notice.

    Returns:
        The number of files and links.
    """
    root = _host_path(local)
    async with _Thread() as thread:
        await thread.run(_check_directory, root)
        await handle.make_dir(remote)
        if method != "per_file":
            try:
                return await _upload_tar(handle, root, remote, thread, _Tally(on_progress))
            except FeatureNotSupportedError:
                if method == "tar":
                    raise
        return await _upload_each(handle, root, remote, thread, _Tally(on_progress))


async def download_dir(
    handle: Handle,
    remote: str,
    local: HostPath,
    *,
    method: TransferMethod = "auto",
    on_progress: OnProgress | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> int:
    """Copy what a directory of the sandbox holds into a directory, which is made if need be.

    Returns:
        The number of files and links.

    Raises:
        UnsafeArchiveError: If something would have been written outside ``local``.
    """
    root = _host_path(local)
    async with _Thread() as thread:
        if method != "per_file":
            tally = _Tally(on_progress)
            try:
                return await _download_tar(handle, remote, root, limits, thread, tally)
            except FeatureNotSupportedError:
                if method == "tar":
                    raise
        return await _download_each(handle, remote, root, limits, thread, _Tally(on_progress))


async def _upload_tar(
    handle: Handle, root: str, remote: str, thread: _Thread, tally: _Tally
) -> int:
    packed = pack(root, on_file=tally.count, on_skip=partial(_tell_skipped, handle))
    async with _reading(thread, partial(next, packed, b""), packed.close, tally) as pieces:
        await handle.upload_tar(remote, pieces)
    return tally.files


async def _download_tar(
    handle: Handle, remote: str, root: str, limits: Limits, thread: _Thread, tally: _Tally
) -> int:
    extractor = Extractor(root, limits, partial(_tell_skipped, handle))
    try:
        async with _ending(handle.download_tar(remote)) as pieces:
            async for piece in pieces:
                await thread.run(extractor.feed, piece)
                tally.files = extractor.report.files
                tally.moved(len(piece))
        return (await thread.run(extractor.finish)).files
    finally:
        await to_the_end(thread.run(extractor.close))


async def _upload_each(
    handle: Handle, root: str, remote: str, thread: _Thread, tally: _Tally
) -> int:
    tell_skipped = partial(_tell_skipped, handle)
    entries = walk(root, tell_skipped)
    while (entry := await thread.run(next, entries, None)) is not None:
        path = posixpath.join(remote, entry.name)
        try:
            if entry.is_dir:
                await handle.make_dir(path)
            elif entry.is_link:
                await handle.link(path, await thread.run(os.readlink, entry.path))
                tally.file()
            else:
                await _send(handle, entry.path, path, thread, tally)
        except FileNotFoundError as exc:
            if isinstance(exc, SandboxError):
                raise
            tell_skipped(entry.path, "it has vanished")
    return tally.files


async def _download_each(
    handle: Handle, remote: str, root: str, limits: Limits, thread: _Thread, tally: _Tally
) -> int:
    tree = Tree(root)
    found = 0
    pending = [""]
    try:
        while pending:
            below = pending.pop()
            infos = await handle.list_dir(posixpath.join(remote, below) if below else remote)
            await thread.run(tree.make_dir, below)
            for info in infos:
                name = posixpath.join(below, _checked_name(info))
                path = posixpath.join(remote, name)
                found += 1
                limits.check(name, found, tally.bytes)
                if info.is_dir:
                    await thread.run(tree.make_dir, name, info.mode or 0o777)
                    pending.append(name)
                elif info.is_file:
                    await thread.run(tree.begin, name, info.mode or 0o666)
                    async with _ending(handle.read_stream(path)) as pieces:
                        async for piece in pieces:
                            tally.moved(len(piece))
                            limits.check(name, found, tally.bytes)
                            await thread.run(tree.write, piece)
                    await thread.run(tree.commit, info.modified or None)
                    tally.file()
                elif info.target is not None:
                    await thread.run(tree.symlink, name, info.target)
                    tally.file()
                else:
                    _tell_skipped(handle, path, "it is not a file, directory or known link")
        return tally.files
    finally:
        await to_the_end(thread.run(tree.close))


def _checked_name(info: FileInfo) -> str:
    if info.name in ("", ".", ".."):
        raise UnsafeArchiveError(f"the sandbox lists a file under the name {info.path[:200]!r}")
    return info.name


# -------------------------------------------------------------- this machine


async def _send(handle: Handle, local: str, remote: str, thread: _Thread, tally: _Tally) -> None:
    file = _LocalFile(local)
    async with _reading(thread, file.read, file.close, tally) as pieces:
        mode = await thread.run(file.open)
        await handle.write_stream(remote, pieces)
    if mode & 0o111:
        await handle.set_mode(remote, mode & 0o777)
    tally.file()


class _LocalFile:
    """A file to be read in pieces, each of which is a job for a thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1

    def open(self) -> int:
        """Open it, and return its permission bits."""
        self._fd = os.open(self._path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        mode = os.fstat(self._fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._path)
        return stat.S_IMODE(mode)

    def read(self) -> bytes:
        with naming(self._path):
            return os.read(self._fd, PIECE)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _destination(path: str) -> NewFile:
    """Return what to write a download into: a link's target, and a device as it is."""
    with suppress(FileNotFoundError):
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            return NewFile(path, in_place=True)
    return NewFile(os.path.realpath(path), path=path)


def _check_directory(path: str) -> None:
    if not stat.S_ISDIR(os.stat(path).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)


def _host_path(path: HostPath) -> str:
    return os.path.expanduser(os.fspath(path))


# ------------------------------------------------------------------ plumbing


class _Thread:
    """One thread, in which jobs run one after the other, also those nobody waits for."""

    async def __aenter__(self) -> _Thread:
        self._executor = ThreadPoolExecutor(1, "sandlot-transfer")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._executor.shutdown(wait=False)

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        call = partial(copy_context().run, job, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


class _Tally:
    """Counts what has been moved, and tells."""

    def __init__(self, on_progress: OnProgress | None = None) -> None:
        self.files = 0
        self.bytes = 0
        self._on_progress = on_progress

    def moved(self, size: int) -> None:
        self.bytes += size
        self._tell()

    def file(self) -> None:
        self.files += 1
        self._tell()

    def count(self, path: str) -> None:
        """Count a file in the transfer's thread; the next piece tells."""
        self.files += 1

    def _tell(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.files, self.bytes)


@asynccontextmanager
async def _reading(
    thread: _Thread, read: Callable[[], bytes], close: Callable[[], object], tally: _Tally
) -> AsyncGenerator[AsyncIterator[bytes], None]:
    """Let a backend have pieces of this machine, and raise this machine's failures as such.

    They arise inside the backend's call, which may take them for its own and wrap them.
    """
    failures: list[Exception] = []

    async def pieces() -> AsyncIterator[bytes]:
        try:
            while piece := await thread.run(read):
                tally.moved(len(piece))
                yield piece
        except Exception as exc:
            failures.append(exc)
            raise

    try:
        async with _ending(pieces()) as source:
            yield source
    except Exception as exc:
        if failures and exc is not failures[0]:
            raise failures[0] from None
        raise
    finally:
        await to_the_end(thread.run(close))
    if failures:
        raise failures[0]


@asynccontextmanager
async def _ending(pieces: AsyncIterator[bytes]) -> AsyncGenerator[AsyncIterator[bytes], None]:
    """End an iterator when done with it, rather than when it is found as garbage."""
    try:
        yield pieces
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()


def _tell_skipped(handle: Handle, path: str, reason: str) -> None:
    notice("transfer.skipped", handle.backend, handle.id, path=path, reason=reason)
