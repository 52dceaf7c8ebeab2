"""The root of the command line: finds the verb, and tells how it failed."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from importlib import import_module

import click

import sandlot
from sandlot.cli import _say

VERBS = (
    "run", "exec", "list", "cp", "destroy", "backends", "doctor", "test", "gc", "completion",
)  # fmt: skip
ALIASES = {"providers": "backends"}


class _Verbs(click.Group):
    """The verbs, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in VERBS:
            return None
        command = import_module(f"sandlot.cli.{name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            close = difflib.get_close_matches(name, (*VERBS, *ALIASES), n=1)
            guess = f"did you mean {close[0]!r}? " if close else ""
            error = click.UsageError(f"there is no command {name!r}", ctx)
            raise _say.with_hint(error, f"{guess}sandlot --help lists them")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
)
@click.version_option(sandlot.__version__, message="%(prog)s %(version)s")
@click.pass_context
def root(ctx: click.Context) -> None:
    """Run code in sandboxes, on this machine or at any provider.

    The backend is named with -b or by the variable SANDLOT_BACKEND. Results go to
    standard output, everything else to standard error. SANDLOT_DEBUG=1 shows the
    traceback of an error.

    Exit codes: 0 success, 1 failure, 2 misuse; 'run' and 'exec' return the program's own
    and 125 for a failure of sandlot itself; 130, 143 or 129 after SIGINT, SIGTERM or SIGHUP.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def invoke(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; errors are told in words."""
    try:
        code = root.main(
            None if arguments is None else list(arguments),
            prog_name="sandlot",
            standalone_mode=False,
        )
    except click.Abort:
        return 130
    except click.ClickException as exc:
        return _told(_say.misuse(exc, exc.exit_code))
    except _say.Failure as exc:
        return _told(exc)
    return code if isinstance(code, int) else 0


def _told(failure: _say.Failure) -> int:
    if os.environ.get("SANDLOT_DEBUG"):
        _say.traceback_of(failure)
    _say.error(failure.message, failure.hint)
    return failure.exit_code
