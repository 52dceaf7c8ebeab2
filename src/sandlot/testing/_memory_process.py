"""A command that runs in a simulated sandbox, as Sandlot holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sandlot._output import Output
from sandlot.contract import ProcessHandle, broken_stdin
from sandlot.errors import SandboxNotFoundError
from sandlot.testing._memory_kernel import (
    BrokenPipe,
    Descriptors,
    DevNull,
    Pace,
    Pipe,
    Process,
    Sink,
)
from sandlot.testing._memory_terminal import Terminal
from sandlot.types import Command, Exit


class MemoryProcess(ProcessHandle):
    """A simulated process and the ends of its pipes that are outside."""

    def __init__(
        self, command: Command, output: Output, pace: Pace, sandbox_gone: Callable[[], bool]
    ) -> None:
        self._command = command
        self._sinks = Sink("stdout", pace), Sink("stderr", pace)
        self._outputs: list[Output] = []
        self._sandbox_gone = sandbox_gone
        self._killed_by_end = False
        self._feeder: asyncio.Task[None] | None = None
        self._stdin: Pipe | None = None
        self._terminal: Terminal | None = None
        self._process: Process
        if command.pty is not None:
            self._terminal = Terminal(command.pty.cols, command.pty.rows, self._sinks[0])
        elif command.stdin is not None or command.keep_stdin_open:
            self._stdin = Pipe()
            self._stdin.writer.opened()
        self.listen(output)

    @property
    def descriptors(self) -> Descriptors:
        """What the process has as standard input, output and error."""
        if self._terminal is not None:
            return dict.fromkeys(range(3), self._terminal)
        stdin = DevNull() if self._stdin is None else self._stdin.reader
        return {0: stdin, 1: self._sinks[0], 2: self._sinks[1]}

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.ended.done()

    def attach(self, process: Process) -> None:
        """Take the process that has been started for the command."""
        self._process = process
        self.pid = process.pid
        self.id = str(process.pid)
        process.ended.add_done_callback(lambda _future: self._finish())
        if self._terminal is not None:
            kernel, group = process.kernel, process.group
            self._terminal.on_signal = lambda number: kernel.signal_group(group, number)
        if self._command.stdin is not None:
            self._feeder = asyncio.create_task(self._feed(self._command.stdin))

    def listen(self, output: Output) -> None:
        """Let one more hear what it prints from now on."""
        self._outputs.append(output)
        for sink in self._sinks:
            sink.listeners.append(output)

    async def wait(self) -> Exit:
        """Wait until it ends."""
        ended = await asyncio.shield(self._process.ended)
        if self._killed_by_end:
            raise SandboxNotFoundError("the sandbox ended while the command ran")
        return ended

    async def kill(self) -> None:
        """Kill all that came of the command, unless it has ended."""
        if not self.ended:
            await self._process.kernel.kill_job(self._process.job)

    async def signal(self, number: int) -> None:
        """Send a signal to its group."""
        self._process.kernel.signal_group(self._process.group, number)
        await asyncio.sleep(0)

    async def write_stdin(self, data: bytes) -> None:
        """Write to its input."""
        if self.ended:
            raise broken_stdin()
        if self._terminal is not None:
            await self._terminal.type(data)
        elif self._stdin is not None:
            if not self._stdin.writer.holders:
                raise broken_stdin()
            try:
                await self._stdin.writer.write(data)
            except BrokenPipe:
                raise broken_stdin() from None

    async def close_stdin(self) -> None:
        """Let it see the end of its input."""
        if self._terminal is not None:
            await self._terminal.hang_up()
        elif self._stdin is not None and self._stdin.writer.holders:
            self._stdin.writer.closed()

    async def resize(self, cols: int, rows: int) -> None:
        """Give its terminal a new size."""
        if self._terminal is not None:
            self._terminal.resize(cols, rows)

    async def _feed(self, data: bytes) -> None:
        try:
            await self.write_stdin(data)
        except ConnectionError:
            return  # a program need not read its input
        if not self._command.keep_stdin_open:
            await self.close_stdin()

    def _finish(self) -> None:
        self._killed_by_end = self._sandbox_gone()
        if self._feeder is not None:
            self._feeder.cancel()
        for sink in self._sinks:
            sink.detach()
        for output in self._outputs:
            output.close()
