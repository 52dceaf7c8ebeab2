"""The host's side of tar: packing a directory, and unpacking what a sandbox sends.

The sandbox's own tar is at the other end, so what is packed is what every tar can read, and
what is unpacked is trusted in nothing: not in its names, its links, its sizes, or its end.
Both directions are streams, in pieces, and hold only a piece of them in memory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from sandlot._tree import Entry, OnSkip, Tree, naming, walk
from sandlot.errors import SandboxFileError, UnsafeArchiveError

if TYPE_CHECKING:
    from tarfile import TarInfo

PIECE = 256 * 1024
"""How much of a file is in memory at a time."""

_BLOCK = 512
_END = bytes(2 * _BLOCK)


# ------------------------------------------------------------------ packing


def pack(
    root: str,
    *,
    on_file: Callable[[str], object] = lambda path: None,
    on_skip: OnSkip = lambda path, reason: None,
) -> Generator[bytes, None, None]:
    """Yield what a directory holds as an uncompressed tar archive, in pieces.

    Links, empty directories, permissions and times (in seconds) are kept; owners are not,
    nor the bits that give a program its owner's rights. Every regular file is stored with
    its content, also if it has two names.

    Args:
        root: The directory.
        on_file: Told the path of each file and link.
        on_skip: Told what can't be kept, and why: pipes, sockets, devices; what vanishes
            while it is packed; and files that shrink, whose lost end is stored as zeros.
    """
    pending = bytearray()
    for block in _blocks(root, on_file, on_skip):
        pending += block
        if len(pending) >= PIECE:
            yield bytes(pending)
            pending.clear()
    yield bytes(pending + _END)


def _blocks(root: str, on_file: Callable[[str], object], on_skip: OnSkip) -> Iterator[bytes]:
    for entry in walk(root, on_skip):
        if entry.is_dir:
            yield _header(entry, entry.stat)
            continue
        try:
            if entry.is_link:
                yield _header(entry, entry.stat, os.readlink(entry.path))
            else:
                yield from _file_blocks(entry, on_skip)
        except FileNotFoundError:
            on_skip(entry.path, "it has vanished")
        else:
            on_file(entry.path)


def _file_blocks(entry: Entry, on_skip: OnSkip) -> Iterator[bytes]:
    # Not blocking, and not following: it may have become a pipe or a link since it was seen.
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, name, 0)
    fd = os.open(entry.path, flags)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            on_skip(entry.path, "it is no longer a file")
            return
        yield _header(entry, status)
        left = status.st_size
        while left and (data := _read(fd, min(left, PIECE), entry.path)):
            left -= len(data)
            yield data
    finally:
        os.close(fd)
    if left:
        on_skip(entry.path, f"it shrank by {left} bytes while it was read")
    while left:  # the header has promised them
        size = min(left, PIECE)
        left -= size
        yield bytes(size)
    yield bytes(-status.st_size % _BLOCK)


def _read(fd: int, size: int, path: str) -> bytes:
    with naming(path):
        return os.read(fd, size)


def _header(entry: Entry, status: os.stat_result, target: str = "") -> bytes:
    import tarfile

    info = tarfile.TarInfo(entry.name)
    info.mode = stat.S_IMODE(status.st_mode) & 0o777
    info.mtime = max(int(status.st_mtime), 0)
    info.linkname = target
    if entry.is_dir:
        info.type = tarfile.DIRTYPE
    elif entry.is_link:
        info.type = tarfile.SYMTYPE
    else:
        info.size = status.st_size
    # GNU, not PAX: busybox ignores PAX headers, and so would cut long names.
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


# ---------------------------------------------------------------- unpacking


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is taken from a sandbox before it is an error."""

    max_files: int = 1_000_000
    """Entries of any kind."""
    max_bytes: int = 16 * 1024**3
    """Bytes of all files together."""

    def check(self, name: str, files: int, size: int) -> None:
        """Refuse more than this.

        Raises:
            SandboxFileError: Naming the limit.
        """
        if files > self.max_files:
            raise SandboxFileError(f"{name[:200]!r}: there are more than {self.max_files} files")
        if size > self.max_bytes:
            raise SandboxFileError(
                f"{name[:200]!r}: there are more than {self.max_bytes} bytes in the files"
            )


