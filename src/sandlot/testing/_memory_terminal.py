"""A simulated terminal: a line discipline between who types and the processes at it."""

from __future__ import annotations

import asyncio
import signal as signals
from collections.abc import Callable

from sandlot.testing._memory_kernel import BLOCK, Pipe, Sink

_INTERRUPT, _END_OF_FILE = b"\x03", b"\x04"


class Terminal:
    r"""A terminal in its ordinary mode: lines, echo, ``\r\n`` on output, ^C and ^D."""

    def __init__(self, cols: int, rows: int, screen: Sink) -> None:
        self.cols = cols
        self.rows = rows
        self.echo = True
        self.on_signal: Callable[[int], object] = lambda _number: None
        self._screen = screen
        self._lines = Pipe()
        self._line = bytearray()
        self._lines.writer.opened()

    def opened(self) -> None:
        """Count one more holder."""
        self._lines.reader.opened()
        self._screen.opened()

    def closed(self) -> None:
        """Count one holder less."""
        self._lines.reader.closed()
        self._screen.closed()

    async def read(self, size: int = BLOCK) -> bytes:
        """Return what was typed, a line at the earliest."""
        return await self._lines.reader.read(size)

    async def write(self, data: bytes) -> None:
        """Show on the screen."""
        await self._screen.write(data.replace(b"\n", b"\r\n"))

    async def type(self, data: bytes) -> None:
        """Take what is typed."""
        for byte in data:
            key = b"\n" if byte == 13 else bytes([byte])
            if key == _INTERRUPT:
                self._line.clear()
                await self._echo(b"^C\n")
                self.on_signal(signals.SIGINT)
            elif key == _END_OF_FILE:
                await self._end_of_file()
            else:
                await self._echo(key)
                self._line += key
                if key == b"\n":
                    await self._pass_on()
        await asyncio.sleep(0)

    async def hang_up(self) -> None:
        """Let readers see the end of input."""
        await self._end_of_file()

    def resize(self, cols: int, rows: int) -> None:
        """Take a new size and tell the processes."""
        self.cols, self.rows = cols, rows
        self.on_signal(signals.SIGWINCH)

    async def _echo(self, key: bytes) -> None:
        if self.echo:
            await self.write(key)

    async def _pass_on(self) -> None:
        line, self._line = bytes(self._line), bytearray()
        await self._lines.writer.write(line)

    async def _end_of_file(self) -> None:
        if self._line:
            await self._pass_on()
        elif self._lines.writer.holders:
            self._lines.writer.closed()
