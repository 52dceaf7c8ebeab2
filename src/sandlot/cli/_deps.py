"""Installing what a program needs, from the file beside it that says so: data."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from sandlot._languages import Language
from sandlot.cli import _running, _say
from sandlot.cli._running import Job
from sandlot.cli._streams import Input
from sandlot.sandbox import AsyncSandbox

_DIRECTORY = "d=${1%/*}; "


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one language's programs get what they need."""

    manifest: str
    """The file that says what is needed."""
    others: tuple[str, ...] = ()
    """Files beside it that are used where there are any."""
    install: str
    """A shell line that installs into the directory ``$d``."""
    launch: str = "RUN"
    """A shell script that runs the file ``$1``; ``RUN`` stands for the language's own."""


_NODE = Recipe(
    manifest="package.json",
    others=("package-lock.json", "npm-shrinkwrap.json", "tsconfig.json"),
    install='if [ -f "$d/package-lock.json" ]; then set ci; else set install; fi; '
    'cd "$d" && npm "$1" --no-audit --no-fund --no-progress',
    launch=f'{_DIRECTORY}PATH="$d/node_modules/.bin:$PATH"; export PATH; RUN',
)

RECIPES: Mapping[str, Recipe] = {
    # Its own environment, as many systems forbid installing into theirs; and pip from
    # outside, as making one with pip inside takes seconds and needs a package that Debian
    # leaves out.
    "python": Recipe(
        manifest="requirements.txt",
        install='cd "$d" && python3 -m venv --without-pip .venv && '
        "python3 -m pip --python .venv/bin/python install -r requirements.txt "
        "--disable-pip-version-check --quiet",
        launch=f'{_DIRECTORY}VIRTUAL_ENV="$d/.venv"; PATH="$VIRTUAL_ENV/bin:$PATH"; '
        "export VIRTUAL_ENV PATH; RUN",
    ),
    "javascript": _NODE,
    "typescript": _NODE,
    # Built there and run here: the program starts where others start, not among its modules.
    "go": Recipe(
        manifest="go.mod",
        others=("go.sum",),
        install='cd "$d" && go mod download',
        launch=f'{_DIRECTORY}(cd "$d" && go build -o "$1.out" "$1") || exit; '
        'out=$1.out; shift; exec "$out" "$@"',
    ),
    "rust": Recipe(
        manifest="Cargo.toml",
        others=("Cargo.lock",),
        install='cargo fetch --quiet --manifest-path "$d/Cargo.toml"',
        launch=f'{_DIRECTORY}[ -f "$d/Cargo.toml" ] || d=${{d%/*}}; shift; '
        'exec cargo run --quiet --manifest-path "$d/Cargo.toml" -- "$@"',
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A program's surroundings."""

    recipe: Recipe
    name: str
    """Where the program lies in the project."""
    files: Mapping[str, bytes]
    """The other files that it needs."""

    async def install(self, sandbox: AsyncSandbox, path: str, env: Mapping[str, str]) -> None:
        """Install what the program at ``path`` needs; what that prints is not output."""
        root = path.removesuffix(f"/{self.name}")
        script = f"d=$1; exec 1>&2; {self.recipe.install}"
        job = Job(env=env, input=Input.NOTHING)
        result = await _running.run(sandbox, ("/bin/sh", "-c", script, "sh", root), job)
        if result.exit_code:
            raise _say.Failure(
                f"what {self.recipe.manifest} asks for could not be installed "
                f"(exit code {result.exit_code})"
            )


def project(path: Path, language: Language) -> Project:
    """Return the surroundings of the program at ``path``.

    Raises:
        click.UsageError: If nothing beside it says what it needs.
    """
    recipe = RECIPES.get(language.name)
    if recipe is None:
        known = ", ".join(RECIPES)
        raise click.UsageError(f"--deps: not for {language.name}; only for {known}")
    directory = path.parent
    if language.name == "rust" and directory.absolute().name == "src":
        directory = directory.absolute().parent
    if not (directory / recipe.manifest).is_file():
        raise click.UsageError(f"--deps: there is no {recipe.manifest} beside {path}")
    found = [directory / name for name in (recipe.manifest, *recipe.others)]
    files = {file.name: file.read_bytes() for file in found if file.is_file()}
    if language.name == "rust":
        name, sources = _rust_sources(path.absolute(), directory.absolute(), files["Cargo.toml"])
        return Project(recipe=recipe, name=name, files=files | sources)
    return Project(recipe=recipe, name=path.name, files=files)


def _rust_sources(path: Path, root: Path, manifest: bytes) -> tuple[str, dict[str, bytes]]:
    """Return where cargo looks for the program, and the modules it may consist of."""
    sources = {
        os.fspath(file.relative_to(root)): file.read_bytes()
        for file in (root / "src").rglob("*.rs")
        if file != path
    }
    if path.is_relative_to(root / "src"):
        return os.fspath(path.relative_to(root)), sources
    try:
        binaries: list[dict[str, object]] = tomllib.loads(manifest.decode()).get("bin", [])
    except ValueError:
        binaries = []  # cargo says it better
    named = any(binary.get("path") == path.name for binary in binaries)
    return (path.name if named else "src/main.rs"), sources
