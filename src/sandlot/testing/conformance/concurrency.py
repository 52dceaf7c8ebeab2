"""Many at once, and calls that are given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandlot.capabilities import Capability
from sandlot.client import AsyncSandboxClient
from sandlot.sandbox import AsyncSandbox
from sandlot.testing.conformance.base import (
    Behaviours,
    beating,
    beats,
    reading,
    requires,
)


class Concurrency(Behaviours):
    """Many at once, and calls that are given up."""

    async def test_fifty_commands_at_once_do_not_mix(self, sb: AsyncSandbox) -> None:
        """Each has its own output, errors, exit code and variables."""

        async def one(number: int) -> None:
            line = f"echo out $N; seq 200 >/dev/null; echo err {number} >&2; exit {number}"
            result = await sb.execute_command(line, env={"N": str(number)})
            assert result.stdout == f"out {number}\n"
            assert result.stderr == f"err {number}\n"
            assert result.exit_code == number

        async with asyncio.timeout(3 * self.patience):
            await asyncio.gather(*(one(number) for number in range(50)))

    async def test_commands_run_side_by_side(self, sb: AsyncSandbox) -> None:
        """Ten that wait for each other all end: none is held until another is done."""
        line = "touch here-{n}; while [ ! -e here-{m} ]; do sleep 0.05; done"
        async with asyncio.timeout(3 * self.patience):
            await asyncio.gather(
                *(
                    sb.execute_command(line.format(n=n, m=(n + 1) % 10), timeout=2 * self.patience)
                    for n in range(10)
                )
            )
        assert await sb.exists("here-9")

    async def test_files_move_side_by_side(self, sb: AsyncSandbox) -> None:
        """Thirty writes and reads at once, each its own content."""

        async def one(number: int) -> None:
            data = bytes([number]) * 100_000
            await sb.write_file(f"files/{number}", data)
            assert await sb.read_file(f"files/{number}") == data

        async with asyncio.timeout(3 * self.patience):
            await asyncio.gather(*(one(number) for number in range(30)))

    async def test_twenty_sandboxes_at_once_do_not_mix(self, client: AsyncSandboxClient) -> None:
        """No sandbox sees another's files."""

        async def one(number: int) -> None:
            async with client.create(**self.options) as sandbox:
                await sandbox.write_file("mine", str(number))
                await sandbox.execute_command(f"touch file-{number}")
                result = await sandbox.execute_command("ls; cat mine")
                listed = [word for word in result.stdout.split() if word.startswith("file-")]
                assert listed == [f"file-{number}"]
                assert result.stdout.endswith(str(number))

        async with asyncio.timeout(6 * self.patience):
            await asyncio.gather(*(one(number) for number in range(20)))

    async def test_a_command_that_is_given_up_is_killed(self, sb: AsyncSandbox) -> None:
        """Cancelling the call ends the command and all its children."""
        line = f"({beating('child')}) & setsid sh -c '{beating('session')}' & {beating('own')}"
        call = asyncio.ensure_future(sb.execute_command(line))
        await self.until_beating(sb, "child", "session", "own")
        call.cancel()
        async with asyncio.timeout(self.patience):
            with pytest.raises(asyncio.CancelledError):
                await call
        for name in ("child", "session", "own"):
            assert not await beats(sb, name), name
        assert (await sb.execute_command("echo fine")).stdout == "fine\n"

    @requires(Capability.STREAM)
    async def test_a_stream_that_is_given_up_is_killed(self, sb: AsyncSandbox) -> None:
        """Cancelling whoever waits for the next chunk ends the command as well."""
        async with reading(
            sb.stream(f"echo go; ({beating('child')}) & {beating('own')}")
        ) as chunks:
            assert (await anext(chunks)).text == "go\n"
            await self.until_beating(sb, "child", "own")
            call = asyncio.ensure_future(anext(chunks))
            await asyncio.sleep(0.1)
            call.cancel()
            async with asyncio.timeout(self.patience):
                with pytest.raises(asyncio.CancelledError):
                    await call
        for name in ("child", "own"):
            assert not await beats(sb, name), name

    @requires(Capability.LIST, Capability.LABELS)
    async def test_a_sandbox_that_is_given_up_is_not_left_behind(
        self, client: AsyncSandboxClient
    ) -> None:
        """Cancelled at any moment of its creation, it is made and destroyed, or never made."""
        labels = {"test": "given-up"}

        async def make() -> None:
            async with client.create(**self.made_with(labels=labels, files={"f": b"x"})):
                await asyncio.sleep(self.patience)

        for steps in (0, 1, 2, 3, 5, 8, 13, 50, 200):
            call = asyncio.ensure_future(make())
            for _ in range(steps):
                await asyncio.sleep(0)
            call.cancel()
            async with asyncio.timeout(2 * self.patience):
                with pytest.raises(asyncio.CancelledError):
                    await call
            assert await client.list(labels) == []

    async def test_an_upload_that_is_given_up_leaves_no_trace(self, sb: AsyncSandbox) -> None:
        """No half file, under its own name or another."""
        await sb.write_file("dir/file", b"old")
        begun = asyncio.Event()

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(8):
                yield b"x" * 1_000_000
            begun.set()
            await asyncio.sleep(10 * self.patience)

        call = asyncio.ensure_future(sb.write_file("dir/file", pieces()))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await sb.read_file("dir/file") == b"old"
        assert [info.name for info in await sb.list_files("dir")] == ["file"]
