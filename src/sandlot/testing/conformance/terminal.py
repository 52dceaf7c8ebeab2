"""Commands at a terminal."""

from __future__ import annotations

import asyncio
import signal

import pytest

from sandlot.capabilities import Capability
from sandlot.errors import SandboxConfigurationError
from sandlot.process import AsyncProcess
from sandlot.sandbox import AsyncSandbox
from sandlot.testing.conformance.base import Behaviours, requires
from sandlot.types import PtySize


class Terminal(Behaviours):
    """Commands at a terminal."""

    async def test_a_plain_command_is_at_no_terminal(self, sb: AsyncSandbox) -> None:
        """So programs print no colours and ask no questions."""
        result = await sb.execute_command("[ -t 0 ] || [ -t 1 ] || [ -t 2 ] || echo none")
        assert result.stdout == "none\n"

    @requires(Capability.STREAM, Capability.PTY)
    async def test_a_terminal_is_one(self, sb: AsyncSandbox) -> None:
        """Input, output and errors are a terminal."""
        line = "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo terminal"
        assert await self._shown(await sb.start(line, pty=PtySize())) == "terminal\r\n"

    @requires(Capability.STREAM, Capability.PTY)
    async def test_all_that_is_shown_is_stdout(self, sb: AsyncSandbox) -> None:
        """A terminal has one screen."""
        async with await sb.start("echo out; echo err >&2", pty=PtySize()) as process:
            async with asyncio.timeout(self.patience):
                result = await process.wait()
        assert (result.stdout, result.stderr) == ("out\r\nerr\r\n", "")

    @requires(Capability.STREAM, Capability.PTY)
    async def test_a_terminal_has_the_size_asked_for(self, sb: AsyncSandbox) -> None:
        """Rows and columns."""
        process = await sb.start("stty size", pty=PtySize(cols=101, rows=33))
        assert await self._shown(process) == "33 101\r\n"

    @requires(Capability.STREAM, Capability.PTY)
    async def test_a_terminal_can_be_resized(self, sb: AsyncSandbox) -> None:
        """The program sees the new size."""
        line = "stty size; while [ ! -e go ]; do sleep 0.05; done; stty size"
        async with await sb.start(line, pty=PtySize(cols=80, rows=24)) as process:
            assert (await anext(process.chunks())).text == "24 80\r\n"
            await process.resize(cols=120, rows=40)
            await sb.write_file("go", b"")
            async with asyncio.timeout(self.patience):
                result = await process.wait()
        assert result.stdout == "24 80\r\n40 120\r\n"

    @requires(Capability.STREAM, Capability.PTY)
    async def test_what_is_typed_is_shown_and_read(self, sb: AsyncSandbox) -> None:
        """The terminal echoes the line, and the program gets it."""
        async with await sb.start('read x; echo "got=$x"', pty=PtySize()) as process:
            await process.write("hello\n")
            async with asyncio.timeout(self.patience):
                result = await process.wait()
        assert result.stdout == "hello\r\ngot=hello\r\n"

    @requires(Capability.STREAM, Capability.PTY)
    async def test_control_c_interrupts(self, sb: AsyncSandbox) -> None:
        """As it does at every terminal."""
        line = "echo ready; exec sleep 600"
        async with await sb.start(line, pty=PtySize()) as process:
            assert (await anext(process.chunks())).text == "ready\r\n"
            await asyncio.sleep(0.2)  # between the line and the sleep, an interrupt ends the shell
            await process.write("\x03")
            async with asyncio.timeout(self.patience):
                result = await process.wait()
        assert (result.exit_code, result.signal) == (130, signal.SIGINT)

    @requires(Capability.STREAM, Capability.PTY)
    async def test_control_d_ends_the_input(self, sb: AsyncSandbox) -> None:
        """A program that reads to the end is done."""
        async with await sb.start("cat >/dev/null; echo over", pty=PtySize()) as process:
            await process.write("line\n\x04")
            async with asyncio.timeout(self.patience):
                result = await process.wait()
        assert result.exit_code == 0
        assert result.stdout.endswith("over\r\n")

    @requires(Capability.STREAM)
    async def test_only_a_terminal_can_be_resized(self, sb: AsyncSandbox) -> None:
        """A process without one says so."""
        async with await sb.start("sleep 30") as process:
            with pytest.raises(SandboxConfigurationError):
                await process.resize(80, 24)

    async def _shown(self, process: AsyncProcess) -> str:
        async with process, asyncio.timeout(self.patience):
            return (await process.wait()).stdout
