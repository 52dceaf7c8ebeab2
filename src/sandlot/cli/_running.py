"""Running one command in a sandbox, joined to this program's own streams."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass

from sandlot._exec import to_the_end
from sandlot.capabilities import Capability
from sandlot.cli import _say
from sandlot.cli._streams import Input, input_pieces, sinks
from sandlot.errors import SandboxConnectionError
from sandlot.process import AsyncProcess
from sandlot.sandbox import AsyncSandbox
from sandlot.types import DEFAULT_MAX_OUTPUT_BYTES, SandboxResult

_KEPT_WHILE_SHOWN = 4 * 1024 * 1024
"""Bytes kept of output that is shown as it comes; it bridges the time until it is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """How a command is run."""

    env: Mapping[str, str]
    cwd: str | None = None
    timeout: float | None = None
    tty: bool = False
    input: Input
    """What is passed on to it."""
    show: bool = True
    """Print its output as it comes, rather than only keep it."""

    @property
    def needs(self) -> dict[Capability, str]:
        """What the backend must be able to do for it, and the reason in words."""
        needs: dict[Capability, str] = {}
        if self.tty:
            needs[Capability.PTY] = "give a command a terminal"
        if self.input is Input.DATA:
            needs[Capability.STDIN] = "pass input on to a command (none: </dev/null)"
        return needs


async def run(sandbox: AsyncSandbox, command: str | Sequence[str], job: Job) -> SandboxResult:
    """Run a command to its end; whatever stops us before kills it."""
    if Capability.STREAM not in sandbox.capabilities:
        result = await _run_whole(sandbox, command, job)
    else:
        result = await _run_live(sandbox, command, job)
    if result.timed_out:
        _say.note(f"the command was killed after {job.timeout:g} s (--timeout)")
    return result


async def _run_whole(
    sandbox: AsyncSandbox, command: str | Sequence[str], job: Job
) -> SandboxResult:
    stdin = None
    if job.input is Input.DATA:
        stdin = b"".join([piece async for piece in input_pieces()])
    result = await sandbox.execute_command(
        command, env=job.env, cwd=job.cwd, timeout=job.timeout, stdin=stdin
    )
    if job.show:
        streams = sinks()
        await streams["stdout"].write(result.stdout_bytes)
        await streams["stderr"].write(result.stderr_bytes)
        _tell_lost(result.out.dropped + result.err.dropped)
    return result


async def _run_live(sandbox: AsyncSandbox, command: str | Sequence[str], job: Job) -> SandboxResult:
    fed = job.input is not Input.NOTHING and Capability.STDIN in sandbox.capabilities
    env, pty = dict(job.env), None
    if job.tty:
        from sandlot.cli import _terminal

        env = {"TERM": os.environ.get("TERM", "xterm"), **env}
        pty = _terminal.size()
    process = await sandbox.start(
        command,
        env=env,
        cwd=job.cwd,
        timeout=job.timeout,
        stdin=True if fed else None,
        pty=pty,
        max_output_bytes=_KEPT_WHILE_SHOWN if job.show else DEFAULT_MAX_OUTPUT_BYTES,
    )
    try:
        with _at_terminal(process, job):
            async with _feeding(process, fed=fed):
                if job.show:
                    await _show(process)
                return await process.wait()
    except BaseException:
        await to_the_end(process.kill())
        raise


async def _show(process: AsyncProcess) -> None:
    streams = sinks()
    async for chunk in process:
        _tell_lost(chunk.dropped)
        if chunk.data:
            await streams[chunk.stream].write(chunk.data)


def _at_terminal(process: AsyncProcess, job: Job) -> ExitStack:
    stack = ExitStack()
    if job.tty:
        from sandlot.cli import _terminal

        stack.enter_context(_terminal.resizing(process))
        stack.enter_context(_terminal.lent())
    return stack


@asynccontextmanager
async def _feeding(process: AsyncProcess, *, fed: bool) -> AsyncGenerator[None]:
    """Pass standard input on until it ends, or the command has ended."""
    feeder = asyncio.ensure_future(_feed(process)) if fed else None
    try:
        yield
    finally:
        if feeder is not None and not feeder.cancel():
            feeder.result()


async def _feed(process: AsyncProcess) -> None:
    try:
        async for piece in input_pieces():
            await process.write(piece)
        await process.close_stdin()
    except SandboxConnectionError:
        pass  # the command takes no more input, as head(1) does; wait() tells of real trouble


def _tell_lost(count: int) -> None:
    if count:
        _say.note(f"{count} bytes of output were left out: too much to keep")
