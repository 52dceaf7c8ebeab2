"""What errors and events tell, and what they keep to themselves."""

from __future__ import annotations

import pickle
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from sandlot._checks import make_spec
from sandlot.errors import (
    CommandFailedError,
    SandboxClosedError,
    SandboxError,
    SandboxFileNotFoundError,
)
from sandlot.events import Event, subscribe
from sandlot.sandbox import AsyncSandbox
from sandlot.testing.conformance.base import Behaviours

_SECRET = "s3cr3t-4e0a1f"


class Reports(Behaviours):
    """What errors and events tell."""

    async def test_an_error_tells_where_it_arose(self, sb: AsyncSandbox) -> None:
        """Backend, operation and sandbox, in fields and in the message."""
        with pytest.raises(SandboxFileNotFoundError) as read:
            await sb.read_file("no-such")
        with pytest.raises(CommandFailedError) as run:
            await sb.execute_command("exit 1", check=True)
        for error, operation in ((read.value, "read_file"), (run.value, "exec")):
            assert (error.backend, error.op) == (sb.backend_name, operation)
            assert error.sandbox_id == sb.id
            for part in (sb.backend_name, operation, sb.id):
                assert part in str(error)

    async def test_an_error_survives_pickling(self, sb: AsyncSandbox) -> None:
        """So that it can cross from a worker process, with all its fields."""
        with pytest.raises(CommandFailedError) as caught:
            await sb.execute_command("echo why >&2; exit 3", check=True)
        copy = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(copy, CommandFailedError)
        assert (copy.exit_code, copy.stderr, copy.backend) == (3, "why\n", sb.backend_name)
        assert str(copy) == str(caught.value)

    async def test_a_closed_sandbox_is_named(self, sb: AsyncSandbox) -> None:
        """Which one was used too late is told."""
        await sb.destroy()
        with pytest.raises(SandboxClosedError) as caught:
            await sb.execute_command("true")
        assert caught.value.sandbox_id == sb.id

    async def test_secrets_stay_out_of_errors_and_events(self) -> None:
        """Values of variables, input, code and output are in none of them."""
        backend = self.backend()
        env = {"TOKEN": _SECRET}
        created = {"env_vars": env} if "env_vars" in backend.accepts else {}
        said: list[str] = [repr(make_spec({"env_vars": env, "files": {"f": _SECRET}}))]
        with _heard() as events:
            async with self.sandbox(**created) as sandbox:
                said.append(repr(sandbox))
                for attempt in (
                    lambda: sandbox.execute_command("exit 1", env=env, check=True),
                    lambda: sandbox.execute_command(["no-such-program"], env=env),
                    lambda: sandbox.execute_command("true", env=env, cwd="no/such"),
                    lambda: sandbox.execute_command("true", env={"T": f"{_SECRET}\0"}),
                    lambda: sandbox.execute_command("echo $TOKEN", env=env, timeout=60),
                    lambda: sandbox.execute_code(f"echo {_SECRET}", "sh", check=True),
                    lambda: sandbox.write_file("f", _SECRET),
                    lambda: sandbox.read_file("f"),
                ):
                    try:
                        await attempt()
                    except SandboxError as error:
                        said += [str(error), repr(error), repr(error.context)]
        assert len(events) > 10
        said += [repr(event) for event in events]
        assert not [text for text in said if _SECRET in text]

    async def test_an_operation_tells_its_begin_and_its_end(self, sb: AsyncSandbox) -> None:
        """With the same id, the sandbox, how long it took and the exit code."""
        with _heard() as events:
            await sb.execute_command("echo out; exit 3")
        begin, end = [event for event in events if event.name.startswith("exec.")]
        assert (begin.name, end.name) == ("exec.started", "exec.finished")
        assert begin.operation_id == end.operation_id
        assert (end.backend, end.sandbox_id) == (sb.backend_name, sb.id)
        assert end.attributes["exit_code"] == 3
        assert end.duration is not None
        assert end.duration > 0

    async def test_an_operation_that_fails_tells_its_error(self, sb: AsyncSandbox) -> None:
        """The one that the caller gets."""
        with _heard() as events:
            with pytest.raises(SandboxFileNotFoundError) as caught:
                await sb.read_file("no-such")
        [end] = [event for event in events if event.name == "read_file.failed"]
        assert end.error is caught.value

    async def test_a_life_is_told_from_create_to_destroy(self) -> None:
        """Each operation by name, in order, with its sandbox once that is known."""
        with _heard() as events:
            async with self.sandbox() as sandbox:
                await sandbox.write_file("f", b"12345")
                await sandbox.read_file("f")
        names = [e.name for e in events if e.name.endswith((".finished", ".failed"))]
        assert names == [
            "create.finished",
            "write_file.finished",
            "read_file.finished",
            "destroy.finished",
        ]
        by_name = {event.name: event for event in events}
        assert by_name["create.finished"].sandbox_id == sandbox.id
        assert by_name["write_file.finished"].attributes["size"] == 5
        assert by_name["read_file.finished"].attributes["size"] == 5


@contextmanager
def _heard() -> Generator[list[Event], None, None]:
    events: list[Event] = []
    unsubscribe = subscribe(events.append)
    try:
        yield events
    finally:
        unsubscribe()
