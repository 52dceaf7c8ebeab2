"""What the program tells its user beside results: on standard error, in one form."""

from __future__ import annotations

import difflib
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from sandlot.errors import SandboxError

E = TypeVar("E", bound=click.ClickException)

_HERE = {
    "best_effort=True": "--best-effort",
    "execute_command([interpreter, flag, code])": "--upload and run its interpreter",
}
"""What hints of the library mention, and what it is here."""
_CLICK_BEGINS = ("Invalid ", "No such ", "Missing ", "Got ", "Option ")


class Failure(Exception):
    """What went wrong, in words, and the exit code for it."""

    def __init__(self, message: str, hint: str | None = None, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


def failure(exc: SandboxError | OSError) -> Failure:
    """Put an error of the library, or of this machine's files, in words."""
    if isinstance(exc, OSError) and not hasattr(exc, "hint"):
        return Failure(": ".join(str(part) for part in (exc.filename, exc.strerror or exc) if part))
    hint: str | None = getattr(exc, "hint", None)
    for theirs, ours in _HERE.items():
        hint = hint and hint.replace(theirs, ours)
    text = str(exc)
    return Failure(text.partition("\n  hint: ")[0] if hint else text, hint)


def with_hint(exc: E, hint: str | None) -> E:
    """Add what to do about it to an error of the command line."""
    exc.hint = hint  # type: ignore[attr-defined]
    return exc


def misuse(exc: click.ClickException, exit_code: int) -> Failure:
    """Put an error of the command line in words."""
    hint: str | None = getattr(exc, "hint", None)
    message = exc.format_message().rstrip(".")
    if isinstance(exc, click.NoSuchOption):
        message = f"there is no option {exc.option_name}"
        hint = _about_options(exc)
    if message.startswith(_CLICK_BEGINS):
        message = message[0].lower() + message[1:]
    if hint is None and isinstance(exc, click.UsageError) and exc.ctx is not None:
        hint = f"{exc.ctx.command_path} --help"
    return Failure(message, hint, exit_code)


def is_word_of_command(ctx: click.Context) -> str | None:
    """Return the advice for a verb that takes another program's words."""
    if all(parameter.name != "command" for parameter in ctx.command.params):
        return None
    return "for a word of the command, put -- before the command: -- ls -l"


def _about_options(exc: click.NoSuchOption) -> str | None:
    close = difflib.get_close_matches(exc.option_name, exc.possibilities or (), n=1)
    advice = f"did you mean {close[0]}?" if close else None
    words = exc.ctx and is_word_of_command(exc.ctx)
    return "; ".join(part for part in (advice, words) if part) or None


def error(message: str, hint: str | None = None) -> None:
    """Tell an error, and what to do about it."""
    _tell("error", message, "red")
    if hint:
        _tell("hint", hint, "cyan")


def note(message: str) -> None:
    """Tell something worth knowing."""
    _tell("note", message, "yellow")


def traceback_of(exc: BaseException) -> None:
    """Show where an error arose, for whoever debugs it."""
    import traceback

    click.echo("".join(traceback.format_exception(exc)), err=True)


def _tell(kind: str, message: str, colour: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        kind = click.style(kind, fg=colour, bold=True)
    with suppress(OSError):  # the terminal is gone, and with it anyone to tell
        click.echo(f"{kind}: {message}", err=True)
