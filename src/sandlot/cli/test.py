"""``sandlot test``: a real round trip through each usable backend."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import click

from sandlot.cli import _options
from sandlot.cli._verb import Verb

if TYPE_CHECKING:
    from sandlot.client import AsyncSandboxClient
    from sandlot.errors import SandboxError

T = TypeVar("T")

_STEPS = ("create", "exec", "write", "read", "destroy")
_TEXT = b"sandlot test\n\x00\xff"


@dataclass(slots=True)
class _Trip:
    """How one backend did."""

    backend: str
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    error: SandboxError | None = None

    async def timed(self, step: str, work: Awaitable[T]) -> T:
        started = time.perf_counter()
        done = await work
        self.seconds[step] = round(time.perf_counter() - started, 6)
        return done


@click.command("test", cls=Verb, short_help="Make, use and destroy a sandbox on each backend.")
@_options.backend("all that can be used here")
@_options.as_json
def command(backend: str | None, as_json: bool) -> int:
    """Make a sandbox, run a command, write and read a file, destroy it: on each backend.

    Shows how many milliseconds each step took. Providers may charge for it. The exit code
    is 1 if one of them fails, or none can be used.
    """
    from sandlot import registry
    from sandlot.cli import _json, _say, _signals, _table

    names = [backend] if backend else registry.usable()
    if not names:
        raise _say.Failure("no backend can be used here", "sandlot backends says why")
    trips = _signals.run(_tour(names))
    if as_json:
        _json.show([_object(trip) for trip in trips])
    else:
        headings = ("BACKEND", "RESULT", *(f"{step.upper()} MS" for step in _STEPS))
        _table.show(headings, [_row(trip) for trip in trips])
    for trip in trips:
        if trip.error is not None:
            failure = _say.failure(trip.error)
            _say.error(f"{trip.backend}: {failure.message}", failure.hint)
    return 1 if any(trip.error for trip in trips) else 0


async def _tour(names: list[str]) -> list[_Trip]:
    # One after the other: they are timed.
    return [await _travel(name) for name in names]


async def _travel(name: str) -> _Trip:
    from sandlot.client import AsyncSandboxClient
    from sandlot.errors import SandboxError

    trip = _Trip(name)
    try:
        async with AsyncSandboxClient(name) as client:
            await _round(trip, client)
    except SandboxError as exc:
        trip.error = exc
    return trip


async def _round(trip: _Trip, client: AsyncSandboxClient) -> None:
    from sandlot.cli._signals import must_clean_up
    from sandlot.errors import SandboxExecutionError

    with must_clean_up(f"the sandbox of the test on {trip.backend}"):
        sandbox = await trip.timed("create", client.create())
        try:
            result = await trip.timed("exec", sandbox.execute_command(["echo", "hello"]))
            if (result.exit_code, result.stdout) != (0, "hello\n"):
                raise SandboxExecutionError(f"echo gave {result.exit_code}, {result.stdout!r}")
            await trip.timed("write", sandbox.write_file("sandlot-test", _TEXT))
            if (found := await trip.timed("read", sandbox.read_file("sandlot-test"))) != _TEXT:
                raise SandboxExecutionError(f"wrote {_TEXT!r}, read {found!r}")
        finally:
            await trip.timed("destroy", sandbox.destroy())


def _object(trip: _Trip) -> dict[str, object]:
    return {
        "backend": trip.backend,
        "ok": trip.error is None,
        "error": trip.error and trip.error.message,
        "seconds": trip.seconds,
    }


def _row(trip: _Trip) -> tuple[str, ...]:
    times = (f"{1000 * trip.seconds[step]:.1f}" if step in trip.seconds else "" for step in _STEPS)
    return (trip.backend, "failed" if trip.error else "ok", *times)
