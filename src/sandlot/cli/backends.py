"""``sandlot backends``: which backends can be used here, and what the others want."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sandlot.cli import _options
from sandlot.cli._verb import Verb

if TYPE_CHECKING:
    from sandlot.cli._known import Known


@click.command("backends", cls=Verb, short_help="Show which backends can be used here, and why.")
@_options.backend("all that are installed")
@click.option("--capabilities", is_flag=True, help="Show what each can do.")
@_options.as_json
def command(backend: str | None, capabilities: bool, as_json: bool) -> None:
    """Show which backends can be used here, and what the others want.

    Also called 'providers'. Looks, and starts nothing; 'sandlot doctor' tries out, and
    'sandlot test' makes a sandbox.
    """
    from sandlot.cli import _json, _known

    known = _known.known(backend)
    if as_json:
        _json.show([one.as_object() for one in known])
    elif capabilities:
        _show_capabilities(known)
    else:
        _show(known)


def _show(known: list[Known]) -> None:
    from sandlot.cli import _table

    _table.show(
        ("BACKEND", "USABLE", "ISOLATION", "WHAT IT WANTS"),
        [
            (one.name, "no" if one.reason else "yes", str(one.isolation or ""), one.reason or "")
            for one in known
        ],
    )


def _show_capabilities(known: list[Known]) -> None:
    from sandlot.capabilities import Capability
    from sandlot.cli import _table

    _table.show(
        ("CAPABILITY", *(one.name for one in known)),
        [
            (str(capability), *("yes" if capability in one.capabilities else "" for one in known))
            for capability in Capability
        ],
    )
