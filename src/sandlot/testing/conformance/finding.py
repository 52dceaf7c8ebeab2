"""Sandboxes that are found, taken over, kept, and that end by themselves."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from sandlot.capabilities import Capability
from sandlot.errors import (
    SandboxClosedError,
    SandboxConfigurationError,
    SandboxNotFoundError,
)
from sandlot.sandbox import AsyncSandbox
from sandlot.testing.conformance.base import Behaviours, accepts, requires
from sandlot.types import SandboxSessionState


def _label() -> dict[str, str]:
    return {"sandlot-test": secrets.token_hex(8)}


class Finding(Behaviours):
    """Sandboxes that are found, taken over, kept, and that end by themselves."""

    @requires(Capability.RECONNECT)
    async def test_another_program_takes_over(self, sb: AsyncSandbox) -> None:
        """By the state alone, which travels as JSON: same files, same processes, same id."""
        await sb.write_file("file", b"from the first")
        text = sb.session_state().to_json()
        async with self.client() as other:
            same = await other.resume(SandboxSessionState.from_json(text))
            assert same.id == sb.id
            assert await same.read_file("file") == b"from the first"
            await same.write_file("file", b"from the second")
        assert await sb.read_file("file") == b"from the second"

    @requires(Capability.RECONNECT)
    async def test_a_sandbox_that_was_let_go_lives_on(self) -> None:
        """Detach gives the state; the sandbox is the next holder's."""
        async with self.client() as client:
            sandbox = await client.create(**self.options)
            await sandbox.write_file("file", b"kept")
            state = await sandbox.detach()
            with pytest.raises(SandboxClosedError):
                await sandbox.read_file("file")
        async with self.client() as other, await other.resume(state) as same:
            assert await same.read_file("file") == b"kept"

    @requires(Capability.RECONNECT)
    async def test_what_is_gone_cant_be_taken_over(self) -> None:
        """Neither by its state nor by its id."""
        async with self.client() as client:
            async with client.create(**self.options) as sandbox:
                state = sandbox.session_state()
            with pytest.raises(SandboxNotFoundError):
                await client.resume(state)
            with pytest.raises(SandboxNotFoundError):
                await client.get(sandbox.id)

    @requires(Capability.RECONNECT)
    async def test_a_sandbox_is_found_by_its_id(self, sb: AsyncSandbox) -> None:
        """By any client of the backend; an id that never was is not found."""
        await sb.write_file("file", b"content")
        async with self.client() as other:
            assert await (await other.get(sb.id)).read_file("file") == b"content"
            with pytest.raises(SandboxNotFoundError):
                await other.get("no-such-sandbox")

    @requires(Capability.RECONNECT)
    async def test_a_state_of_another_backend_is_refused(self, sb: AsyncSandbox) -> None:
        """Rather than looked for in the wrong place."""
        foreign = SandboxSessionState("some-other-backend", sb.session_state().data)
        async with self.client() as client:
            with pytest.raises(SandboxConfigurationError, match="some-other-backend"):
                await client.resume(foreign)

    @requires(Capability.LIST)
    async def test_all_sandboxes_are_listed(self, sb: AsyncSandbox) -> None:
        """Also to a client that did not make them."""
        async with self.client() as other:
            assert sb.id in [info.id for info in await other.list()]

    @requires(Capability.LIST, Capability.LABELS)
    async def test_sandboxes_are_listed_by_their_labels(self) -> None:
        """Those that carry all of the labels asked for, and no others."""
        mark = _label()
        async with self.client() as client:
            async with (
                client.create(**self.made_with(labels={**mark, "kind": "a"})) as first,
                client.create(**self.made_with(labels={**mark, "kind": "b"})) as second,
                client.create(**self.options),
            ):
                assert first.labels == {**mark, "kind": "a"}
                async with self.client() as other:
                    for wanted, ids in (
                        (mark, {first.id, second.id}),
                        ({**mark, "kind": "b"}, {second.id}),
                        ({**mark, "kind": "c"}, set[str]()),
                        ({"kind": "a", **_label()}, set[str]()),
                    ):
                        assert {info.id for info in await other.list(wanted)} == ids
                    [info] = await other.list({**mark, "kind": "a"})
                    assert info.labels.items() >= {**mark, "kind": "a"}.items()

    @requires(Capability.LIST, Capability.LABELS)
    async def test_labels_may_hold_any_text(self) -> None:
        """Values come back as they were."""
        labels = {**_label(), "odd": 'a b/c:é="q",;\'', "empty": ""}
        async with self.sandbox(labels=labels) as sandbox, self.client() as other:
            [info] = await other.list(labels)
            assert info.id == sandbox.id
            assert dict(info.labels).items() >= labels.items()

    @requires(Capability.LIST, Capability.LABELS, Capability.RECONNECT)
    async def test_find_takes_the_newest(self) -> None:
        """Of those with the labels; none is None."""
        mark = _label()
        async with self.client() as client:
            assert await client.find(mark) is None
            async with client.create(**self.made_with(labels=mark)):
                await asyncio.sleep(0.05)
                async with client.create(**self.made_with(labels=mark)) as newer:
                    await asyncio.sleep(0.05)
                    async with client.create(**self.options):
                        found = await client.find(mark)
                        assert found is not None
                        assert found.id == newer.id
            assert await client.find(mark) is None

    @requires(Capability.LIST, Capability.LABELS, Capability.RECONNECT)
    async def test_ten_who_ask_for_one_get_the_same(self) -> None:
        """get_or_create makes one, however many ask at once."""
        mark = _label()

        async def ask() -> str:
            async with self.client() as client:
                return (await client.get_or_create(**self.made_with(labels=mark))).id

        async with self.client() as client:
            try:
                async with asyncio.timeout(3 * self.patience):
                    ids = await asyncio.gather(*(ask() for _ in range(10)))
                assert len(set(ids)) == 1
                assert [info.id for info in await client.list(mark)] == [ids[0]]
            finally:
                for info in await client.list(mark):
                    await (await client.get(info.id)).destroy()

    @requires(Capability.LIST, Capability.LABELS, Capability.RECONNECT)
    async def test_what_get_or_create_makes_is_kept(self) -> None:
        """It outlives who asked for it, and the next one gets it with its files."""
        mark = _label()
        async with self.client() as client:
            first = await client.get_or_create(**self.made_with(labels=mark))
            await first.write_file("file", b"kept")
        async with self.client() as other:
            second = await other.get_or_create(**self.made_with(labels=mark))
            async with second:
                assert second.id == first.id
                assert await second.read_file("file") == b"kept"
                assert (await second.info()).kept
            with pytest.raises(SandboxConfigurationError):
                await other.get_or_create(**self.options)

    # -------------------------------------------------------------- life's end
    @accepts("timeout_secs")
    async def test_a_sandbox_ends_when_its_time_is_over(self) -> None:
        """``timeout_secs`` is its longest life; afterwards it is not found."""
        async with self.client() as client:
            sandbox = await client.create(**self.made_with(timeout_secs=3.0))
            assert (await sandbox.execute_command("echo alive")).stdout == "alive\n"
            running = asyncio.ensure_future(sandbox.execute_command("sleep 600"))
            async with asyncio.timeout(3 + self.patience):
                with pytest.raises(SandboxNotFoundError):
                    await running
            with pytest.raises(SandboxNotFoundError):
                await sandbox.execute_command("true")
            await sandbox.destroy()

    @requires(Capability.EXTEND)
    @accepts("timeout_secs")
    async def test_a_life_can_be_made_longer(self) -> None:
        """Counted from the call, not from the creation."""
        async with self.sandbox(timeout_secs=3.0) as sandbox:
            await sandbox.extend(600)
            await asyncio.sleep(4)
            assert (await sandbox.execute_command("echo alive")).stdout == "alive\n"

    @requires(Capability.EXTEND)
    @accepts("timeout_secs")
    async def test_a_life_can_be_made_shorter(self) -> None:
        """The new end counts, also if it is nearer."""
        async with self.sandbox(timeout_secs=600) as sandbox:
            await sandbox.extend(1.0)

            async def gone() -> bool:
                try:
                    await sandbox.info()
                except SandboxNotFoundError:
                    return True
                return False

            await self.until(gone, "the end of its life")

    @requires(Capability.SNAPSHOT)
    async def test_a_snapshot_is_what_it_was_when_taken(self) -> None:
        """A sandbox made of it has the files of then, and goes its own way."""
        async with self.client() as client:
            async with client.create(**self.options) as sandbox:
                await sandbox.write_file("file", b"then", mode=0o755)
                snapshot = await sandbox.snapshot()
                await sandbox.write_file("file", b"now")
                options = self.made_with(snapshot_id=snapshot.snapshot_id)
                async with client.create(**options) as copy:
                    assert await copy.read_file("file") == b"then"
                    assert (await copy.stat("file")).mode == 0o755
                    await copy.write_file("other", b"")
                assert not await sandbox.exists("other")
                async with client.create(**options) as again:
                    assert await again.read_file("file") == b"then"
                    assert not await again.exists("other")
