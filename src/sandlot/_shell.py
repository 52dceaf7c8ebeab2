"""File operations that any POSIX shell can do, for backends that have none of their own.

Parsers come first, and are pure; the operations after them use nothing but ``exec``, ``read``
and ``write``. A sandbox may run hostile code, so what comes back is checked before it is
believed: no name in a listing can lead anywhere but into the directory that was listed.
"""

from __future__ import annotations

import posixpath
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from sandlot import _scripts
from sandlot._exec import to_the_end
from sandlot.capabilities import Capability
from sandlot.errors import (
    FeatureNotSupportedError,
    SandboxConfigurationError,
    SandboxError,
    SandboxFileError,
    SandboxFilePermissionError,
)
from sandlot.types import Command, FileInfo, FileType, SandboxResult

if TYPE_CHECKING:
    from sandlot.contract import Handle

SHELL = (
    "/bin/sh",
    "-c",
    'command -v bash >/dev/null 2>&1 && exec bash -c -- "$0"\n'
    'command -v sh >/dev/null 2>&1 && exec sh -c -- "$0"\n'
    'exec /bin/sh -c -- "$0"',
)
"""What runs a shell line, which is appended to it: bash where there is one, else sh."""

_PART = 8 * 1024 * 1024
"""Archives cross in parts of this size: below every provider's limit on one request."""

_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")

# ------------------------------------------------------------------ parsers

_DESCRIPTION = re.compile(
    rb"([-bcdlpsDC?])([-rwxsStT]{9})[.+@]? (\d{1,18}) (-?\d{1,15}(?:\.\d{1,12})?) \./([^/\0]*)\n"
)
_TYPES = {b"-": FileType.FILE, b"d": FileType.DIRECTORY, b"l": FileType.SYMLINK}
_SPECIAL = {2: (b"sS", 0o4000), 5: (b"sS", 0o2000), 8: (b"tT", 0o1000)}
_COMPLAINTS: dict[str, type[SandboxFileError]] = {
    **{text: kind for _, kind, text in _scripts.FAILURES.values()},
    "Operation not permitted": SandboxFilePermissionError,
    "Read-only file system": SandboxFilePermissionError,
}


def parse_mode(text: bytes) -> int:
    """Return the permission bits that ``rwxr-xr-x`` and the like stand for."""
    mode = 0
    for place, letter in enumerate(text):
        special, bit = _SPECIAL.get(place, (b"", 0))
        mode |= bit if letter in special else 0
        mode |= 0 if letter in b"-ST" else 0o400 >> place
    return mode


def parse_listing(output: bytes, path: str) -> list[FileInfo]:
    """Return what a listing says that the directory ``path`` holds, sorted by name.

    Raises:
        SandboxFileError: If it can't be the listing of a directory.
    """
    infos = _parse(output, path)
    if not infos.keys().isdisjoint(("", ".", "..")):
        raise _implausible(path)
    return [infos[name] for name in sorted(infos)]


def parse_stat(output: bytes, path: str) -> FileInfo:
    """Return what a description says of ``path`` itself.

    Raises:
        SandboxFileError: If it can't be a description.
    """
    infos = _parse(output, path)
    if infos.keys() != {""}:
        raise _implausible(path)
    return infos[""]


def _parse(output: bytes, path: str) -> dict[str, FileInfo]:
    rows, complete, rest = output.partition(b"\0")
    if not complete:
        raise _implausible(path)
    pairs = rest.split(b"\0")
    targets = dict(zip(pairs[::2], pairs[1::2], strict=False))
    infos: dict[str, FileInfo] = {}
    at = 0
    while at < len(rows):
        row = _DESCRIPTION.match(rows, at)
        if row is None:
            raise _implausible(path)
        at = row.end()
        letter, bits, size, modified, raw = row.groups()
        name, kind = _text(raw), _TYPES.get(letter, FileType.OTHER)
        infos[name] = FileInfo(
            path=posixpath.join(path, name) if name else path,
            type=kind,
            size=int(size),
            mode=parse_mode(bits),
            modified=float(modified),
            target=_text(targets.get(raw, b"")) if kind is FileType.SYMLINK else None,
        )
    return infos


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _implausible(path: str) -> SandboxFileError:
    return SandboxFileError(f"{path}: the sandbox gave a description that can't be true")


def failure(result: SandboxResult, path: str) -> SandboxError:
    """Return the error that a script which did not exit with 0 stands for."""
    if result.exit_code == _scripts.NO_TAR:
        return FeatureNotSupportedError("the sandbox has no tar")
    for code, kind, text in _scripts.FAILURES.values():
        if code == result.exit_code:
            return kind(f"{path}: {text}", context={"path": path})
    lines = [line.strip()[-500:] for line in result.stderr.splitlines() if line.strip()]
    for line in lines:
        for text, kind in _COMPLAINTS.items():
            if line.endswith(f": {text}"):
                return kind(f"{path}: {line}", context={"path": path})
    said = lines[-1] if lines else f"the script exited with {result.exit_code}"
    return SandboxFileError(f"{path}: {said}", context={"path": path})


# ---------------------------------------------------------------- operations


async def _run(
    handle: Handle, path: str, script: str, *args: str, stdin: bytes | None = None
) -> bytes:
    argv = _scripts.argv(script, *args)
    result = await handle.exec(Command(argv=argv, env={"LC_ALL": "C"}, stdin=stdin))
    if result.exit_code:
        raise failure(result, path)
    if result.truncated:
        raise SandboxFileError(f"{path}: the description is too long to be taken whole")
    return result.stdout_bytes


def _operand(handle: Handle, path: str) -> str:
    return _scripts.operand(handle.command_path(path))


