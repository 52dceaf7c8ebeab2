"""Running a command to its end, for backends that can start one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from sandlot._output import Output
from sandlot.types import Command, Exit, SandboxResult

if TYPE_CHECKING:
    from sandlot.contract import Handle, ProcessHandle

T = TypeVar("T")

TIMED_OUT_EXIT_CODE = 124
"""What timeout(1) exits with."""


async def exec_by_start(handle: Handle, command: Command) -> SandboxResult:
    """Run a command by ``handle.start``; its tree is killed on timeout and when cancelled."""
    output = Output(command.max_output_bytes)
    started = time.perf_counter()
    process = await handle.start(command, output)
    return await run_to_end(process, command, output, started)


async def run_to_end(
    process: ProcessHandle, command: Command, output: Output, started: float
) -> SandboxResult:
    """Await a process that was started at ``started``; kill its tree on timeout or cancel."""
    timed_out = False
    try:
        if command.timeout is None:
            ended = await process.wait()
        else:
            try:
                async with asyncio.timeout(command.timeout):
                    ended = await process.wait()
            except TimeoutError:
                timed_out = True
                await process.kill()
                ended = await process.wait()
    except asyncio.CancelledError:
        await to_the_end(process.kill())
        raise
    return result_of(ended, output, time.perf_counter() - started, timed_out=timed_out)


def result_of(ended: Exit, output: Output, duration: float, *, timed_out: bool) -> SandboxResult:
    """Return the result of a command that has ended."""
    return SandboxResult(
        exit_code=TIMED_OUT_EXIT_CODE if timed_out else ended.exit_code,
        out=output.captured("stdout"),
        err=output.captured("stderr"),
        signal=ended.signal,
        timed_out=timed_out,
        duration=duration,
        usage=ended.usage,
    )


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await clean-up work that must finish even when its caller is cancelled (again).

    The cancellation is delivered once the work is done.
    """
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        task.exception()  # seen: the cancellation outranks it
        raise asyncio.CancelledError
    return task.result()
