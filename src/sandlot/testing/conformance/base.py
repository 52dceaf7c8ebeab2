"""How a behaviour is run: what it is given, what it needs, and how it turned out."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import os
import sys
import tempfile
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Mapping,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, cast

from sandlot.capabilities import Capability
from sandlot.client import AsyncSandboxClient
from sandlot.contract import Backend
from sandlot.errors import FeatureNotSupportedError
from sandlot.sandbox import AsyncSandbox
from sandlot.testing.conformance.gaps import Gap
from sandlot.testing.conformance.spy import Spy
from sandlot.types import Chunk, SandboxResult

Behaviour: TypeAlias = Callable[..., Coroutine[Any, Any, None]]
Prepared: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
F = TypeVar("F", bound=Behaviour)

QUIET = 0.5
"""Seconds without a beat after which a process that beats every 0.05 s is taken for dead."""


def requires(*capabilities: Capability) -> Callable[[F], F]:
    """Say which capabilities a behaviour needs.

    On a backend without them it is not skipped: that it is refused is what is asserted.
    """
    return _marked("needs", capabilities)


def accepts(*fields: str) -> Callable[[F], F]:
    """Say which `SandboxSpec` fields a behaviour needs; likewise."""
    return _marked("fields", fields)


def slow(function: F) -> F:
    """Mark a behaviour that moves much data."""
    import pytest

    return pytest.mark.slow(function)


def _marked(name: str, values: tuple[str, ...]) -> Callable[[F], F]:
    def mark(function: F) -> F:
        setattr(function, name, frozenset(values))
        return function

    return mark


class Behaviours:
    """The base of the suite's parts.

    Each ``async def test_...`` is run in an event loop of its own, and is given what it
    names: ``sb`` a new sandbox, ``client`` a client, ``tmp`` an empty directory here.
    """

    mode: ClassVar[Literal["live", "emulated"]] = "emulated"
    """Whether this is the real place, or something that speaks like it."""
    in_matrix: ClassVar[bool] = True
    """Whether what is found belongs in the matrix of backends."""
    gaps: ClassVar[Mapping[str, Gap]] = {}
    """Behaviours that do not hold, by name (without ``test_``)."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Options for every sandbox that is made."""
    patience: ClassVar[float] = 20.0
    """Seconds after which what should have happened is taken never to happen."""
    gap: str | None = None
    """The gap that was found to be there, once the behaviour was run."""
    unsupported: bool = False
    """Whether the behaviour was found to be refused, once it was run."""

    def backend(self) -> Backend:
        """Return a new backend. Two of them see the same sandboxes, as two programs do."""
        raise NotImplementedError

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for name, value in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(value):
                setattr(cls, name, _as_test(value))
        for name in cls.gaps:
            if not hasattr(cls, f"test_{name}"):
                raise TypeError(f"gaps: there is no behaviour {name!r}")

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[AsyncSandboxClient, None]:
        """Yield a new client, which knows nothing of others, and close it."""
        async with AsyncSandboxClient(self.backend()) as client:
            yield client

    @asynccontextmanager
    async def sandbox(self, **options: Any) -> AsyncGenerator[AsyncSandbox, None]:
        """Yield a sandbox of a client of its own, and destroy it."""
        async with self.client() as client:
            async with client.create(**{**self.options, **options}) as sandbox:
                yield sandbox

    def made_with(self, **options: Any) -> dict[str, Any]:
        """Return the options of every sandbox, and these."""
        return {**self.options, **options}

    async def until(self, condition: Callable[[], Awaitable[object]], what: str) -> None:
        """Wait until a condition holds; it must in the end."""
        deadline = asyncio.get_running_loop().time() + self.patience
        while not await condition():
            assert asyncio.get_running_loop().time() < deadline, f"never happened: {what}"
            await asyncio.sleep(0.02)

    async def until_beating(self, sandbox: AsyncSandbox, *names: str) -> None:
        """Wait until processes beat in all these files."""
        for name in names:
            beat = functools.partial(size, sandbox, name)
            await self.until(beat, f"a beat in {name}")


