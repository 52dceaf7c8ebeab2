"""``sandlot gc``: remove what crashed programs left behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sandlot.cli import _options
from sandlot.cli._verb import Verb

if TYPE_CHECKING:
    from sandlot.cli._everywhere import Failures


@click.command("gc", cls=Verb, short_help="Remove what crashed programs left behind.")
@_options.backend("all that can be used here")
@_options.as_json
def command(backend: str | None, as_json: bool) -> int:
    """Remove sandboxes whose program is gone and that nobody asked to keep.

    Prints a line for each: its backend and its id.
    """
    from sandlot.cli import _json, _signals

    removed, failed = _signals.run(_collect(backend))
    if as_json:
        _json.show([{"backend": name, "removed": list(ids)} for name, ids in removed.items()])
    else:
        for name, ids in removed.items():
            for sandbox_id in ids:
                click.echo(f"{name} {sandbox_id}")
    return failed.tell()


async def _collect(backend: str | None) -> tuple[dict[str, Sequence[str]], Failures]:
    from sandlot.cli import _everywhere

    async with _everywhere.clients(backend) as clients:
        by_name = {client.backend_name: client for client in clients}
        return await _everywhere.each(by_name, lambda client: client.gc())
