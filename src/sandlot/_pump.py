"""Reading an asynchronous iterator for a reader that blocks, in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from sandlot._exec import to_the_end

_log = logging.getLogger("sandlot")

_AHEAD = 16
"""Items that a stream is read ahead of its reader."""

T = TypeVar("T")


class Pump(Generic[T]):
    """Reads an asynchronous iterator ahead of its reader, in a task of its own.

    The task stands in ``running`` while it runs: were the pump all that knows of it, both
    could be collected together, and the source would not be closed.
    """

    def __init__(self, source: AsyncIterator[T], running: set[asyncio.Task[None]]) -> None:
        self._source = source
        self._running = running
        self._items: list[T] = []
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def is_open(self) -> bool:
        """Whether the source has been begun, and has neither ended nor is being closed."""
        return self._reading is not None and not self._reading.done() and not self._closing

    async def batch(self) -> list[T]:
        """Return what has come, waiting for at least one item; an empty list at the end."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
            self._running.add(self._reading)
            self._reading.add_done_callback(self._ended)
        try:
            await self._filled.wait()
        except asyncio.CancelledError:
            await to_the_end(self.close())
            raise
        items, self._items = self._items, []
        self._room.set()
        if not items:
            await self._reading
        elif not self._reading.done():
            self._filled.clear()
        return items

    async def close(self) -> None:
        """Stop reading and close the source."""
        if self._reading is None or self._reading.done():
            return
        self._closing = True
        self._reading.cancel()
        await asyncio.wait({self._reading})
        if not self._reading.cancelled():
            self._reading.result()

    async def _read(self) -> None:
        try:
            async for item in self._source:
                self._items.append(item)
                self._filled.set()
                if len(self._items) >= _AHEAD:
                    self._room.clear()
                    await self._room.wait()
        finally:
            try:
                if aclose := getattr(self._source, "aclose", None):
                    await aclose()
            finally:
                self._filled.set()

    def _ended(self, reading: asyncio.Task[None]) -> None:
        self._running.discard(reading)
        if not reading.cancelled():
            reading.exception()  # seen, in case that the reader stopped before it came to it


async def close_forgotten(pump: Pump[Any]) -> None:
    """Close the pump of a reader that nobody holds any more."""
    try:
        await pump.close()
    except Exception:  # noqa: BLE001  (a source may raise anything, and there is nobody to tell)
        _log.warning("closing a forgotten stream failed", exc_info=True)
