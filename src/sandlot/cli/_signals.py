"""Running a verb's work on an event loop so that no signal makes it leave anything behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from sandlot.cli import _say
from sandlot.cli._verb import Interrupted
from sandlot.errors import SandboxError

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_unfinished: list[str] = []
_last_acts: list[Callable[[], object]] = []


@contextmanager
def must_clean_up(what: str) -> Generator[None]:
    """Remember that ``what`` must not be left behind, in words for the user."""
    _unfinished.append(what)
    try:
        yield
    finally:
        _unfinished.remove(what)


@contextmanager
def undone_at_exit(undo: Callable[[], object]) -> Generator[None]:
    """Call ``undo`` at the end of the block, however this program ends."""
    _last_acts.append(undo)
    try:
        yield
    finally:
        _last_acts.remove(undo)
        undo()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run work to its end. The first signal cancels it, and it then cleans up.

    Cleaning up is not disturbed by a second signal, which only tells what is at stake; a
    third one gives up.

    Raises:
        Interrupted: If a signal ended it.
    """
    return asyncio.run(_interruptible(work))


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    received: list[int] = []

    def on_signal(number: int) -> None:
        received.append(number)
        if len(received) == 1:
            task.cancel()
        elif len(received) == 2:
            _say.note(f"still cleaning up; once more gives up and may leave {_at_stake()}")
        else:
            _give_up(number)

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        # A caller that ignores a signal, such as nohup(1), wants it ignored here too.
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, on_signal, number)
    await asyncio.wait({task})
    if not received:
        return task.result()
    try:
        task.result()
    except (asyncio.CancelledError, BrokenPipeError):
        pass
    except (SandboxError, OSError) as exc:
        raise Interrupted(received[0], exc) from exc
    raise Interrupted(received[0])


def _at_stake() -> str:
    return ", ".join(_unfinished) or "something behind ('sandlot gc' removes it)"


def _give_up(number: int) -> None:
    for act in reversed(_last_acts):
        act()
    _say.error(f"gave up; this may be left: {_at_stake()}")
    # Not sys.exit: what hangs would be waited for.
    os._exit(128 + number)
