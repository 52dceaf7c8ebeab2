"""The ends of a command's pipes that we hold, moved by the event loop."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from weakref import WeakSet

from sandlot._output import Output
from sandlot.contract import broken_stdin
from sandlot.types import StreamName

_PIECE = 64 * 1024
"""The default capacity of a pipe; larger reads gain nothing."""
_TURN = 16
"""Pieces read before the loop may see to others."""


_open: WeakSet[PipeReader | PipeWriter] = WeakSet()


def _let_go_of_all() -> None:
    """Close the parent's ends in a forked child, where no command should wait for them.

    The loop is the parent's and stays untouched.
    """
    for pipe in list(_open):
        pipe.let_go()


os.register_at_fork(after_in_child=_let_go_of_all)


class PipeReader:
    """Moves what a command prints into its `Output`.

    Once the command has ended, what its background children still print is read and
    thrown away: they must neither hold the result up nor die of a closed pipe.
    """

    def __init__(self, descriptor: int, outputs: list[Output], stream: StreamName) -> None:
        """Begin to read; ``outputs`` may grow and shrink meanwhile."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._outputs = outputs
        self._stream: StreamName = stream
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._ready)
        _open.add(self)

    def finish(self) -> None:
        """Take what the ended command has left in the pipe, and discard what comes later."""
        for _ in range(_TURN):  # a pipe holds less; a child may fill it as fast as we read
            if self._descriptor < 0 or not self._read():
                break
        self._outputs = []
        self._resume()

    def close(self) -> None:
        """Close the pipe; idempotent."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            self.let_go()

    def let_go(self) -> None:
        """Close the descriptor alone; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def closed(self) -> bool:
        """Whether the other end is closed by all who held it."""
        return self._descriptor < 0

    def _ready(self) -> None:
        for _ in range(_TURN):
            if not self._read():
                return
            for output in self._outputs:
                if output.full:
                    self._loop.remove_reader(self._descriptor)
                    output.when_room(self._resume)
                    return

    def _resume(self) -> None:
        if self._descriptor >= 0:
            self._loop.add_reader(self._descriptor, self._ready)

    def _read(self) -> bool:
        """Read a piece; return whether there may be more at once."""
        try:
            data = os.read(self._descriptor, _PIECE)
        except BlockingIOError:
            return False
        except OSError as exc:
            if exc.errno != errno.EIO:  # a terminal whose other end is closed
                raise
            data = b""
        if not data:
            self.close()
            return False
        for output in self._outputs:
            output.feed(self._stream, data)
        return True


class PipeWriter:
    """Feeds a command its input as fast as it takes it."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._waiting: deque[memoryview] = deque()
        self._drained: asyncio.Future[None] | None = None
        self._close_when_done = False
        self._loop = asyncio.get_running_loop()
        _open.add(self)

    def feed(self, data: bytes) -> None:
        """Write without waiting; what the command does not take yet is kept."""
        if not self.broken and data:
            self._waiting.append(memoryview(data))
            self._push()

    async def write(self, data: bytes) -> None:
        """Write and wait until the command has taken it, or the pipe at least."""
        if self.broken or self._close_when_done:
            raise broken_stdin()
        self.feed(data)
        while self._waiting:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)
        if self.broken:
            raise broken_stdin()

    def close_when_done(self) -> None:
        """Close once everything is written."""
        self._close_when_done = True
        if not self._waiting:
            self.close()

    def close(self) -> None:
        """Close now, and forget what is not written; idempotent."""
        if self._descriptor >= 0:
            self._loop.remove_writer(self._descriptor)
            self.let_go()
        self._waiting.clear()
        self._wake()

    def let_go(self) -> None:
        """Close the descriptor alone; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def broken(self) -> bool:
        """Whether nothing can be written any more."""
        return self._descriptor < 0

    def _push(self) -> None:
        try:
            while self._waiting:
                piece = self._waiting[0]
                written = os.write(self._descriptor, piece)
                if written < len(piece):
                    self._waiting[0] = piece[written:]
                else:
                    self._waiting.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._descriptor, self._push)
            return
        except OSError:  # the command ended, or closed its input: it has had enough
            self.close()
            return
        self._loop.remove_writer(self._descriptor)
        self._wake()
        if self._close_when_done:
            self.close()

    def _wake(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None
