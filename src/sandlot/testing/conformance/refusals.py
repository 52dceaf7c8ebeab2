"""What can't be done is refused, by name and before anything happens."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sandlot._checks import HONOURED_BY_ALL, make_spec
from sandlot._output import Output
from sandlot.capabilities import Capability
from sandlot.client import AsyncSandboxClient
from sandlot.contract import Backend, Handle
from sandlot.errors import (
    ErrorOutcome,
    FeatureNotSupportedError,
    SandboxConfigurationError,
)
from sandlot.events import Event, subscribe
from sandlot.sandbox import AsyncSandbox
from sandlot.testing.conformance.base import Behaviours
from sandlot.testing.conformance.spy import Spy
from sandlot.types import Command, EnforcementLevel, SandboxSpec

_SAMPLES: dict[str, Any] = {
    "image": "debian:12",
    "template": "base",
    "snapshot_id": "snap-1",
    "cpu": 0.5,
    "memory_mb": 256,
    "disk_mb": 1024,
    "pids_limit": 64,
    "gpu": "T4",
    "timeout_secs": 300.0,
    "env_vars": {"NAME": "value"},
    "inherit_env": ["PATH"],
    "allow_internet": False,
    "workdir": "/tmp",
    "user": "nobody",
    "labels": {"name": "value"},
    "app_name": "app",
    "backend_options": {"an-option-of-no-backend": 1},
}
_LIMITS = ("cpu", "memory_mb", "disk_mb", "pids_limit")
_METHODS = {
    Capability.STREAM: "start",
    Capability.PROCESSES: "process",
    Capability.RECONNECT: "session_state",
    Capability.EXTEND: "extend",
    Capability.SNAPSHOT: "snapshot",
    Capability.EXPOSE: "expose",
}


class Refusals(Behaviours):
    """What can't be done is refused."""

    async def test_every_option_that_is_not_honoured_is_refused(self) -> None:
        """A field that the backend does not honour is named in the error; nothing starts."""
        for name in _not_honoured(self.backend()):
            spy = Spy(self.backend)
            async with AsyncSandboxClient(spy.backend()) as client:
                with pytest.raises(FeatureNotSupportedError) as caught:
                    await client.create(**self.made_with(**{name: _SAMPLES[name]}))
            assert caught.value.field == name
            assert caught.value.outcome is ErrorOutcome.NOT_STARTED
            assert spy.calls == []

    async def test_best_effort_goes_on_without_and_says_so(self) -> None:
        """``best_effort=True`` turns each refusal into a notice that names the option."""
        names = _not_honoured(self.backend())
        told: list[Event] = []
        unsubscribe = subscribe(told.append)
        try:
            async with self.sandbox(
                best_effort=True, **{name: _SAMPLES[name] for name in names}
            ) as sandbox:
                assert (await sandbox.execute_command("echo ok")).stdout == "ok\n"
        finally:
            unsubscribe()
        notices = [event for event in told if event.name == "option.unsupported"]
        assert sorted(event.attributes["option"] for event in notices) == names

    async def test_an_option_that_does_not_exist_is_told_with_the_nearest(
        self, client: AsyncSandboxClient
    ) -> None:
        """A misspelt option is an error that says what was meant."""
        unknown: dict[str, Any] = {"timeout_seconds": 5}
        with pytest.raises(SandboxConfigurationError, match="timeout_seconds") as caught:
            await client.create(**unknown)
        assert "timeout_secs" in str(caught.value)

    async def test_commands_that_make_no_sense_are_refused_before_any_i_o(self) -> None:
        """What can't be a command never reaches the backend."""
        spy = Spy(self.backend)
        async with AsyncSandboxClient(spy.backend()) as client:
            async with client.create(**self.options) as sandbox:
                spy.calls.clear()
                await _refuse_nonsense(sandbox)
                assert spy.calls == []

    async def test_what_is_declared_is_implemented(self) -> None:
        """Each capability that is declared has its method overridden in the handle."""
        async with self._handle() as handle:
            for capability, method in _METHODS.items():
                if capability in handle.backend.capabilities:
                    own = getattr(type(handle), method)
                    assert own is not getattr(Handle, method), f"{capability} is not there"

    async def test_a_limit_is_enforced_or_refused(self, client: AsyncSandboxClient) -> None:
        """A limit that was asked for and holds for nothing is never taken in silence."""
        for name in _LIMITS:
            try:
                async with client.create(**self.made_with(**{name: _SAMPLES[name]})) as sandbox:
                    level = sandbox.enforcement[name].level
            except FeatureNotSupportedError as exc:
                refused = exc
            else:
                assert level is not EnforcementLevel.NONE
                continue
            assert refused.field == name

    async def test_what_is_accepted_is_a_field_of_the_spec(self) -> None:
        """``accepts`` names nothing that can't be asked for."""
        known = {field.name for field in dataclasses.fields(SandboxSpec)}
        assert self.backend().accepts <= known

    async def test_a_handle_refuses_what_its_backend_lacks(self) -> None:
        """Also a caller who passes over the first check is told, not left hanging."""
        async with self._handle() as handle:
            for capability, call in (
                (Capability.STREAM, lambda: handle.start(Command(argv=("true",)), Output())),
                (Capability.PROCESSES, lambda: handle.process("1", Output())),
                (Capability.EXTEND, lambda: handle.extend(60)),
                (Capability.SNAPSHOT, handle.snapshot),
                (Capability.EXPOSE, lambda: handle.expose(80)),
            ):
                if capability not in handle.backend.capabilities:
                    with pytest.raises(FeatureNotSupportedError) as caught:
                        await call()
                    assert caught.value.capability == capability

    @asynccontextmanager
    async def _handle(self) -> AsyncGenerator[Handle, None]:
        backend = self.backend()
        handle = await backend.create(make_spec(self.options))
        try:
            yield handle
        finally:
            await handle.destroy()
            await backend.aclose()


def _not_honoured(backend: Backend) -> list[str]:
    return sorted(_SAMPLES.keys() - backend.accepts - HONOURED_BY_ALL)


async def _refuse_nonsense(sandbox: AsyncSandbox) -> None:
    nonsense: list[tuple[Any, dict[str, Any]]] = [
        ("", {}),
        ([], {}),
        ([""], {}),
        ("echo \0", {}),
        (["echo", "\0"], {}),
        (["echo", 1], {}),
        ("true", {"timeout": 0}),
        ("true", {"timeout": -1}),
        ("true", {"timeout": float("nan")}),
        ("true", {"timeout": True}),
        ("true", {"cwd": ""}),
        ("true", {"env": {"A=B": "x"}}),
        ("true", {"env": {"X;touch /tmp/p": "1"}}),
        ("true", {"env": {"1A": "x"}}),
        ("true", {"env": {"A": "a\0b"}}),
        ("true", {"env": {"A": 1}}),
        ("true", {"max_output_bytes": 0}),
    ]
    for command, options in nonsense:
        with pytest.raises(SandboxConfigurationError):
            await sandbox.execute_command(command, **options)
    with pytest.raises(SandboxConfigurationError, match="klingon"):
        await sandbox.execute_code("nuqneH", "klingon")
