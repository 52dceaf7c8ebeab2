"""``sandlot doctor``: try out what really holds on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from sandlot.cli import _options
from sandlot.cli._verb import Verb

if TYPE_CHECKING:
    from sandlot.cli._everywhere import Failures
    from sandlot.cli._known import Known
    from sandlot.types import Enforcement


@click.command("doctor", cls=Verb, short_help="Try out what limits and policies hold here.")
@_options.backend("all that are installed")
@_options.as_json
def command(backend: str | None, as_json: bool) -> int:
    """Try out, by real probes, how far each limit and policy holds on each usable backend.

    The exit code is 1 if the backend named can't be used, or a probe fails.
    """
    from sandlot.cli import _json, _known, _say, _signals

    known = _known.known(backend)
    probed, failed = _signals.run(_probe([one.name for one in known if not one.reason]))
    if as_json:
        _json.show(
            **_here(),
            backends=[
                one.as_object() | {"enforcement": _objects(probed.get(one.name, {}))}
                for one in known
            ],
        )
    else:
        for name, value in _here().items():
            click.echo(f"{name.replace('_', ' ')}: {value}")
        click.echo()
        _show(known, probed)
    code = failed.tell()
    if backend and known[0].reason:
        _say.error(f"the {backend} backend can't be used here: {known[0].reason}")
        return 1
    return code


async def _probe(names: list[str]) -> tuple[dict[str, Mapping[str, Enforcement]], Failures]:
    from sandlot import registry
    from sandlot.cli import _everywhere

    async def probe(name: str) -> Mapping[str, Enforcement]:
        backend = registry.open_backend(name)
        try:
            return await backend.probe()
        finally:
            await backend.aclose()

    return await _everywhere.each({name: name for name in names}, probe)


def _here() -> dict[str, str]:
    import platform
    import sys

    import sandlot
    from sandlot.state import state_dir

    return {
        "sandlot": sandlot.__version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "state_dir": str(state_dir()),
        "helper": _helper(),
    }


def _helper() -> str:
    from sandlot import helper

    try:
        return " ".join(helper.command())
    except (FileNotFoundError, ValueError) as exc:
        return f"none: {exc}"


def _objects(probed: Mapping[str, Enforcement]) -> dict[str, dict[str, str]]:
    return {
        field: {"level": str(found.level), "how": found.how}
        for field, found in sorted(probed.items())
    }


def _show(known: list[Known], probed: Mapping[str, Mapping[str, Enforcement]]) -> None:
    from sandlot.cli import _table

    rows: list[tuple[str, ...]] = []
    for one in known:
        rows.append((one.name, "isolation", str(one.isolation or ""), one.reason or ""))
        rows += [
            (one.name, field, str(found.level).replace("_", " "), found.how)
            for field, found in sorted(probed.get(one.name, {}).items())
        ]
    _table.show(("BACKEND", "WHAT", "HOW FAR", "HOW, OR WHY NOT"), rows)
