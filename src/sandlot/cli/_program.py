"""Code to run: read here, its language told, put into a sandbox as a file, run there.

Code never becomes part of a shell line: whatever quotes it holds, it is a file's content.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sandlot import _languages
from sandlot._exec import to_the_end
from sandlot._languages import Language
from sandlot.cli import _say

if TYPE_CHECKING:
    from sandlot.cli._deps import Project
    from sandlot.sandbox import AsyncSandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A piece of code, ready to be put into a sandbox."""

    name: str
    """Its file name there, with a suffix that its language's tools accept."""
    data: bytes
    language: Language
    project: Project | None = None
    """What it needs installed first."""

    def argv(self, path: str, arguments: Sequence[str]) -> tuple[str, ...]:
        """Return the command that runs the file at ``path``."""
        script = self.language.script(from_file=True)
        if self.project is not None:
            script = self.project.recipe.launch.replace("RUN", script)
        return ("/bin/sh", "-c", script, "sh", path, *arguments)

    @asynccontextmanager
    async def placed(self, sandbox: AsyncSandbox, *, tidy: bool) -> AsyncGenerator[str]:
        """Put it into a sandbox; yield its path there, as commands know it.

        Args:
            sandbox: Where.
            tidy: Remove it at the end, from a sandbox that lives on.
        """
        directory = f"/tmp/.sandlot-{secrets.token_hex(8)}"
        files = dict(self.project.files) if self.project is not None else {}
        path = f"{directory}/{self.name}"
        try:
            for name, data in {**files, self.name: self.data}.items():
                await sandbox.write_file(f"{directory}/{name}", data)
            yield sandbox.command_path(path)
        finally:
            if tidy and sandbox.is_alive:
                with suppress(FileNotFoundError):  # its first file could not be written
                    await to_the_end(sandbox.remove(directory, recursive=True))


def read(file: str | None, language: str | None, *, deps: bool) -> Program:
    """Return the program in a file of this machine, or on standard input.

    Raises:
        click.UsageError: If its language is neither said nor to be told from it, or it can't
            be read.
    """
    if file in (None, "-"):
        if deps:
            raise click.UsageError("--deps needs --file: what is needed is told by files beside it")
        return _from_stdin(language)
    assert file is not None
    path = Path(file)
    data = path.read_bytes()
    told = _named(language) if language else _told(path.name, data)
    project = _project(path, told) if deps else None
    name = project.name if project else _fitting(path.name, told)
    return Program(name=name, data=data, language=told, project=project)


def _project(path: Path, language: Language) -> Project:
    from sandlot.cli import _deps

    return _deps.project(path, language)


def _from_stdin(language: str | None) -> Program:
    if sys.stdin.isatty():
        raise _say.with_hint(
            click.UsageError("no code: standard input is a terminal"),
            "pipe it in, or name its file with --file",
        )
    data = sys.stdin.buffer.read()
    told = _named(language) if language else _told("standard input", data)
    return Program(name=f"main{told.suffixes[0]}", data=data, language=told)


def _named(language: str) -> Language:
    return _languages.by_name(language)


def _told(name: str, data: bytes) -> Language:
    first_line = data[:200].partition(b"\n")[0].decode("utf-8", "replace")
    found = _languages.by_shebang(first_line) or _languages.by_path(name)
    if found is None:
        known = ", ".join(language.name for language in _languages.LANGUAGES)
        raise _say.with_hint(
            click.UsageError(f"{name}: can't tell its language"),
            f"say it with --lang; known are {known}",
        )
    return found


def _fitting(name: str, language: Language) -> str:
    """Return the name with a suffix of the language, which compilers insist on."""
    suffixes = tuple(suffix.lower() for suffix in language.suffixes)
    return name if name.lower().endswith(suffixes) else name + language.suffixes[0]