DEFAULT_LIMITS = Limits()


@dataclass(slots=True)
class Report:
    """What has been unpacked."""

    files: int = 0
    """Files and links."""
    bytes: int = 0
    """Bytes of all files together."""
    skipped: int = 0
    """Entries that were left out."""


_MAX_HEADER = 1024 * 1024
"""How long a name, or a set of PAX records, may be. tar's own are a few hundred bytes."""
_MAX_TRAILER = 1024 * 1024
"""How much may follow the archive's end. tar fills up its last record of some 10 KiB."""

_KEYS = (b"path", b"linkpath", b"size", b"mtime")

_Want: TypeAlias = tuple[int, int]
"""The least and the most bytes to be sent in."""


class Extractor:
    """Unpacks a tar stream that can't be trusted into a directory.

    Nothing is written outside ``dest``, whatever the archive holds. Links that stay inside
    are kept; an entry that would leave raises. Devices and pipes are left out, and told to
    ``on_skip``. The blocking I/O is all in `feed`, `finish` and `close`.

        with closing(Extractor(dest)) as extractor:
            for piece in pieces:
                extractor.feed(piece)
            report = extractor.finish()
    """

    def __init__(
        self,
        dest: str,
        limits: Limits = DEFAULT_LIMITS,
        on_skip: OnSkip = lambda name, reason: None,
        *,
        any_links: bool = False,
    ) -> None:
        self._tree = Tree(dest, any_links=any_links)
        self._limits = limits
        self._on_skip = on_skip
        self._pending = bytearray()
        self._position = 0
        self._headers = 0
        self._bytes = 0
        self._ended = False
        self.report = Report()
        self._steps = self._unpack()
        self._least, self._most = next(self._steps)

    def feed(self, data: bytes) -> None:
        """Unpack the next piece of the stream.

        Raises:
            UnsafeArchiveError: If an entry would be written outside. What was unpacked
                before it stays, and is counted in the error's context.
            SandboxFileError: If the archive is damaged, or larger than the limits.
            OSError: If this machine can't write.
        """
        self._pending += data
        while len(self._pending) >= self._least:
            piece = bytes(memoryview(self._pending)[: self._most])
            del self._pending[: len(piece)]
            self._position += len(piece)
            try:
                self._least, self._most = self._steps.send(piece)
            except (UnsafeArchiveError, SandboxFileError) as exc:
                exc.context.update(files=self.report.files, bytes=self.report.bytes)
                raise

    def finish(self) -> Report:
        """Return what has been unpacked, when the stream has ended.

        Raises:
            SandboxFileError: If the archive has not ended with it.
        """
        self.close()
        if not self._ended:
            at = self._position + len(self._pending)
            raise SandboxFileError(
                f"the archive breaks off after {at} bytes",
                context={"files": self.report.files, "bytes": self.report.bytes},
            )
        return self.report

    def close(self) -> None:
        """Let go of the directory, and of a file that is not whole; idempotent."""
        self._steps.close()
        self._tree.close()

    # The archive as a script: each yield asks for bytes, and `feed` brings them.

    def _unpack(self) -> Generator[_Want, bytes, None]:
        common: dict[str, str] = {}
        extra: dict[str, str] = {}
        while any(block := (yield _BLOCK, _BLOCK)):
            info = self._parse(block)
            if info.type in (b"x", b"X"):
                extra |= _pax_records((yield from self._body(info)), self._damaged)
            elif info.type == b"g":
                common |= _pax_records((yield from self._body(info)), self._damaged)
            elif info.type in (b"L", b"K"):
                body = yield from self._body(info)
                extra["path" if info.type == b"L" else "linkpath"] = _text(body.rstrip(b"\0"))
            else:
                yield from self._entry(info, common | extra)
                extra = {}
        self._ended = True
        trailer = 0
        while trailer <= _MAX_TRAILER:
            trailer += len((yield 1, PIECE))
        self._damaged("much follows its end")

    def _parse(self, block: bytes) -> TarInfo:
        import tarfile

        self._headers += 1
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError) as exc:
            self._damaged(str(exc))
        self._limits.check(info.name, self._headers, self._bytes)
        return info

    def _body(self, info: TarInfo) -> Generator[_Want, bytes, bytes]:
        if not 0 <= info.size <= _MAX_HEADER:
            self._damaged(f"a header of {info.size} bytes")
        self._bytes += info.size
        size = info.size + -info.size % _BLOCK
        return (yield size, size)[: info.size] if size else b""

    def _entry(self, info: TarInfo, extra: dict[str, str]) -> Generator[_Want, bytes, None]:
        name, target = extra.get("path", info.name), extra.get("linkpath", info.linkname)
        size, modified = info.size, float(info.mtime)
        try:
            size, modified = int(extra.get("size", size)), float(extra.get("mtime", modified))
        except ValueError:
            size = -1
        if size < 0 or not isfinite(modified):
            self._damaged(f"{name[:200]!r} has no sensible size or time")
        if info.type == b"S" or "GNU.sparse" in extra:
            self._damaged(f"{name[:200]!r} is stored as a sparse file, which is not understood")
        if info.type in (b"0", b"\0", b"7"):
            yield from self._file(name, info.mode, size, modified)
        elif info.type == b"5":
            self._tree.make_dir(name, info.mode)
        elif info.type in (b"1", b"2"):
            make = self._tree.hard_link if info.type == b"1" else self._tree.symlink
            make(name, target)
            self.report.files += 1
        elif info.type in (b"3", b"4", b"6"):
            self._skip(name, "it is a device or pipe")
        else:
            self._skip(name, f"it is of an unknown type, {info.type!r}")
            yield from self._content(name, size, lambda data: None)

    def _skip(self, name: str, reason: str) -> None:
        self.report.skipped += 1
        self._on_skip(name, reason)

    def _file(
        self, name: str, mode: int, size: int, modified: float
    ) -> Generator[_Want, bytes, None]:
        self._tree.begin(name, mode)
        yield from self._content(name, size, self._tree.write)
        self._tree.commit(modified)
        self.report.files += 1
        self.report.bytes += size

    def _content(
        self, name: str, size: int, write: Callable[[bytes], object]
    ) -> Generator[_Want, bytes, None]:
        self._bytes += size
        self._limits.check(name, self._headers, self._bytes)
        left = size
        while left:
            data = yield 1, min(left, PIECE)
            write(data)
            left -= len(data)
        if padding := -size % _BLOCK:
            yield padding, padding

    def _damaged(self, why: str) -> NoReturn:
        raise SandboxFileError(f"the archive is damaged at byte {self._position}: {why}")


def unpack(pieces: Iterable[bytes], dest: str, limits: Limits = DEFAULT_LIMITS) -> Report:
    """Unpack a tar stream that can't be trusted; see `Extractor`."""
    extractor = Extractor(dest, limits)
    try:
        for piece in pieces:
            extractor.feed(piece)
        return extractor.finish()
    finally:
        extractor.close()


def _pax_records(body: bytes, damaged: Callable[[str], NoReturn]) -> dict[str, str]:
    """Return those PAX records that matter; each is ``LENGTH KEY=VALUE`` and a newline."""
    records: dict[str, str] = {}
    at = 0
    while at < len(body):
        space = body.find(b" ", at, at + 8)
        if space < 0 or not body[at:space].isdigit():
            damaged("a PAX record without a length")
        end = at + int(body[at:space])
        key, equals, value = body[space + 1 : end - 1].partition(b"=")
        if not equals or end > len(body) or body[end - 1 : end] != b"\n":
            damaged("a PAX record of a wrong length")
        if key in _KEYS:
            records[key.decode()] = _text(value)
        elif key.startswith(b"GNU.sparse."):
            records["GNU.sparse"] = ""
        at = end
    return records


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
