"""A sandbox's life: made, used, destroyed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sandlot._checks import make_spec
from sandlot.capabilities import Capability
from sandlot.client import AsyncSandboxClient
from sandlot.errors import (
    SandboxClosedError,
    SandboxNotFoundError,
    WorkspaceError,
)
from sandlot.sandbox import AsyncSandbox
from sandlot.testing.conformance.base import (
    QUIET,
    Behaviours,
    accepts,
    beating,
    requires,
)
from sandlot.testing.conformance.spy import Spy
from sandlot.types import SandboxState


class Lifecycle(Behaviours):
    """A sandbox's life."""

    async def test_a_new_sandbox_is_ready_for_commands(self, sb: AsyncSandbox) -> None:
        """When create returns, commands can run."""
        assert (await sb.execute_command("echo ready")).stdout == "ready\n"

    async def test_a_sandbox_says_what_and_where_it_is(self, sb: AsyncSandbox) -> None:
        """It knows its id and its backend, and its backend says the same."""
        info = await sb.info()
        assert (info.id, info.backend) == (sb.id, sb.backend_name)
        assert info.state is SandboxState.RUNNING

    async def test_no_two_sandboxes_share_an_id(self, client: AsyncSandboxClient) -> None:
        """Each sandbox has an id of its own."""
        async with client.create(**self.options) as one, client.create(**self.options) as other:
            assert one.id != other.id

    async def test_it_is_alive_until_it_is_destroyed(self, sb: AsyncSandbox) -> None:
        """is_alive tells whether it may be used."""
        assert sb.is_alive
        await sb.destroy()
        assert not sb.is_alive

    async def test_destroying_twice_is_fine(self, sb: AsyncSandbox) -> None:
        """Destroy is idempotent."""
        await sb.destroy()
        await sb.destroy()

    async def test_the_backend_destroys_twice_as_well(self) -> None:
        """The adapter's own destroy is idempotent, so that it can be repeated after a failure."""
        backend = self.backend()
        try:
            handle = await backend.create(make_spec(self.options))
            await handle.destroy()
            await handle.destroy()
        finally:
            await backend.aclose()

    @requires(Capability.RECONNECT)
    async def test_two_holders_may_both_destroy_it(self) -> None:
        """Destroying what another holder has destroyed is fine."""
        async with self.client() as first, self.client() as second:
            sandbox = await first.create(**self.options)
            same = await second.get(sandbox.id)
            await same.destroy()
            await sandbox.destroy()

    async def test_nothing_can_be_done_with_a_destroyed_sandbox(self) -> None:
        """Each call says that it is destroyed, and asks nobody."""
        spy = Spy(self.backend)
        async with AsyncSandboxClient(spy.backend()) as client:
            async with client.create(**self.options) as sandbox:
                pass
            spy.calls.clear()
            for use in (
                lambda: sandbox.execute_command("true"),
                lambda: sandbox.execute_code("true", "sh"),
                lambda: sandbox.read_file("f"),
                lambda: sandbox.write_file("f", b""),
                lambda: sandbox.list_files("."),
                lambda: sandbox.info(),
            ):
                with pytest.raises(SandboxClosedError):
                    await use()
            assert spy.calls == []

    async def test_a_closed_client_makes_no_sandboxes(self, client: AsyncSandboxClient) -> None:
        """After close, a client says that it is closed."""
        await client.aclose()
        with pytest.raises(SandboxClosedError):
            await client.create(**self.options)

    async def test_what_uses_it_meanwhile_is_told_that_it_is_gone(
        self, client: AsyncSandboxClient
    ) -> None:
        """A command that runs while its sandbox is destroyed ends in an error, not a result."""
        sandbox = await client.create(**self.options)
        running = asyncio.ensure_future(sandbox.execute_command(beating("beat")))
        await self.until_beating(sandbox, "beat")
        await sandbox.destroy()
        async with asyncio.timeout(self.patience):
            with pytest.raises((SandboxNotFoundError, SandboxClosedError)):
                await running

    @requires(Capability.LIST, Capability.LABELS)
    async def test_a_destroyed_sandbox_is_listed_no_more(self, client: AsyncSandboxClient) -> None:
        """It is in the list while it lives, and not afterwards."""
        labels = {"test": "listed-no-more"}
        async with client.create(**self.made_with(labels=labels)) as sandbox:
            assert [info.id for info in await client.list(labels)] == [sandbox.id]
        assert await client.list(labels) == []

    @requires(Capability.LIST, Capability.LABELS)
    async def test_a_block_that_fails_destroys_its_sandbox(
        self, client: AsyncSandboxClient
    ) -> None:
        """The caller's own error comes through, and nothing is left behind."""
        labels = {"test": "failing-block"}
        with pytest.raises(ZeroDivisionError):
            async with client.create(**self.made_with(labels=labels)):
                raise ZeroDivisionError
        assert await client.list(labels) == []

    @accepts("workdir")
    async def test_destroying_ends_what_runs_in_the_background(self, tmp: Path) -> None:
        """Daemons as well; seen where the working directory is one of this machine."""
        line = f"({beating('child')}) & setsid sh -c '{beating('daemon')}' >/dev/null 2>&1 &"
        async with self.sandbox(workdir=str(tmp)) as sandbox:
            await sandbox.execute_command(line)
            await self.until_beating(sandbox, "child", "daemon")
        before = _sizes(tmp)
        await asyncio.sleep(QUIET)
        assert _sizes(tmp) == before

    async def test_files_are_there_before_the_first_command(self) -> None:
        """``files=`` is written, text as UTF-8, with the directories above."""
        files: dict[str, Any] = {"in/a.txt": "é\n", "b.bin": b"\x00\xff"}
        async with self.sandbox(files=files) as sandbox:
            assert (await sandbox.execute_command("cat in/a.txt")).stdout == "é\n"
            assert await sandbox.read_file("b.bin") == b"\x00\xff"

    @requires(Capability.LIST, Capability.LABELS)
    async def test_a_sandbox_whose_files_cant_be_written_is_destroyed(
        self, client: AsyncSandboxClient
    ) -> None:
        """A set-up that fails leaves nothing behind."""
        labels = {"test": "bad-files"}
        options = self.made_with(labels=labels, files={"a": b"", "a/below-a-file": b""})
        with pytest.raises(WorkspaceError):
            await client.create(**options)
        assert await client.list(labels) == []


def _sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in directory.iterdir()}