def _as_test(behaviour: Behaviour) -> Callable[[Behaviours], None]:
    name = behaviour.__name__.removeprefix("test_")

    def test(self: Behaviours) -> None:
        run = functools.partial(_with_what_it_names, self, behaviour)
        backend = self.backend()
        needs: frozenset[str] = getattr(behaviour, "needs", frozenset())
        fields: frozenset[str] = getattr(behaviour, "fields", frozenset())
        lacking, unknown = needs - backend.capabilities, fields - backend.accepts
        if lacking or unknown:
            asyncio.run(_refused(self, run, lacking | unknown))
            self.unsupported = True
        elif gap := self.gaps.get(name):
            _open_gap(self, name, gap, run)
        else:
            asyncio.run(run())

    test.__name__ = behaviour.__name__
    test.__qualname__ = behaviour.__qualname__
    test.__doc__ = behaviour.__doc__
    test.__module__ = behaviour.__module__
    test.pytestmark = getattr(behaviour, "pytestmark", [])  # type: ignore[attr-defined]
    test.behaviour = name  # type: ignore[attr-defined]
    return test


async def _with_what_it_names(suite: Behaviours, behaviour: Behaviour) -> None:
    names = list(inspect.signature(behaviour).parameters)[1:]
    given: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        for name in names:
            if name == "tmp":
                given[name] = Path(stack.enter_context(_temporary_directory()))
            else:
                opened = suite.client() if name == "client" else suite.sandbox()
                given[name] = await stack.enter_async_context(opened)
        await behaviour(suite, **given)


@contextmanager
def _temporary_directory() -> Generator[str, None, None]:
    with tempfile.TemporaryDirectory(prefix="sandlot-test-") as path:
        yield os.path.realpath(path)  # as a process there would call it


async def _refused(suite: Behaviours, run: Prepared, missing: frozenset[str]) -> None:
    """Assert that the behaviour fails for what is missing, before any I/O."""
    import pytest

    spy = Spy(suite.backend)
    suite.backend = spy.backend  # type: ignore[method-assign]
    with pytest.raises(FeatureNotSupportedError) as caught:
        await run()
    error = caught.value
    assert error.capability in missing or error.field in missing, (
        f"refused for {error.capability or error.field!r}, but {sorted(missing)} is missing"
    )
    assert error.backend, "the refusal does not name the backend"
    assert not spy.refusals, f"refused by the adapter, not before it: {spy.refusals}"


def _open_gap(suite: Behaviours, name: str, gap: Gap, run: Prepared) -> None:
    import pytest

    try:
        asyncio.run(run())
    except (Exception, pytest.fail.Exception) as exc:  # noqa: BLE001  (any failure will do)
        suite.gap = str(gap)
        pytest.xfail(f"{gap} ({type(exc).__name__})")
    pytest.fail(f"{name} holds: take it out of gaps ({gap})")


# -------------------------------------------------------------- watching processes


def beating(name: str) -> str:
    """Return a shell line of a process that shows in a file that it lives."""
    return f"while :; do echo . >> {name}; sleep 0.05; done"


async def size(sandbox: AsyncSandbox, name: str) -> int:
    """Return a file's size, 0 if there is none."""
    if not await sandbox.exists(name):
        return 0
    return (await sandbox.stat(name)).size


async def beats(sandbox: AsyncSandbox, name: str) -> bool:
    """Whether the process that beats in a file is alive."""
    before = await size(sandbox, name)
    await asyncio.sleep(QUIET)
    return await size(sandbox, name) > before


def reading(stream: AsyncIterator[Chunk]) -> aclosing[AsyncGenerator[Chunk, None]]:
    """Return what closes a stream at the end of a block, as ``async for`` alone does not."""
    return aclosing(cast("AsyncGenerator[Chunk, None]", stream))


def resident_mb() -> float:
    """Return how much memory this process has resident; 0 where that can't be known."""
    if not sys.platform.startswith("linux"):
        return 0.0
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024 / 1024


def bare(result: SandboxResult) -> SandboxResult:
    """Return a result without its times, for comparing."""
    return dataclasses.replace(result, duration=0.0, usage=None)
