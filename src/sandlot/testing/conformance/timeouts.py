"""Commands whose time runs out, and signals."""

from __future__ import annotations

import asyncio
import signal

import pytest

from sandlot.capabilities import Capability
from sandlot.errors import SandboxTimeoutError
from sandlot.sandbox import AsyncSandbox
from sandlot.testing.conformance.base import (
    Behaviours,
    beating,
    beats,
    requires,
    size,
)

_SHORT = 1.5


class Timeouts(Behaviours):
    """Commands whose time runs out, and signals."""

    async def test_a_timeout_keeps_what_was_printed(self, sb: AsyncSandbox) -> None:
        """Both streams, up to the end of its time."""
        result = await sb.execute_command("echo out; echo err >&2; sleep 600", timeout=_SHORT)
        assert (result.stdout, result.stderr) == ("out\n", "err\n")

    async def test_a_timeout_is_told_by_the_result(self, sb: AsyncSandbox) -> None:
        """``timed_out`` is set, the exit code is 124, and the call is back in time."""
        async with asyncio.timeout(_SHORT + self.patience):
            result = await sb.execute_command("sleep 600", timeout=_SHORT)
        assert result.timed_out
        assert result.exit_code == 124
        assert result.duration >= _SHORT
        assert not result.ok

    async def test_a_timeout_of_code_is_told_as_well(self, sb: AsyncSandbox) -> None:
        """Code is bounded as commands are."""
        result = await sb.execute_code("echo begun; sleep 600", "sh", timeout=_SHORT)
        assert (result.timed_out, result.stdout) == (True, "begun\n")

    async def test_a_program_may_exit_with_124_itself(self, sb: AsyncSandbox) -> None:
        """Its exit code alone makes no timeout."""
        result = await sb.execute_command("exit 124", timeout=60)
        assert (result.exit_code, result.timed_out) == (124, False)

    async def test_a_command_that_ends_in_time_is_not_timed_out(self, sb: AsyncSandbox) -> None:
        """A limit that is not reached changes nothing."""
        result = await sb.execute_command("echo quick", timeout=60)
        assert (result.stdout, result.exit_code, result.timed_out) == ("quick\n", 0, False)

    async def test_check_raises_a_timeout_with_what_was_printed(self, sb: AsyncSandbox) -> None:
        """The error is a TimeoutError, and holds the result."""
        with pytest.raises(TimeoutError) as caught:
            await sb.execute_command("echo begun; sleep 600", timeout=_SHORT, check=True)
        assert isinstance(caught.value, SandboxTimeoutError)
        assert caught.value.result is not None
        assert caught.value.result.stdout == "begun\n"

    async def test_a_timeout_kills_the_children(self, sb: AsyncSandbox) -> None:
        """A child in the background does not live on."""
        await self._dies(sb, f"({beating('beat')}) & sleep 600")

    async def test_a_timeout_kills_grandchildren_in_pipes(self, sb: AsyncSandbox) -> None:
        """Nor does what a child has started."""
        await self._dies(sb, f"sh -c 'sh -c \"{beating('beat')}\" | cat' | cat")

    async def test_a_timeout_kills_what_left_its_session(self, sb: AsyncSandbox) -> None:
        """Setsid is no way out."""
        await self._dies(sb, f"setsid sh -c '{beating('beat')}' & sleep 600")

    async def test_a_timeout_kills_daemons(self, sb: AsyncSandbox) -> None:
        """Nor is losing one's parent as well, and closing all that was open."""
        daemon = f"setsid sh -c '{beating('beat')}' >/dev/null 2>&1 </dev/null &"
        await self._dies(sb, f"({daemon}) ; sleep 600")

    async def test_a_timeout_kills_what_ignores_signals(self, sb: AsyncSandbox) -> None:
        """SIGTERM need not be obeyed; SIGKILL is."""
        await self._dies(sb, f"trap '' TERM INT HUP; {beating('beat')}")

    async def _dies(self, sandbox: AsyncSandbox, line: str) -> None:
        """Assert that a command beats while it runs, and no more once its time is over."""
        async with asyncio.timeout(_SHORT + self.patience):
            result = await sandbox.execute_command(line, timeout=_SHORT)
        assert result.timed_out
        assert await size(sandbox, "beat"), "it never ran"
        assert not await beats(sandbox, "beat"), "it lives on"

    async def test_a_timeout_leaves_the_sandbox_alone(self, sb: AsyncSandbox) -> None:
        """It ends the command, not the place where it ran, nor its files."""
        result = await sb.execute_command("echo kept > file; sleep 600", timeout=_SHORT)
        assert result.timed_out
        assert sb.is_alive
        assert (await sb.execute_command("cat file")).stdout == "kept\n"

    async def test_a_timeout_leaves_other_commands_alone(self, sb: AsyncSandbox) -> None:
        """What runs beside it goes on, in the foreground or the background."""
        await sb.execute_command(f"({beating('background')}) >/dev/null 2>&1 &")
        other = asyncio.ensure_future(sb.execute_command(beating("other")))
        try:
            await self.until_beating(sb, "background", "other")
            assert (await sb.execute_command("sleep 600", timeout=_SHORT)).timed_out
            assert await beats(sb, "other")
            assert await beats(sb, "background")
        finally:
            other.cancel()

    @requires(Capability.STREAM)
    async def test_a_started_process_is_bounded_as_well(self, sb: AsyncSandbox) -> None:
        """``start(timeout=)`` kills it, and says so in the result."""
        process = await sb.start(f"echo begun; ({beating('beat')}) & sleep 600", timeout=_SHORT)
        async with asyncio.timeout(_SHORT + self.patience):
            result = await process.wait()
        assert (result.timed_out, result.exit_code) == (True, 124)
        assert result.stdout == "begun\n"
        assert await size(sb, "beat")
        assert not await beats(sb, "beat")

    @requires(Capability.STREAM)
    async def test_a_stream_is_bounded_as_well(self, sb: AsyncSandbox) -> None:
        """``stream(timeout=)`` ends; with ``check`` it raises."""
        texts: list[str] = []

        async def read() -> None:
            async for chunk in sb.stream("echo begun; sleep 600", timeout=_SHORT, check=True):
                texts.append(chunk.text)

        async with asyncio.timeout(_SHORT + self.patience):
            with pytest.raises(SandboxTimeoutError):
                await read()
        assert "".join(texts) == "begun\n"

    async def test_a_signal_that_ends_a_command_is_told(self, sb: AsyncSandbox) -> None:
        """The exit code is 128 + n, and ``signal`` is n."""
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT):
            # A shell of its own: one that was asked to run a line may be in a wrapper's care.
            result = await sb.execute_command(["sh", "-c", f"kill -{int(number)} $$"])
            assert (result.exit_code, result.signal) == (128 + number, number)
            assert not result.timed_out
