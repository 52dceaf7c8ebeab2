"""Streams, running processes, and what is left in the background."""

from __future__ import annotations

import asyncio
import signal
import urllib.request
from contextlib import suppress

import pytest

from sandlot.capabilities import Capability
from sandlot.errors import CommandFailedError, SandboxNotFoundError, SandboxTimeoutError
from sandlot.sandbox import AsyncSandbox
from sandlot.testing.conformance.base import (
    Behaviours,
    bare,
    beating,
    beats,
    reading,
    requires,
    size,
)

_UNTIL_GO = "while [ ! -e go ]; do sleep 0.05; done"


class Processes(Behaviours):
    """Streams, running processes, and what is left in the background."""

    # ------------------------------------------------------------- background
    async def test_a_background_child_does_not_hold_the_command_up(self, sb: AsyncSandbox) -> None:
        """A command is over when it ends, also if a child has its pipes still open."""
        async with asyncio.timeout(self.patience):
            result = await sb.execute_command("sleep 600 & echo hi; echo lo >&2")
        assert (result.stdout, result.stderr, result.exit_code) == ("hi\n", "lo\n", 0)

    async def test_a_background_process_outlives_its_command(self, sb: AsyncSandbox) -> None:
        """A server that a command starts is there for the next."""
        await sb.execute_command(f"({beating('beat')}) >/dev/null 2>&1 &")
        await self.until_beating(sb, "beat")
        assert await beats(sb, "beat")

    async def test_a_background_process_may_go_on_printing(self, sb: AsyncSandbox) -> None:
        """That nobody listens any more does not kill it."""
        line = "while :; do echo noise; echo noise >&2; echo . >> beat; sleep 0.05; done"
        await sb.execute_command(f"({line}) &")
        await self.until_beating(sb, "beat")
        assert await beats(sb, "beat")

    @requires(Capability.EXPOSE)
    async def test_an_exposed_port_answers(self, sb: AsyncSandbox) -> None:
        """A server inside is reached from outside, by the address that expose_port gives."""
        port = await sb.expose_port(8765)
        await sb.write_file("site/index.html", "served from inside")
        server = "python3 -m http.server 8765 --directory site >/dev/null 2>&1 &"
        await sb.execute_command(server, check=True)
        request = urllib.request.Request(port.url, headers=dict(port.headers))

        def got() -> bytes:
            with urllib.request.urlopen(request, timeout=self.patience) as reply:
                return bytes(reply.read())

        async def answers() -> bool:
            with suppress(OSError):
                return await asyncio.to_thread(got) == b"served from inside"
            return False

        await self.until(answers, "an answer of the server inside")

    # ---------------------------------------------------------------- streams
    @requires(Capability.STREAM)
    async def test_output_arrives_while_the_command_runs(self, sb: AsyncSandbox) -> None:
        """What was printed is read before the command is allowed to go on."""
        async with asyncio.timeout(self.patience):
            async with reading(sb.stream(f"echo first; {_UNTIL_GO}; echo second")) as chunks:
                assert (await anext(chunks)).text == "first\n"
                await sb.write_file("go", b"")
                assert "".join([chunk.text async for chunk in chunks]) == "second\n"

    @requires(Capability.STREAM)
    async def test_chunks_tell_their_stream(self, sb: AsyncSandbox) -> None:
        """Both streams come in one, in the order they were printed when that can be told."""
        line = "echo 1; sleep 0.3; echo a >&2; sleep 0.3; echo 2"
        chunks = [(c.stream, c.text) async for c in sb.stream(line)]
        assert chunks == [("stdout", "1\n"), ("stderr", "a\n"), ("stdout", "2\n")]

    @requires(Capability.STREAM)
    async def test_a_reader_that_stops_early_kills_the_command(self, sb: AsyncSandbox) -> None:
        """With all its children."""
        async with reading(sb.stream(f"echo go; ({beating('beat')}) & sleep 600")) as chunks:
            async for _ in chunks:
                break
            await self.until_beating(sb, "beat")
        assert not await beats(sb, "beat")

    @requires(Capability.STREAM)
    async def test_a_failed_stream_raises_at_its_end(self, sb: AsyncSandbox) -> None:
        """With ``check``, after all output was given."""
        texts: list[str] = []

        async def read() -> None:
            async for chunk in sb.stream("echo out; exit 3", check=True):
                texts.append(chunk.text)

        with pytest.raises(CommandFailedError) as caught:
            await read()
        assert texts == ["out\n"]
        assert caught.value.exit_code == 3

    @requires(Capability.STREAM)
    async def test_a_slow_reader_makes_the_command_wait(self, sb: AsyncSandbox) -> None:
        """What is on the way is bounded, and goes on when the reader does."""
        line = "while :; do head -c 65536 /dev/zero; echo . >> beat; done"
        async with reading(sb.stream(line)) as chunks:
            await anext(chunks)

            async def resting() -> bool:
                return not await beats(sb, "beat")

            await self.until(resting, "the command to wait for its reader")
            before = await size(sb, "beat")
            async with asyncio.timeout(self.patience):
                while await size(sb, "beat") == before:
                    for _ in range(50):
                        await anext(chunks)

    # -------------------------------------------------------------- processes
    @requires(Capability.STREAM)
    async def test_a_started_command_runs_while_the_caller_goes_on(self, sb: AsyncSandbox) -> None:
        """Start returns before the command has ended; wait gives its result."""
        async with await sb.start(f"{_UNTIL_GO}; echo went; exit 4") as process:
            assert process.id
            await sb.write_file("go", b"")
            async with asyncio.timeout(self.patience):
                result = await process.wait()
        assert (result.stdout, result.exit_code) == ("went\n", 4)

    @requires(Capability.STREAM)
    async def test_waiting_twice_gives_the_same_result(self, sb: AsyncSandbox) -> None:
        """A result is not used up."""
        async with await sb.start("echo once; exit 2") as process:
            assert bare(await process.wait()) == bare(await process.wait())

    @requires(Capability.STREAM)
    async def test_two_can_wait_at_once(self, sb: AsyncSandbox) -> None:
        """And one that gives up takes nothing from the other."""
        async with await sb.start(f"{_UNTIL_GO}; exit 5") as process:
            one, other = (asyncio.ensure_future(process.wait()) for _ in range(2))
            await asyncio.sleep(0.1)
            one.cancel()
            await sb.write_file("go", b"")
            async with asyncio.timeout(self.patience):
                assert (await other).exit_code == 5

    @requires(Capability.STREAM)
    async def test_a_wait_that_is_over_leaves_the_command_running(self, sb: AsyncSandbox) -> None:
        """``wait(timeout=)`` bounds the wait, not the command."""
        async with await sb.start(beating("beat")) as process:
            await self.until_beating(sb, "beat")
            with pytest.raises(SandboxTimeoutError):
                await process.wait(timeout=0.2)
            assert await beats(sb, "beat")

    @requires(Capability.STREAM)
    async def test_output_is_kept_for_who_reads_late(self, sb: AsyncSandbox) -> None:
        """All of it can be read after the end, and the result has it as well."""
        async with await sb.start("echo early; echo err >&2") as process:
            result = await process.wait()
            chunks = sorted([(c.stream, c.text) async for c in process])
        assert chunks == [("stderr", "err\n"), ("stdout", "early\n")]
        assert (result.stdout, result.stderr) == ("early\n", "err\n")

    @requires(Capability.STREAM)
    async def test_kill_ends_all_that_came_of_it(self, sb: AsyncSandbox) -> None:
        """Children and those who left the session; and the result says that it was killed."""
        line = f"({beating('child')}) & setsid sh -c '{beating('session')}' & {beating('own')}"
        async with await sb.start(line) as process:
            await self.until_beating(sb, "child", "session", "own")
            await process.kill()
            async with asyncio.timeout(self.patience):
                result = await process.wait()
        assert (result.signal, result.exit_code, result.timed_out) == (9, 137, False)
        for name in ("child", "session", "own"):
            assert not await beats(sb, name), name

    @requires(Capability.STREAM)
    async def test_killing_what_has_ended_is_fine(self, sb: AsyncSandbox) -> None:
        """And changes nothing about its result."""
        process = await sb.start("exit 3")
        assert (await process.wait()).exit_code == 3
        await process.kill()
        await process.kill()
        assert (await process.wait()).exit_code == 3

    @requires(Capability.STREAM)
    async def test_leaving_the_block_kills_the_process(self, sb: AsyncSandbox) -> None:
        """``async with`` ends what it began."""
        async with await sb.start(beating("beat")):
            await self.until_beating(sb, "beat")
        assert not await beats(sb, "beat")

    @requires(Capability.STREAM, Capability.SIGNALS)
    async def test_a_signal_reaches_the_command(self, sb: AsyncSandbox) -> None:
        """Which may do with it what it likes."""
        line = "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.05; done"
        async with await sb.start(line) as process:
            chunks = process.chunks()
            assert (await anext(chunks)).text == "ready\n"
            await process.signal(signal.SIGINT)
            async with asyncio.timeout(self.patience):
                result = await process.wait()
        assert (result.stdout, result.exit_code, result.signal) == ("ready\ncaught\n", 7, None)

    @requires(Capability.STREAM, Capability.SIGNALS)
    async def test_a_signal_ends_a_command_that_does_not_care(self, sb: AsyncSandbox) -> None:
        """The whole group, and the result tells which signal."""
        async with await sb.start(["sleep", "600"]) as process:
            await process.signal(signal.SIGTERM)
            async with asyncio.timeout(self.patience):
                result = await process.wait()
            await process.signal(signal.SIGTERM)  # fine if it has ended
        assert (result.exit_code, result.signal) == (143, signal.SIGTERM)

    @requires(Capability.STREAM, Capability.PROCESSES)
    async def test_a_process_is_found_again_by_its_id(self, sb: AsyncSandbox) -> None:
        """And waited for, by another holder."""
        first = await sb.start(f"{_UNTIL_GO}; echo late; exit 5")
        again = await sb.process(first.id)
        assert again.id == first.id
        await sb.write_file("go", b"")
        async with asyncio.timeout(self.patience):
            result = await again.wait()
        assert (result.exit_code, result.stdout) == (5, "late\n")
        assert (await first.wait()).exit_code == 5

    @requires(Capability.STREAM, Capability.PROCESSES)
    async def test_a_process_found_again_can_be_killed(self, sb: AsyncSandbox) -> None:
        """It is the same process."""
        first = await sb.start(beating("beat"))
        await self.until_beating(sb, "beat")
        await (await sb.process(first.id)).kill()
        assert not await beats(sb, "beat")

    @requires(Capability.STREAM, Capability.PROCESSES)
    async def test_a_process_that_never_was_is_not_found(self, sb: AsyncSandbox) -> None:
        """And is not taken for another."""
        with pytest.raises(SandboxNotFoundError):
            await sb.process("987654321")
