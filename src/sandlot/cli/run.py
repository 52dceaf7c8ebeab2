"""``sandlot run``: run a command, a file or code in a sandbox of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from sandlot.cli import _options
from sandlot.cli._verb import ProgramVerb

if TYPE_CHECKING:
    from sandlot.cli._paths import Download, Upload
    from sandlot.cli._program import Program


@click.command(
    "run",
    cls=ProgramVerb,
    short_help="Run a command, a file or code in a sandbox.",
    epilog="""\b
Examples:
  sandlot run -b local "echo hello | wc -c"
  sandlot run -b docker --image python:3.12-slim -- python3 -c 'print(1)'
  sandlot run -b local --file script.py -- --verbose data.csv
  cat main.go | sandlot run -b local --lang go
  sandlot run -b local --file app.ts --deps -e API_KEY -t 10m
  sandlot run -b docker --upload src:/src --download /src/out "make -C /src"
  sandlot run -b local -l project=web --reuse "npm test"
  sandlot run -b docker -T bash""",
)
@_options.command
@click.option(
    "-f",
    "--file",
    metavar="FILE",
    type=click.Path(),
    help="Run this file; its language is told by its #! line or name. - is standard input.",
)
@click.option(
    "--lang",
    "--language",
    "language",
    metavar="LANGUAGE",
    help="The code's language. Without --file, the code is read from standard input.",
)
@click.option(
    "--deps",
    is_flag=True,
    help="First install what go.mod, requirements.txt, package.json or Cargo.toml beside the "
    "file asks for.",
)
@_options.backend("the variable SANDLOT_BACKEND")
@_options.env
@click.option(
    "-l",
    "--label",
    "labels",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_options.pairs,
    help="Label to find the sandbox by. Repeatable.",
)
@click.option(
    "--reuse/--no-reuse",
    help="Take the sandbox with these labels, made if there is none. It stays.",
)
@click.option("--keep/--no-keep", help="Leave the sandbox running; its id goes to stderr.")
@_options.timeout
@_options.tty
@click.option(
    "--upload",
    "uploads",
    metavar="LOCAL[:REMOTE]",
    multiple=True,
    help="Copy a file or directory in before. Repeatable.",
)
@click.option(
    "--download",
    "downloads",
    metavar="REMOTE[:LOCAL]",
    multiple=True,
    help="Copy a file or directory out after, however the command ended. Repeatable.",
)
@_options.creation
@_options.as_json
def command(
    command: tuple[str, ...],
    file: str | None,
    language: str | None,
    deps: bool,
    backend: str | None,
    env: Mapping[str, str],
    labels: Mapping[str, str],
    reuse: bool,
    keep: bool,
    timeout: float | None,
    tty: bool,
    uploads: Sequence[str],
    downloads: Sequence[str],
    asked: dict[str, Any],
    as_json: bool,
) -> int:
    """Run a command, a file or code in a sandbox, which is destroyed afterwards.

    One word is a line for the shell. Several are a program and its arguments, which no
    shell touches; put -- before them if some begin with a dash. With --file or --lang they
    are arguments of the code.

    Output comes as it is printed, standard input is passed on, and the exit code is the
    program's: 128 + n if signal n ended it, 124 if its time ran out, and 125 for a failure
    of sandlot itself.
    """
    from sandlot.cli import _signals
    from sandlot.cli._errand import Errand
    from sandlot.cli._running import Job
    from sandlot.cli._session import Place
    from sandlot.cli._streams import Input, kind_of_input

    is_code = file is not None or language is not None
    if not is_code and not any(command):
        raise click.UsageError("nothing to run: name a command, --file or --lang")
    if deps and not is_code:
        raise click.UsageError("--deps is for code: name its --file")
    if reuse and not labels:
        raise click.UsageError("--reuse finds a sandbox by its labels: name one with -l")
    if tty and as_json:
        raise click.UsageError("--tty and --json exclude each other")
    if tty:
        from sandlot.cli import _terminal

        _terminal.require()
    program = _read(file, language, deps=deps) if is_code else None
    from_stdin = program is not None and file in (None, "-")
    job = Job(
        env=env,
        timeout=timeout,
        tty=tty,
        input=Input.NOTHING if from_stdin else kind_of_input(),
        show=not as_json,
    )
    if labels:
        asked["labels"] = labels
    if env and (keep or reuse):  # for what runs in it later, too
        asked["env_vars"] = env
    errand = Errand(
        place=Place(backend=backend, asked=asked, keep=keep, reuse=reuse, needs=job.needs),
        words=command,
        program=program,
        job=job,
        transfers=_transfers(uploads, downloads),
    )
    sandbox_id, backend_name, result = _signals.run(errand.run())
    if as_json:
        from sandlot.cli import _json

        _json.show(
            exit_code=result.exit_code,
            stdout=result.stdout,
            stderr=result.stderr,
            duration=result.duration,
            timed_out=result.timed_out,
            truncated=result.truncated,
            sandbox_id=sandbox_id,
            backend=backend_name,
        )
    return result.exit_code


def _read(file: str | None, language: str | None, *, deps: bool) -> Program:
    from sandlot.cli import _program

    return _program.read(file, language, deps=deps)


def _transfers(
    uploads: Sequence[str], downloads: Sequence[str]
) -> tuple[Sequence[Upload], Sequence[Download]]:
    if not uploads and not downloads:
        return (), ()
    from sandlot.cli import _paths

    return (
        [_paths.parse_upload(text) for text in uploads],
        [_paths.parse_download(text) for text in downloads],
    )
