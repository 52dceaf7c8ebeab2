"""The examples in a page of documentation: found, and run in the order they stand in.

    python blocks.py PAGE      runs every example of a page in the current directory

All Python of one page shares one namespace and one event loop, as a reader who follows along
would have it. A block may ``await``. A ``text`` block right after a Python block is what that
one prints. A line that is ``...`` stands for any lines, or none; ``...`` within a line for any
text.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN = ("python", "console")
SHOWN = ("text", "toml", "yaml", "json", "c", "sql")
"""Languages of blocks that are only looked at."""

_FENCE = re.compile(r"(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>.*)")
_INFO = re.compile(r'(?P<language>\w*)(?: title="not run: (?P<reason>[^"]+)")?')
_TIMEOUT = 60


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: str
    line: int
    language: str
    text: str
    no_run: str | None
    """Why it is not run."""
    prints: str | None = None
    """What it must print."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.language or 'no language'})"


def blocks(page: Path, name: str | None = None) -> list[Block]:
    """Return a page's fenced blocks, each output joined to the code that prints it."""
    found: list[Block] = []
    ends: list[int] = []
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), 1))
    for number, line in lines:
        opening = _FENCE.fullmatch(line)
        if opening is None:
            continue
        indent, fence, info = opening["indent"], opening["fence"], opening["info"].strip()
        body, end = [], number
        for end, inner in lines:  # noqa: B007  (used below)
            if inner.strip().startswith(fence) and not inner.strip().strip(fence[0]):
                break
            body.append(inner.removeprefix(indent))
        told = _INFO.fullmatch(info)
        block = Block(
            page=name or page.name,
            line=number,
            language=told["language"] if told else info,
            text="\n".join(body) + "\n",
            no_run=told["reason"] if told else None,
        )
        is_output = block.language == "text" and found and number - ends[-1] <= 2
        if is_output and found[-1].language == "python":
            found[-1] = Block(**{**vars(found[-1]), "prints": block.text})
        else:
            found.append(block)
        ends.append(end)
    return found


def matches(expected: str, actual: str) -> bool:
    """Whether a text is what was expected, but for what ``...`` stands for."""
    pattern = "".join(
        r"(?:[^\n]*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*?") + r"\n"
        for line in expected.strip("\n").split("\n")
    )
    return re.fullmatch(pattern, actual.strip("\n") + "\n", re.DOTALL) is not None


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a console block, each with the output shown below it."""
    command, output = "", ""
    more = False
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, output
            command, output = line[2:], ""
        elif more:
            command += "\n" + line.removeprefix("> ")
        else:
            output += line + "\n"
            continue
        more = command.endswith("\\")
    if command:
        yield command, output


class Failure(Exception):
    """An example does not do what the page says."""


class Reader:
    """Somebody who follows a page from top to bottom."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._runner = asyncio.Runner()

    def follow(self, page: Path) -> int:
        """Run a page's examples; return how many."""
        count = 0
        with self._runner:
            for block in blocks(page):
                if block.no_run is None and block.language in RUN:
                    run = self._python if block.language == "python" else self._console
                    run(block)
                    count += 1
        return count

    def _python(self, block: Block) -> None:
        source = "\n" * block.line + block.text  # so that a traceback tells the page's line
        code = compile(source, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            result = eval(code, self._names)
            if inspect.iscoroutine(result):
                self._runner.run(result)
        sys.stdout.write(printed.getvalue())
        if block.prints is not None:
            self._compare(block, "", block.prints, printed.getvalue())

    def _console(self, block: Block) -> None:
        for command, shown in commands(block.text):
            done = subprocess.run(
                ["bash", "-c", command],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
            self._compare(block, command, shown, done.stdout)
            if done.returncode and not shown.strip():
                raise Failure(f"{block}: {command!r} exited with {done.returncode}")

    def _compare(self, block: Block, command: str, shown: str, printed: str) -> None:
        if not matches(shown, printed):
            raise Failure(f"{block}: {command}\n-- shown:\n{shown}\n-- printed:\n{printed}")


if __name__ == "__main__":
    print(f"{Reader().follow(Path(sys.argv[1]))} examples ran")
