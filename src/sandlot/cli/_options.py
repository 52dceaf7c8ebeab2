"""The options that verbs share."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import click

from sandlot.cli import _say

F = TypeVar("F", bound=Callable[..., Any])
Option: TypeAlias = Callable[[F], F]
Parsed: TypeAlias = dict[str, str]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """Seconds, or a number with a unit."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds."""
        text = str(value).strip().lower()
        unit = _UNITS.get(text[-1:])
        try:
            seconds = float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            self.fail(f"{value!r} is not a duration such as 90, 90s, 5m or 2h", param, ctx)
        if not 0 < seconds < float("inf"):
            self.fail(f"must be above 0, is {value}", param, ctx)
        return seconds


def _pair(text: str, param: click.Parameter, ctx: click.Context) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        error = click.BadParameter(f"expected KEY=VALUE, got {text!r}", ctx, param)
        raise _say.with_hint(error, _say.is_word_of_command(ctx))
    return key, value


def pairs(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> Parsed:
    return dict(_pair(text, param, ctx) for text in given)


def _variables(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> Parsed:
    variables: Parsed = {}
    for text in given:
        if "=" in text:
            key, value = _pair(text, param, ctx)
        elif (found := os.environ.get(text)) is not None:
            key, value = text, found
        else:
            error = click.BadParameter(f"{text} is not set here", ctx, param)
            raise _say.with_hint(error, f"set it, or give its value: -e {text}=VALUE")
        variables[key] = value
    return variables


def _backend_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from sandlot import registry

    return [name for name in registry.names() if name.startswith(incomplete)]


def backend(text: str) -> Option[Any]:
    """Name a backend; the help says what omitting it means."""
    return click.option(
        "-b",
        "--backend",
        "-p",
        "--provider",
        "backend",
        metavar="NAME",
        shell_complete=_backend_names,
        help=f"Backend. Omitted: {text}.",
    )


labels: Option[Any] = click.option(
    "-l",
    "--label",
    "labels",
    metavar="KEY=VALUE",
    multiple=True,
    callback=pairs,
    help="Only sandboxes with this label. Repeatable.",
)
as_json: Option[Any] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
env: Option[Any] = click.option(
    "-e",
    "--env",
    metavar="KEY[=VALUE]",
    multiple=True,
    callback=_variables,
    help="Environment variable; without a value, it is passed on from here. Repeatable.",
)
timeout: Option[Any] = click.option(
    "-t",
    "--timeout",
    metavar="SECONDS",
    type=Duration(),
    help="Kill the command after this time; the exit code is then 124. Also 5m, 2h.",
)
tty: Option[Any] = click.option(
    "-T", "--tty", "--pty", is_flag=True, help="Give the command this terminal."
)
command: Option[Any] = click.argument(
    "command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND]..."
)

_CREATION: dict[str, dict[str, Any]] = {
    "image": {"help": "OCI image, or the provider's name for one."},
    "template": {"help": "The provider's template.", "metavar": "ID"},
    "snapshot_id": {"flags": ["--snapshot"], "help": "Start from this snapshot.", "metavar": "ID"},
    "cpu": {"type": float, "help": "CPU cores; fractions allowed.", "metavar": "CORES"},
    "memory_mb": {"type": int, "help": "Memory, in MiB.", "metavar": "MB"},
    "disk_mb": {"type": int, "help": "Disk space, in MiB.", "metavar": "MB"},
    "pids_limit": {"type": int, "help": "Most processes at one time.", "metavar": "N"},
    "gpu": {"help": "GPU type, or TYPE:COUNT.", "metavar": "TYPE"},
    "timeout_secs": {
        "flags": ["--lifetime"],
        "type": Duration(),
        "help": "The sandbox's longest life, from its creation.",
        "metavar": "SECONDS",
    },
    "workdir": {
        "flags": ["-w", "--workdir"],
        "help": "Where commands start. On local, a directory of this machine.",
        "metavar": "DIR",
    },
    "user": {"flags": ["-u", "--user"], "help": "The user that commands run as."},
    "allow_internet": {
        "flags": ["--no-internet"],
        "flag_value": False,
        "help": "Cut the sandbox off the network.",
    },
    "backend_options": {
        "flags": ["-o", "--option"],
        "multiple": True,
        "callback": pairs,
        "help": "Option that only this backend knows. Repeatable.",
        "metavar": "KEY=VALUE",
    },
    "best_effort": {
        "is_flag": True,
        "help": "Go on without what the backend can't honour, and say so.",
    },
}
"""The fields of `SandboxSpec` that describe the sandbox to make, as options."""


def spelled(field: str) -> str:
    """Return how the option for a field of `SandboxSpec` is spelled."""
    flags: list[str] = _CREATION[field].get("flags", [f"--{field.replace('_', '-')}"])
    return flags[-1]


def creation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options that describe a new sandbox, as one parameter ``asked``.

    It holds those that are given.
    """

    @functools.wraps(function)
    def collecting(**given: Any) -> Any:
        asked = {field: given.pop(field) for field in _CREATION}
        asked = {field: value for field, value in asked.items() if value not in (None, {})}
        return function(asked=asked, **given)

    described: Callable[..., Any] = collecting
    for field, details in reversed(_CREATION.items()):
        details = dict(details)
        details.pop("flags", None)
        flags = _CREATION[field].get("flags", [spelled(field)])
        described = click.option(*flags, field, default=None, **details)(described)
    return described
