"""How a piece of code in some language is run: data, and the shell line made from it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from sandlot.errors import SandboxConfigurationError


@dataclass(frozen=True, slots=True)
class Runner:
    """One way to run a language: a program that must be there, and the shell line to use it."""

    program: str
    line: str
    """A shell line in which ``$1`` is the code itself or the file that holds it, and what
    follows are the program's arguments."""


@dataclass(frozen=True, slots=True)
class Language:
    """A language: its names, and the ways to run it in order of preference."""

    name: str
    suffixes: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    inline: tuple[Runner, ...] = ()
    """Ways to run code that is handed over as an argument."""
    file: tuple[Runner, ...] = ()
    """Ways to run a file."""

    def script(self, *, from_file: bool) -> str:
        """Return a shell script that runs ``$1`` with the arguments after it.

        It exits with 127 if nothing here can.
        """
        runners = self.file if from_file else self.inline
        cases = "".join(
            f"if command -v {runner.program} >/dev/null 2>&1; then {runner.line}; fi; "
            for runner in runners
        )
        looked_for = ", ".join(dict.fromkeys(runner.program for runner in runners))
        return f"{cases}echo 'no {self.name} here: looked for {looked_for}' >&2; exit 127"


def _interpreter(
    name: str, suffix: str, flag: str, *programs: str, aliases: tuple[str, ...] = ()
) -> Language:
    programs = programs or (name,)
    return Language(
        name,
        (suffix,),
        aliases,
        inline=tuple(Runner(prog, f'exec {prog} {flag} "$@"') for prog in programs),
        file=tuple(Runner(prog, f'exec {prog} "$@"') for prog in programs),
    )


# Node runs TypeScript itself from 22.6 on behind a flag, and without it from 23.6 on.
_NODE_TYPES = "node --experimental-strip-types -e '' 2>/dev/null"

LANGUAGES: tuple[Language, ...] = (
    _interpreter("python", ".py", "-c", "python3", "python", aliases=("python3", "py")),
    Language(
        "javascript",
        (".js", ".mjs", ".cjs"),
        ("node", "js"),
        inline=(
            Runner("node", 'exec node -e "$@"'),
            Runner("bun", 'exec bun -e "$@"'),
            Runner("deno", 'exec deno eval "$@"'),
        ),
        file=(
            Runner("node", 'exec node "$@"'),
            Runner("bun", 'exec bun run "$@"'),
            Runner("deno", 'exec deno run -A "$@"'),
        ),
    ),
    Language(
        "typescript",
        (".ts", ".mts", ".cts"),
        ("ts",),
        file=(
            Runner("tsx", 'exec tsx "$@"'),
            Runner("bun", 'exec bun run "$@"'),
            Runner("deno", 'exec deno run -A "$@"'),
            Runner("ts-node", 'exec ts-node "$@"'),
            Runner(
                "node",
                f'if {_NODE_TYPES}; then exec node --no-warnings --experimental-strip-types "$@"; '
                "fi",
            ),
        ),
    ),
    Language("go", (".go",), ("golang",), file=(Runner("go", 'exec go run "$@"'),)),
    Language(
        "rust",
        (".rs",),
        ("rs",),
        file=(
            Runner("rustc", 'rustc -o "$1.out" "$1" || exit 1; f=$1.out; shift; exec "$f" "$@"'),
        ),
    ),
    Language("java", (".java",), file=(Runner("java", 'exec java "$@"'),)),
    Language(
        "c",
        (".c",),
        file=(Runner("cc", 'cc -o "$1.out" "$1" || exit 1; f=$1.out; shift; exec "$f" "$@"'),),
    ),
    Language(
        "c++",
        (".cpp", ".cc"),
        ("cpp",),
        file=(Runner("c++", 'c++ -o "$1.out" "$1" || exit 1; f=$1.out; shift; exec "$f" "$@"'),),
    ),
    _interpreter("sh", ".sh", "-c", aliases=("shell",)),
    _interpreter("bash", ".bash", "-c"),
    _interpreter("ruby", ".rb", "-e", aliases=("rb",)),
    _interpreter("perl", ".pl", "-e"),
    _interpreter("php", ".php", "-r"),
    _interpreter("lua", ".lua", "-e"),
    _interpreter("r", ".R", "-e", "Rscript"),
)

_BY_NAME = {name: lang for lang in LANGUAGES for name in (lang.name, *lang.aliases)}
_BY_SUFFIX = {suffix.lower(): lang for lang in LANGUAGES for suffix in lang.suffixes}


def by_name(name: str) -> Language:
    """Return a language by any of its names.

    Raises:
        SandboxConfigurationError: If it is not known.
    """
    found = _BY_NAME.get(name.strip().lower())
    if found is None:
        close = difflib.get_close_matches(name.lower(), _BY_NAME, n=1)
        guess = f"did you mean {close[0]!r}? " if close else ""
        raise SandboxConfigurationError(
            f"language: {name!r} is not known",
            hint=f"{guess}known are {', '.join(lang.name for lang in LANGUAGES)}; for any other, "
            f"use execute_command([interpreter, flag, code])",
        )
    return found


def by_path(path: str) -> Language | None:
    """Return the language that a file's name tells, or ``None``."""
    stem, dot, suffix = path.rpartition(".")
    return _BY_SUFFIX.get(f".{suffix.lower()}") if dot and stem else None


def by_shebang(first_line: str) -> Language | None:
    """Return the language that a ``#!`` line tells, or ``None``."""
    if not first_line.startswith("#!"):
        return None
    words = first_line[2:].split()
    programs = [word.rpartition("/")[2] for word in words if not word.startswith("-")]
    program = (
        programs[1] if programs[:1] == ["env"] and len(programs) > 1 else "".join(programs[:1])
    )
    return _BY_NAME.get(program.rstrip("0123456789.")) or _BY_NAME.get(program)
