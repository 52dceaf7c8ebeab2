"""The sandbox that a command line works in, made for it or reused."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from sandlot import events, registry
from sandlot.capabilities import Capability
from sandlot.cli import _options, _say
from sandlot.cli._signals import must_clean_up
from sandlot.client import AsyncSandboxClient
from sandlot.events import Event
from sandlot.sandbox import AsyncSandbox

if TYPE_CHECKING:
    from sandlot._options import SandboxOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The sandbox that is wanted."""

    backend: str | None
    asked: Mapping[str, object]
    """Fields of `SandboxSpec`."""
    keep: bool = False
    """It stays when the command has ended."""
    reuse: bool = False
    """Take the one that carries these labels, if there is one; it stays."""
    needs: Mapping[Capability, str]
    """What it must be able to do, and the reason in words."""

    @property
    def stays(self) -> bool:
        """Whether it outlives this program. What is reused is meant for the next run too."""
        return self.keep or self.reuse


@asynccontextmanager
async def opened(place: Place) -> AsyncGenerator[AsyncSandbox]:
    """Yield a sandbox; destroy it afterwards unless it is to stay."""
    async with AsyncSandboxClient(place.backend) as client:
        check_able(client.backend_name, client.can, place.needs)
        sandbox = await _got(client, place)
        if place.stays:
            yield sandbox
            return
        with must_clean_up(f"sandbox {sandbox.id} on {sandbox.backend_name}"):
            async with sandbox:
                yield sandbox


async def _got(client: AsyncSandboxClient, place: Place) -> AsyncSandbox:
    options = cast("SandboxOptions", {**place.asked, "keep": place.stays})
    seen: list[Event] = []
    unsubscribe = events.subscribe(seen.append)
    try:
        with must_clean_up(f"the sandbox being made on {client.backend_name}"):
            if place.reuse:
                sandbox = await client.get_or_create(**options)
            else:
                sandbox = await client.create(**options)
    finally:
        unsubscribe()
    for event in seen:
        if event.name == "option.unsupported":
            _say.note(str(event.attributes.get("reason")))
    if place.stays:
        _tell_of(sandbox, place, made=any(event.name == "create.finished" for event in seen))
    return sandbox


def _tell_of(sandbox: AsyncSandbox, place: Place, *, made: bool) -> None:
    if made:
        named = f"{sandbox.id} -b {sandbox.backend_name}"
        _say.note(
            f"sandbox {sandbox.id} on {sandbox.backend_name} is kept; "
            f"use it: sandlot exec {named} COMMAND; end it: sandlot destroy {named}"
        )
        return
    idle = [_options.spelled(name) for name in place.asked if name not in ("labels", "env_vars")]
    if idle:
        _say.note(f"sandbox {sandbox.id} was there already: no effect of {', '.join(idle)}")


def check_able(
    backend: str, can: Callable[[Capability], bool], needs: Mapping[Capability, str]
) -> None:
    """Refuse a backend that lacks a capability, before anything is started."""
    for capability, reason in needs.items():
        if not can(capability):
            able = [
                name
                for name in registry.usable()
                if capability in registry.backend_class(name).capabilities
            ]
            raise _say.Failure(
                f"the {backend} backend can't {reason}",
                f"these can: {', '.join(able)}" if able else None,
            )
