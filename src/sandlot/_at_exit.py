"""What becomes of the bridge's loop when the program, or a worker process, ends."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, Protocol, TypeVar

_log = logging.getLogger("sandlot")

PATIENCE = 3.0
"""Seconds that each of the three steps at the program's end gets."""

P = ParamSpec("P")
T = TypeVar("T")


class Destroyable(Protocol):
    """What is destroyed when the program ends, unless somebody asked to keep it."""

    @property
    def ends_with_program(self) -> bool:
        """Whether it still is to be destroyed."""
        ...

    async def destroy(self) -> None:
        """End it."""
        ...


async def drain(calls: Iterable[asyncio.Task[Any]], made: Iterable[Destroyable]) -> None:
    """Cancel the calls that run, destroy what nobody asked to keep, then end all else."""
    this = asyncio.current_task()
    await _cancel(task for task in calls if task is not this)
    await _destroy([each for each in made if each.ends_with_program])
    await _cancel(task for task in asyncio.all_tasks() if task is not this)
    await asyncio.get_running_loop().shutdown_asyncgens()


def close_with_worker(close: Callable[[], None]) -> None:
    """Have ``close`` called at the end of a multiprocessing worker that was forked.

    Such a worker leaves by os._exit(), which passes over atexit.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, close, exitpriority=0)


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    running = {task for task in tasks if task.cancel()}
    if running:
        await asyncio.wait(running, timeout=PATIENCE)


async def _destroy(doomed: Iterable[Destroyable]) -> None:
    """Destroy all at once, and say what could not be."""
    tasks = {asyncio.ensure_future(made.destroy()): made for made in doomed}
    if tasks:
        await asyncio.wait(tasks, timeout=PATIENCE)
    for task, made in tasks.items():
        error = _failure(task)
        if error is not None:
            _log.warning("%r may outlive this program: %s", made, error)


def _failure(task: asyncio.Task[None]) -> BaseException | str | None:
    if not task.done():
        return f"it took more than {PATIENCE:.0f} s to destroy"
    return "destroying it was cancelled" if task.cancelled() else task.exception()


class Workers(ThreadPoolExecutor):
    """The threads behind asyncio.to_thread(), until the program ends.

    Then no pool takes work, and from Python 3.12 on no thread can be started; but what
    destroys a sandbox must go on working, and so it runs at once, in the loop's own thread.
    """

    def __init__(self) -> None:
        # Many, as content may come from a source that itself calls and so waits for others.
        super().__init__(64, thread_name_prefix="sandlot-worker")

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError as exc:
            if "shutdown" not in str(exc):
                raise
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as exc:  # noqa: BLE001  (handed to who awaits the future)
            future.set_exception(exc)
        return future
