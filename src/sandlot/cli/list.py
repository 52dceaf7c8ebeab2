"""``sandlot list``: the sandboxes there are."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from sandlot.cli import _options
from sandlot.cli._verb import Verb

if TYPE_CHECKING:
    from sandlot.cli._everywhere import Failures
    from sandlot.types import SandboxInfo


@click.command("list", cls=Verb, short_help="List sandboxes.")
@_options.backend("all that can be used here")
@_options.labels
@_options.as_json
def command(backend: str | None, labels: Mapping[str, str], as_json: bool) -> int:
    """List sandboxes, whoever made them.

    A backend that fails is told on standard error and makes the exit code 1; the others'
    sandboxes are listed all the same.
    """
    from sandlot.cli import _json, _signals, _table

    found, failed = _signals.run(_listed(backend, labels))
    if as_json:
        _json.show([_object(info) for info in found])
    elif found:
        headings = ("ID", "BACKEND", "STATE", "AGE", "ENDS IN", "KEPT", "LABELS")
        _table.show(headings, [_row(info) for info in found])
    elif not failed:
        click.echo("no sandboxes", err=True)
    return failed.tell()


async def _listed(
    backend: str | None, labels: Mapping[str, str]
) -> tuple[list[SandboxInfo], Failures]:
    from sandlot.cli import _everywhere

    async with _everywhere.clients(backend) as clients:
        return await _everywhere.listed(backend, clients, labels)


def _object(info: SandboxInfo) -> dict[str, object]:
    return {
        "id": info.id,
        "backend": info.backend,
        "state": str(info.state),
        "labels": dict(info.labels),
        "created": info.created,
        "expires": info.expires,
        "resource_id": info.resource_id,
        "kept": info.kept,
    }


def _row(info: SandboxInfo) -> tuple[str, ...]:
    now = time.time()
    return (
        info.id,
        info.backend,
        str(info.state),
        _span(now - info.created) if info.created else "",
        _span(info.expires - now) if info.expires else "",
        "yes" if info.kept else "no",
        " ".join(f"{key}={value}" for key, value in sorted(info.labels.items())),
    )


def _span(seconds: float) -> str:
    seconds = max(0, int(seconds))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
