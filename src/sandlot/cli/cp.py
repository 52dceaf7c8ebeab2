"""``sandlot cp``: copy between this machine and sandboxes."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sandlot.cli import _options
from sandlot.cli._verb import Verb

if TYPE_CHECKING:
    from sandlot.cli._paths import Progress
    from sandlot.sandbox import AsyncSandbox


@click.command(
    "cp",
    cls=Verb,
    short_help="Copy files and directories into and out of sandboxes.",
    epilog="""\b
Examples:
  sandlot cp data.csv local-3f9c21ab04de:/work/
  sandlot cp local-3f9c21ab04de:/work/out ./results
  sandlot cp ID:/model.bin OTHER:/model.bin""",
)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@_options.backend("all that can be used here are asked for the sandboxes")
def command(source: str, target: str, backend: str | None) -> None:
    """Copy a file or a directory; SRC or DST, or both, are in a sandbox: ID:PATH.

    As with cp -r: if DST is a directory, or ends in a slash, SRC is copied into it, else to
    that name. SRC ending in /. means what the directory holds. A path of this machine with a
    colon is written ./a:b.
    """
    from sandlot.cli import _paths, _signals

    (source_id, source), (target_id, target) = _parsed(source), _parsed(target)
    if source_id is None and target_id is None:
        raise click.UsageError("neither side is in a sandbox: write it as ID:PATH")
    if source_id is None and not os.path.lexists(source):
        raise click.UsageError(f"there is no {source} here")
    if target_id is None:
        _paths.check_destination(Path(target))
    _signals.run(_copy(source_id, source, target_id, target, backend))


def _parsed(text: str) -> tuple[str | None, str]:
    """Return the sandbox's id, if it is one's, and the path."""
    before, colon, path = text.partition(":")
    if not colon or not before or "/" in before or before.startswith("."):
        return None, text
    if not path:
        raise click.UsageError(f"{text} which path in the sandbox?")
    return before, path


async def _copy(
    source_id: str | None, source: str, target_id: str | None, target: str, backend: str | None
) -> None:
    from tempfile import TemporaryDirectory

    from sandlot.cli import _everywhere

    async with _everywhere.clients(backend) as clients:
        outof = await _everywhere.search(clients, source_id) if source_id else None
        into = await _everywhere.search(clients, target_id) if target_id else None
        with _progress() as progress, TemporaryDirectory(prefix="sandlot-cp-") as between:
            if outof is not None:
                here = target if into is None else f"{between}/"
                source = await _copy_out(outof, source, here, progress)
            if into is not None:
                await _copy_in(into, source, target, progress)


async def _copy_out(sandbox: AsyncSandbox, source: str, target: str, progress: Progress) -> str:
    """Copy out; return a path that stands for here what ``source`` does there."""
    from sandlot.cli import _paths

    place = _final(source, target, into=_is_dir(target))
    await _paths.Download(source, Path(place)).run(sandbox, progress)
    return f"{place}/." if source.endswith("/.") else place


async def _copy_in(sandbox: AsyncSandbox, source: str, target: str, progress: Progress) -> None:
    from sandlot.cli import _paths

    try:
        into = await _paths.is_dir(sandbox, target)
    except FileNotFoundError:
        into = False
    place = _final(_named(source), target, into=into)
    await _paths.Upload(Path(source), place).run(sandbox, progress)


def _is_dir(path: str) -> bool:
    return Path(path).is_dir()


def _named(path: str) -> str:
    """Return the path with the name that ``.`` and ``..`` stand for."""
    return path if path.endswith("/.") else os.path.abspath(path)


def _final(source: str, target: str, *, into: bool) -> str:
    """Return where the copy lies."""
    name = os.path.basename(os.path.normpath(source))
    if source.endswith("/.") or not (into or target.endswith("/")) or name in ("", ".", ".."):
        return target
    return os.path.join(target, name)


@contextmanager
def _progress() -> Generator[Progress]:
    if not sys.stderr.isatty():
        yield lambda files, size: None
        return
    from rich.console import Console

    with Console(stderr=True).status("copying") as status:
        yield lambda files, size: status.update(f"copying: {files} files, {_size(size)}")


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