def _itself(handle: Handle, path: str) -> str:
    """Return the operand for a name itself: for a link, not the directory it leads to."""
    return _operand(handle, path.rstrip("/") or "/")


async def list_dir(handle: Handle, path: str) -> list[FileInfo]:
    """Return what a directory holds, sorted by name."""
    return parse_listing(await _run(handle, path, _scripts.LIST, _operand(handle, path)), path)


async def stat(handle: Handle, path: str) -> FileInfo:
    """Describe a path; a symbolic link as itself."""
    return parse_stat(await _run(handle, path, _scripts.STAT, _operand(handle, path)), path)


async def make_dir(handle: Handle, path: str) -> None:
    """Make a directory and those above it; fine if it is there."""
    await _run(handle, path, _scripts.MAKE_DIR, _operand(handle, path))


async def remove(handle: Handle, path: str, *, recursive: bool) -> None:
    """Remove a file or link, an empty directory, or with ``recursive`` a whole tree."""
    if posixpath.basename(path.rstrip("/")) in ("", ".", ".."):
        raise SandboxConfigurationError(f"{path!r} can't be removed; name what is in it")
    how = "tree" if recursive else ""
    await _run(handle, path, _scripts.REMOVE, _itself(handle, path), how)


async def move(handle: Handle, source: str, target: str) -> None:
    """Rename a file or directory; an existing target file or link is replaced.

    Raises:
        SandboxIsADirectoryError: If ``target`` is a directory.
        SandboxNotADirectoryError: If ``source`` is a directory and ``target`` a file.
    """
    operands = _itself(handle, source), _itself(handle, target)
    await _run(handle, f"{source} -> {target}", _scripts.MOVE, *operands)


async def set_mode(handle: Handle, path: str, mode: int) -> None:
    """Set permission bits."""
    if not 0 <= mode <= 0o7777:
        raise SandboxConfigurationError(f"mode: {mode} is not a set of permission bits")
    # Five digits: with fewer, GNU chmod leaves a directory's set-group-id bit as it is.
    await _run(handle, path, _scripts.SET_MODE, _operand(handle, path), f"{mode:05o}")


async def link(handle: Handle, path: str, target: str) -> None:
    """Make a symbolic link, in place of a file or link that is there."""
    await _run(handle, path, _scripts.LINK, _itself(handle, path), target)


# ---------------------------------------------------------------------- tar


async def upload_tar(handle: Handle, path: str, archive: AsyncIterator[bytes]) -> None:
    """Unpack an uncompressed tar stream into a directory, which exists.

    A small archive goes in as the input of one command. A large one, or any where commands
    take no input, is first written into the directory in parts, in a directory of their own
    that is removed with the last step. At most two parts are in memory.

    Raises:
        FeatureNotSupportedError: If the sandbox has no tar; nothing was written.
    """
    parts = _regroup(archive, _PART)
    part = await anext(parts, b"")
    directory = _operand(handle, path)
    if len(part) < _PART and Capability.STDIN in handle.backend.capabilities:
        await _run(handle, path, _scripts.UNPACK, directory, stdin=part)
        return
    spool = posixpath.join(path, f".sandlot-{secrets.token_hex(8)}")
    there = _operand(handle, spool)
    number = 0
    try:
        await _run(handle, path, _scripts.SPOOL, directory, there)
        while part:
            await handle.write(f"{spool}/{number:08}", part)
            number += 1
            part = await anext(parts, b"")
        await _run(handle, path, _scripts.UNPACK_SPOOL, directory, there)
    except BaseException as exc:
        await _tidy(exc, _run(handle, spool, _scripts.DISCARD_SPOOL, there))
        raise


async def download_tar(handle: Handle, path: str) -> AsyncGenerator[bytes, None]:
    """Yield a directory's content as an uncompressed tar stream.

    The archive is made in a temporary directory of the sandbox, fetched in parts, and
    removed at the end, however that comes. One part is in memory.

    Raises:
        FeatureNotSupportedError: If the sandbox has no tar.
        SandboxFileError: If some of the directory can't be read.
    """
    name = f".sandlot-{secrets.token_hex(8)}"
    places = (*_TEMPORARY, path)
    operands = [_operand(handle, place) for place in places]
    discard = partial(_run, handle, path, _scripts.DISCARD_PACKED, name, *operands)
    try:
        said = await _run(handle, path, _scripts.PACK, operands[-1], name, *operands)
        found = re.fullmatch(rb"([0-3]) (\d{1,18})\n", said)
        if found is None:
            raise _implausible(path)
        packed, size = posixpath.join(places[int(found[1])], name), int(found[2])
        if size <= _PART:
            yield await handle.read(packed)
        else:
            for number in range(-(-size // _PART)):
                cut = _operand(handle, packed), str(_PART), str(number)
                await _run(handle, path, _scripts.CUT, *cut)
                yield await handle.read(f"{packed}.part")
    except BaseException as exc:
        await _tidy(exc, discard())
        raise
    await to_the_end(discard())


async def _tidy(cause: BaseException, work: Coroutine[Any, Any, object]) -> None:
    try:
        await to_the_end(work)
    except SandboxError as exc:
        cause.add_note(f"a temporary file may be left in the sandbox: {exc}")


async def _regroup(pieces: AsyncIterator[bytes], size: int) -> AsyncIterator[bytes]:
    """Yield the same bytes in parts of exactly ``size``, but for the last."""
    pending = bytearray()
    async for piece in pieces:
        pending += piece
        while len(pending) >= size:
            yield bytes(memoryview(pending)[:size])
            del pending[:size]
    if pending:
        yield bytes(pending)
