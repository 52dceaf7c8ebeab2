"""``sandlot exec``: run a command in a sandbox that is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from sandlot.cli import _options
from sandlot.cli._verb import ProgramVerb

if TYPE_CHECKING:
    from sandlot.cli._running import Job
    from sandlot.types import SandboxResult


@click.command(
    "exec",
    cls=ProgramVerb,
    short_help="Run a command in a sandbox that is there.",
    epilog="""\b
Examples:
  sandlot exec local-3f9c21ab04de "ls -la"
  sandlot exec ID -b docker -w /app -- npm run build
  sandlot exec ID -T sh""",
)
@click.argument("sandbox_id", metavar="ID")
@_options.command
@_options.backend("all that can be used here are asked for the sandbox")
@_options.env
@_options.timeout
@click.option("-w", "--workdir", metavar="DIR", help="Where the command starts.")
@_options.tty
def command(
    sandbox_id: str,
    command: tuple[str, ...],
    backend: str | None,
    env: Mapping[str, str],
    timeout: float | None,
    workdir: str | None,
    tty: bool,
) -> int:
    """Run a command in a sandbox that is there, and leave the sandbox there.

    COMMAND, output, input and exit code are as for 'sandlot run'. Ctrl-C kills the command.
    """
    from sandlot.cli import _signals
    from sandlot.cli._running import Job
    from sandlot.cli._streams import kind_of_input

    if not any(command):
        raise click.UsageError("nothing to run: name a command")
    if tty:
        from sandlot.cli import _terminal

        _terminal.require()
    job = Job(env=env, cwd=workdir, timeout=timeout, tty=tty, input=kind_of_input())
    return _signals.run(_exec(sandbox_id, backend, command, job)).exit_code


async def _exec(
    sandbox_id: str, backend: str | None, words: tuple[str, ...], job: Job
) -> SandboxResult:
    from sandlot.cli import _everywhere, _running, _session

    async with _everywhere.clients(backend) as clients:
        sandbox = await _everywhere.search(clients, sandbox_id)
        _session.check_able(sandbox.backend_name, sandbox.capabilities.__contains__, job.needs)
        return await _running.run(sandbox, words[0] if len(words) == 1 else words, job)
