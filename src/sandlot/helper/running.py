"""A command that a helper runs, as its client sees it."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, TypeVar

from sandlot.helper.protocol import Exited, FrameType, Scope, Stage

if TYPE_CHECKING:
    from sandlot.helper.client import HelperConnection

T = TypeVar("T")


class HelperError(OSError):
    """The helper could not do what it was asked.

    Attributes:
        stage: Where starting a command failed, if that is what was asked.
    """

    def __init__(self, errno: int, text: str = "", stage: Stage | None = None) -> None:
        super().__init__(errno, text or os.strerror(errno))
        self.stage = stage


class HelperCommand:
    """One command that the helper runs. Every future it gives is the caller's own."""

    __slots__ = ("_connection", "_error", "_exited", "_gone", "_waiters", "pid", "request_id")

    def __init__(self, connection: HelperConnection, request_id: int) -> None:
        self._connection = connection
        self._waiters: dict[FrameType, list[asyncio.Future[Any]]] = {}
        self._exited: Exited | None = None
        self._gone = False
        self._error: OSError | None = None
        self.request_id = request_id
        self.pid: int | None = None
        """Its leader's process id, once known."""

    def started(self) -> asyncio.Future[int]:
        """Return a future of its pid.

        It raises `HelperError` if it could not be started. For a quiet command it is done
        only at the exit.
        """
        return self._future(FrameType.STARTED, self.pid)

    def exited(self) -> asyncio.Future[Exited]:
        """Return a future of how its leader ended; raises as `started` does."""
        return self._future(FrameType.EXITED, self._exited)

    def gone(self) -> asyncio.Future[bool]:
        """Return a future that is done when no process of it is left."""
        return self._future(FrameType.GONE, self._gone or None)

    @property
    def helper_is_ending(self) -> bool:
        """Whether the helper kills everything, this included."""
        return self._connection.ending

    @property
    def is_gone(self) -> bool:
        """Whether no process of it is left, as far as is known."""
        return self._gone

    async def signal(self, number: int, scope: Scope = Scope.GROUP) -> int:
        """Send a signal; return how many groups or processes it went to (0: it has ended)."""
        return await self._connection.signal(self, number, scope)

    async def kill(self) -> None:
        """Kill all its processes, and return when they are gone."""
        await self._connection.kill(self)

    def _future(self, kind: FrameType, known: T | None) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._connection.loop.create_future()
        if known is not None:
            future.set_result(known)
        elif self._error is not None:
            fail(future, self._error)
        else:
            self._waiters.setdefault(kind, []).append(future)
        return future

    def _tell(self, kind: FrameType, value: object) -> None:
        for future in self._waiters.pop(kind, ()):
            if not future.done():
                future.set_result(value)

    # ------------------------------------------- what its connection hears of it
    def set_started(self, pid: int) -> None:
        """Its leader runs."""
        self.pid = pid
        if self._waiters:
            self._tell(FrameType.STARTED, pid)

    def set_exited(self, exited: Exited) -> None:
        """Its leader has ended."""
        if self.pid is None:
            self.set_started(exited.pid)
        self._exited = exited
        if self._waiters:
            self._tell(FrameType.EXITED, exited)

    def set_gone(self) -> None:
        """Nothing of it is left."""
        self._gone = True
        if self._waiters:
            self._tell(FrameType.GONE, True)

    def set_failed(self, error: OSError, *, gone: bool) -> None:
        """It could not be started (then it is gone), or nothing more will be heard of it."""
        if gone:
            self.set_gone()
        self._error = error
        for futures in self._waiters.values():
            for future in futures:
                fail(future, error)
        self._waiters.clear()


def fail(future: asyncio.Future[Any], error: OSError) -> None:
    """Let a future raise, quietly if nobody looks: the caller may have given up on it."""
    if not future.done():
        future.set_exception(error)
        future.exception()
