"""This program's own standard streams, used from the event loop without ever blocking it."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import stat
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from enum import Enum

_PIECE = 64 * 1024


class Input(Enum):
    """What standard input is."""

    NOTHING = "nothing"
    TERMINAL = "terminal"
    DATA = "data"
    """A pipe, a file, a socket."""


def kind_of_input() -> Input:
    """Say what standard input is."""
    status = os.fstat(0)
    if os.isatty(0):
        # In the background, reading from the terminal would stop us.
        return Input.TERMINAL if os.tcgetpgrp(0) == os.getpgrp() else Input.NOTHING
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev:
        return Input.NOTHING
    return Input.DATA


async def input_pieces() -> AsyncGenerator[bytes]:
    """Yield standard input as it comes.

    No thread waits in read(2) for input that may never come, so a reader can stop at any
    time, and what it has not asked for is left to the next program.
    """
    while True:
        await _readable(0)
        try:
            data = os.read(0, _PIECE)
        except BlockingIOError:
            continue  # another program has taken it
        except OSError as exc:
            if exc.errno != errno.EIO:  # the terminal is gone, or another's now
                raise
            return
        if not data:
            return
        yield data


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # epoll takes no regular files, which are always ready
        await asyncio.sleep(0)
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


class Sink:
    """Standard output or error, written to byte for byte.

    A reader may be slow, as less(1) is. While it is, a thread waits in write(2), so that
    timeouts and Ctrl-C still work. The descriptor can't be made non-blocking instead: other
    programs share it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    async def write(self, data: bytes) -> None:
        """Write it all.

        Raises:
            BrokenPipeError: If nobody reads any more.
        """
        if self._would_not_block(len(data)):
            with suppress(BlockingIOError):
                data = data[os.write(self._descriptor, data) :]
        if data:
            await self._write_in_thread(data)

    def _would_not_block(self, size: int) -> bool:
        # What poll(2) promises of a pipe is room for PIPE_BUF bytes.
        return self._is_file or (size <= select.PIPE_BUF and bool(self._poll.poll(0)))

    async def _write_in_thread(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle(exc: OSError | None) -> None:
            if done.cancelled():
                return
            if exc is None:
                done.set_result(None)
            else:
                done.set_exception(exc)

        def work() -> None:
            error = None
            try:
                _write_all(self._descriptor, data)
            except OSError as exc:
                error = exc
            with suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(settle, error)

        # A daemon, as an executor's thread would be waited for at exit.
        threading.Thread(target=work, daemon=True).start()
        await done


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


def sinks() -> dict[str, Sink]:
    """Return standard output and error by the names of a command's streams."""
    sys.stdout.flush()
    return {"stdout": Sink(1), "stderr": Sink(2)}
