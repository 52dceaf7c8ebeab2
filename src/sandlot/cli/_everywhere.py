"""Asking one backend, or all that can be used here, at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeAlias, TypeVar

from sandlot import registry
from sandlot.capabilities import Capability
from sandlot.cli import _say
from sandlot.client import AsyncSandboxClient
from sandlot.errors import SandboxConfigurationError, SandboxError, SandboxNotFoundError
from sandlot.sandbox import AsyncSandbox
from sandlot.types import SandboxInfo

T = TypeVar("T")
R = TypeVar("R")
Clients: TypeAlias = list[AsyncSandboxClient]

_ABSENT = (SandboxNotFoundError, NotImplementedError)
"""How a backend says that it has no such sandbox, or no way to find any."""


class Failures(list[tuple[str, SandboxError]]):
    """What went wrong, by the name of what it went wrong with."""

    def tell(self) -> int:
        """Tell them all; return the exit code."""
        for name, exc in self:
            failure = _say.failure(exc)
            _say.error(f"{name}: {failure.message}", failure.hint)
        return 1 if self else 0


@asynccontextmanager
async def clients(backend: str | None) -> AsyncGenerator[Clients]:
    """Yield the backend, or all that can be used here."""
    async with AsyncExitStack() as stack:
        names = [backend] if backend else registry.usable()
        yield [await stack.enter_async_context(AsyncSandboxClient(name)) for name in names]


async def each(
    items: Mapping[str, T], work: Callable[[T], Awaitable[R]]
) -> tuple[dict[str, R], Failures]:
    """Do the same with each at once; return what came of it, and what failed."""
    answers = await asyncio.gather(*map(work, items.values()), return_exceptions=True)
    done: dict[str, R] = {}
    failed = Failures()
    for name, answer in zip(items, answers, strict=True):
        if isinstance(answer, SandboxError):
            failed.append((name, answer))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            done[name] = answer
    return done, failed


async def listed(
    backend: str | None, asked: Clients, labels: Mapping[str, str]
) -> tuple[list[SandboxInfo], Failures]:
    """Return the sandboxes with these labels, by backend and then by age."""
    able = {client.backend_name: client for client in asked}
    for client in asked:
        if backend is None and not client.can(Capability.LIST):
            _say.note(f"the {client.backend_name} backend can't list its sandboxes")
            del able[client.backend_name]
    answers, failed = await each(able, lambda client: client.list(labels))
    return [
        info
        for infos in answers.values()
        for info in sorted(infos, key=lambda info: info.created or 0.0)
    ], failed


async def search(asked: Clients, sandbox_id: str) -> AsyncSandbox:
    """Return the sandbox of this id.

    Raises:
        SandboxNotFoundError: If no backend has it.
        SandboxConfigurationError: If more than one has.
    """
    if len(asked) == 1:
        return await asked[0].get(sandbox_id)
    by_name = {client.backend_name: client for client in asked}
    hits, failed = await each(by_name, lambda client: client.get(sandbox_id))
    if len(hits) > 1:
        raise SandboxConfigurationError(
            f"more than one backend has a sandbox {sandbox_id}",
            hint=f"say which: -b {' or -b '.join(hits)}",
        )
    if hits:
        return next(iter(hits.values()))
    for _, exc in failed:
        if not isinstance(exc, _ABSENT):
            raise exc
    names = ", ".join(by_name) or "no usable backend"
    raise SandboxNotFoundError(
        f"there is no sandbox {sandbox_id!r} on {names}", hint="sandlot list shows those there are"
    )
