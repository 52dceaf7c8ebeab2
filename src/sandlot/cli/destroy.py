"""``sandlot destroy``: end sandboxes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from sandlot.cli import _options
from sandlot.cli._verb import Verb

if TYPE_CHECKING:
    from sandlot.cli._everywhere import Clients, Failures
    from sandlot.sandbox import AsyncSandbox


@click.command(
    "destroy",
    cls=Verb,
    short_help="End sandboxes.",
    epilog="""\b
Examples:
  sandlot destroy local-3f9c21ab04de
  sandlot destroy -l project=web
  sandlot destroy --all -b docker --yes""",
)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="End all that 'sandlot list' shows.")
@_options.backend("all that can be used here")
@_options.labels
@click.option("-y", "--yes", is_flag=True, help="With --all: do not ask on a terminal.")
def command(
    ids: tuple[str, ...],
    everything: bool,
    backend: str | None,
    labels: Mapping[str, str],
    yes: bool,
) -> int:
    """End sandboxes and all that runs in them, and print their ids.

    The exit code is 1 if one of them could not be ended or is not there.
    """
    from sandlot.cli import _signals

    if ids and (everything or labels):
        raise click.UsageError("name sandboxes by their ids, or by --all or labels, not both")
    if not ids and not everything and not labels:
        raise click.UsageError("name a sandbox, a label, or --all")
    ask = everything and not labels and not yes and sys.stdin.isatty() and sys.stderr.isatty()
    return _signals.run(_destroy(ids, backend, labels, ask=ask)).tell()


async def _destroy(
    ids: tuple[str, ...], backend: str | None, labels: Mapping[str, str], *, ask: bool
) -> Failures:
    from sandlot.cli import _everywhere, _say
    from sandlot.errors import SandboxNotFoundError

    async with _everywhere.clients(backend) as clients:
        if ids:
            found, failed = await _everywhere.each(
                {name: name for name in ids}, lambda name: _everywhere.search(clients, name)
            )
        else:
            found, failed = await _matching(backend, clients, labels)
        if ask and found and not await _confirmed(f"End {_count(found)}?"):
            raise _say.Failure("nothing was ended")
        _, undestroyed = await _everywhere.each(found, _end)
        gone = [pair for pair in failed if ids or not isinstance(pair[1], SandboxNotFoundError)]
        failed[:] = [*gone, *undestroyed]
        return failed


async def _matching(
    backend: str | None, clients: Clients, labels: Mapping[str, str]
) -> tuple[dict[str, AsyncSandbox], Failures]:
    from sandlot.cli import _everywhere

    infos, failed = await _everywhere.listed(backend, clients, labels)
    homes = {client.backend_name: client for client in clients}
    by_id = {info.id: info for info in infos}
    found, lost = await _everywhere.each(by_id, lambda info: homes[info.backend].get(info.id))
    failed.extend(lost)
    return found, failed


async def _end(sandbox: AsyncSandbox) -> None:
    from sandlot.cli._signals import must_clean_up

    with must_clean_up(f"sandbox {sandbox.id} on {sandbox.backend_name}"):
        await sandbox.destroy()
    click.echo(sandbox.id)


async def _confirmed(question: str) -> bool:
    from sandlot.cli._streams import input_pieces

    # Not click.confirm: it blocks the event loop, and so keeps Ctrl-C out.
    click.echo(f"{question} [y/N] ", nl=False, err=True)
    async with aclosing(input_pieces()) as lines:
        async for line in lines:
            return line.strip().lower() in (b"y", b"yes")
    return False


def _count(found: Mapping[str, AsyncSandbox]) -> str:
    return f"{len(found)} sandbox{'es' if len(found) > 1 else ''}: {', '.join(found)}"
