"""A command's input."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.capabilities import Capability
from sandlot.errors import SandboxConfigurationError, SandboxConnectionError
from sandlot.sandbox import AsyncSandbox
from sandlot.testing.conformance.base import Behaviours, requires

_MUCH = bytes(range(256)) * 20_000  # five megabytes


class Stdin(Behaviours):
    """A command's input."""

    async def test_without_input_a_command_sees_its_end_at_once(self, sb: AsyncSandbox) -> None:
        """Nothing waits for a keyboard that is not there."""
        async with asyncio.timeout(self.patience):
            result = await sb.execute_command('cat; read x; echo "$? got=$x"')
        assert result.stdout == "1 got=\n"

    @requires(Capability.STDIN)
    async def test_input_arrives_byte_for_byte(self, sb: AsyncSandbox) -> None:
        """Every byte value, and the end."""
        data = bytes(range(256)) * 3
        assert (await sb.execute_command("cat", stdin=data)).stdout_bytes == data

    @requires(Capability.STDIN)
    async def test_text_goes_in_as_utf_8(self, sb: AsyncSandbox) -> None:
        """A str is encoded, and nothing is added to it."""
        assert (await sb.execute_command("cat", stdin="é☕")).stdout_bytes == "é☕".encode()

    @requires(Capability.STDIN)
    async def test_empty_input_ends_at_once(self, sb: AsyncSandbox) -> None:
        """``stdin=b""`` is input that is over."""
        async with asyncio.timeout(self.patience):
            assert (await sb.execute_command("cat | wc -c", stdin=b"")).stdout.strip() == "0"

    @requires(Capability.STDIN)
    async def test_code_reads_input_as_well(self, sb: AsyncSandbox) -> None:
        """The code does not stand in the way of its input."""
        result = await sb.execute_code('read x; echo "got=$x"', "sh", stdin="a b\n")
        assert result.stdout == "got=a b\n"

    @requires(Capability.STDIN)
    async def test_much_input_and_much_output_do_not_block_each_other(
        self, sb: AsyncSandbox
    ) -> None:
        """Five megabytes in against five megabytes out."""
        async with asyncio.timeout(3 * self.patience):
            result = await sb.execute_command("cat", stdin=_MUCH)
        assert result.stdout_bytes == _MUCH

    @requires(Capability.STDIN)
    async def test_a_program_need_not_read_its_input(self, sb: AsyncSandbox) -> None:
        """Input that nobody takes neither hangs the call nor fails it."""
        async with asyncio.timeout(self.patience):
            ignored = await sb.execute_command("exit 3", stdin=_MUCH)
            partly = await sb.execute_command("head -c 5", stdin=_MUCH)
        assert (ignored.exit_code, partly.stdout_bytes) == (3, _MUCH[:5])

    @requires(Capability.STREAM, Capability.STDIN)
    async def test_input_can_be_written_while_the_command_runs(self, sb: AsyncSandbox) -> None:
        """Each line is answered before the next is written."""
        line = 'while read x; do echo "got=$x"; done; echo end'
        async with asyncio.timeout(self.patience):
            async with await sb.start(line, stdin=True) as process:
                chunks = process.chunks()
                for word in ("one", "two"):
                    await process.write(f"{word}\n")
                    assert (await anext(chunks)).text == f"got={word}\n"
                await process.close_stdin()
                assert (await anext(chunks)).text == "end\n"
                assert (await process.wait()).exit_code == 0

    @requires(Capability.STREAM, Capability.STDIN)
    async def test_closing_the_input_twice_is_fine(self, sb: AsyncSandbox) -> None:
        """close_stdin is idempotent."""
        async with await sb.start("cat", stdin=True) as process:
            await process.close_stdin()
            await process.close_stdin()
            async with asyncio.timeout(self.patience):
                assert (await process.wait()).exit_code == 0

    @requires(Capability.STREAM, Capability.STDIN)
    async def test_writing_to_a_command_that_has_ended_is_an_error(self, sb: AsyncSandbox) -> None:
        """The writer is told that nobody reads."""
        async with await sb.start("true", stdin=True) as process:
            await process.wait()

            async def insist() -> None:
                for _ in range(100):  # the first may still fit into a buffer on the way
                    await process.write(b"x" * 65536)
                    await asyncio.sleep(0.05)

            with pytest.raises(SandboxConnectionError) as caught:
                await insist()
            assert not caught.value.retryable

    @requires(Capability.STREAM, Capability.STDIN)
    async def test_writing_to_a_command_without_open_input_is_refused(
        self, sb: AsyncSandbox
    ) -> None:
        """Without ``stdin=True`` there is nothing to write to."""
        async with await sb.start("sleep 30") as process:
            with pytest.raises(SandboxConfigurationError):
                await process.write(b"x")
