"""What all verbs have in common: how a failure becomes an exit code."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from sandlot.cli import _say
from sandlot.errors import SandboxError

_BROKEN_PIPE = 141
"""What a shell reports for a program that SIGPIPE has ended."""


class Interrupted(Exception):
    """A signal ended the work; ``trouble`` is what went wrong with the cleaning up, if any."""

    def __init__(self, number: int, trouble: SandboxError | OSError | None = None) -> None:
        super().__init__(number)
        self.exit_code = 128 + number
        self.trouble = trouble


class Verb(click.Command):
    """A verb. Its callback may return an exit code."""

    failed = 1
    misused = 2

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the arguments."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.ClickException as exc:
            raise _say.misuse(exc, self.misused) from exc

    def invoke(self, ctx: click.Context) -> Any:
        """Run the callback, and let what it printed reach its reader."""
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            _abandon_stdout()
            return _BROKEN_PIPE
        except Interrupted as exc:
            if exc.trouble is not None:
                failure = _say.failure(exc.trouble)
                _say.error(failure.message, failure.hint)
            return exc.exit_code
        except click.ClickException as exc:
            raise _say.misuse(exc, self.misused) from exc
        except _say.Failure as exc:
            exc.exit_code = self.failed
            raise
        except (SandboxError, OSError) as exc:
            failure = _say.failure(exc)
            failure.exit_code = self.failed
            raise failure from exc


class ProgramVerb(Verb):
    """A verb that runs a program and returns its exit code.

    Its own failures, misuse included, have a code apart, as with docker(1).
    """

    failed = misused = 125


def _abandon_stdout() -> None:
    """Make the interpreter's last flush find no broken pipe to complain about."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
