"""Where a backend puts a command's output, and where it is read from."""

from __future__ import annotations

import asyncio
import codecs
from collections import deque
from collections.abc import AsyncGenerator, Callable

from sandlot.types import DEFAULT_MAX_OUTPUT_BYTES, Captured, Chunk, StreamName

_HIGH_WATER = 1024 * 1024
"""How far a reader may lag behind before the command is made to wait for it."""


class _HeadTail:
    """The first and the last bytes of a stream, and its size; memory stays within a limit."""

    __slots__ = ("_head", "_head_room", "_tail", "_tail_limit", "_tail_size", "size")

    def __init__(self, limit: int) -> None:
        self._tail_limit = limit // 2
        self._head_room = limit - self._tail_limit
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.size = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        if self._head_room:
            self._head.append(data[: self._head_room])
            data, self._head_room = (
                data[self._head_room :],
                max(0, self._head_room - len(data)),
            )
        if data:
            self._tail.append(data)
            self._tail_size += len(data)
            while self._tail_size - len(self._tail[0]) >= self._tail_limit:
                self._tail_size -= len(self._tail.popleft())

    def captured(self) -> Captured:
        tail = b"".join(self._tail)
        excess = len(tail) - self._tail_limit
        return Captured(b"".join(self._head), tail[excess:] if excess > 0 else tail, self.size)


class Output:
    """The output of one command: fed by its backend, read by `chunks`, kept for the result.

    A backend calls `feed` with what arrives and `close` at the end, all in the event loop's
    thread. What is kept for the result never holds the command up. Only a reader that has
    begun to read and lags does: then `full` is true, and the backend should stop reading
    from the command until the callback it gave to `when_room` is called.
    """

    def __init__(
        self, max_bytes: int = DEFAULT_MAX_OUTPUT_BYTES, *, streaming: bool = False
    ) -> None:
        self._kept = {"stdout": _HeadTail(max_bytes), "stderr": _HeadTail(max_bytes)}
        self._pending = _Pending(max_bytes) if streaming else None
        self._reading = False
        self._closed = False
        self._wake: asyncio.Event | None = None
        self._when_room: list[Callable[[], object]] = []

    def feed(self, stream: StreamName, data: bytes) -> None:
        """Take what the command has printed."""
        self._kept[stream].add(data)
        if self._pending is not None and not self._closed:
            self._pending.add(stream, data, may_drop=not self._reading)
            self._notify()

    def close(self) -> None:
        """Say that no more output will come."""
        self._closed = True
        self._notify()

    @property
    def full(self) -> bool:
        """Whether a reader lags so far behind that the command should wait."""
        return self._reading and self._pending is not None and self._pending.size > _HIGH_WATER

    def when_room(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once, when `full` is no longer true."""
        self._when_room.append(callback)

    def captured(self, stream: StreamName) -> Captured:
        """Return what has been kept of a stream so far."""
        return self._kept[stream].captured()

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield the output as it arrives, from its beginning. Only one reader at a time."""
        if self._pending is None or self._reading:
            raise RuntimeError("this output is not for reading, or is being read already")
        decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in self._kept}
        self._reading = True
        try:
            while True:
                while item := self._pending.take():
                    stream, data, dropped = item
                    self._tell_room()
                    yield Chunk(stream, data, decoders[stream].decode(data), dropped)
                if self._closed:
                    break
                self._wake = asyncio.Event()
                await self._wake.wait()
            for name, decoder in decoders.items():
                if rest := decoder.decode(b"", final=True):
                    yield Chunk("stderr" if name == "stderr" else "stdout", b"", rest)
        finally:
            self._reading = False
            self._tell_room()

    def _notify(self) -> None:
        if self._wake is not None:
            self._wake.set()

    def _tell_room(self) -> None:
        if self._when_room and not self.full:
            callbacks, self._when_room = self._when_room, []
            for callback in callbacks:
                callback()


class _Pending:
    """Output that waits for a reader; while none has come, the middle may be dropped."""

    __slots__ = ("_dropped", "_head", "_head_limit", "_head_size", "_limit", "_tail", "size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head_limit = limit // 2
        self._head: deque[tuple[StreamName, bytes]] = deque()
        self._tail: deque[tuple[StreamName, bytes]] = deque()
        self._head_size = 0
        self._dropped = 0
        self.size = 0

    def add(self, stream: StreamName, data: bytes, *, may_drop: bool) -> None:
        to_head = not self._tail and self._head_size < self._head_limit
        (self._head if to_head else self._tail).append((stream, data))
        self._head_size += len(data) if to_head else 0
        self.size += len(data)
        while may_drop and self.size > self._limit and len(self._tail) > 1:
            _, lost = self._tail.popleft()
            self.size -= len(lost)
            self._dropped += len(lost)

    def take(self) -> tuple[StreamName, bytes, int] | None:
        if self._head:
            stream, data = self._head.popleft()
            self._head_size -= len(data)
            self.size -= len(data)
            return stream, data, 0
        if self._tail:
            stream, data = self._tail.popleft()
            self.size -= len(data)
            dropped, self._dropped = self._dropped, 0
            return stream, data, dropped
        return None
