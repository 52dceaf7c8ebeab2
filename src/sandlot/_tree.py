"""Directory trees on this machine: walked for an upload, filled by a download.

What is filled in is named by a sandbox, which may be hostile. So nothing here trusts what a
path looks like: every step down is taken by the kernel from one open directory to the next,
and no step follows a link. Links are made only if they can't lead outside. Files appear
whole, or not at all.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias

from sandlot.errors import FeatureNotSupportedError, UnsafeArchiveError

OnSkip: TypeAlias = Callable[[str, str], object]
"""Told the path of what is left out, and why."""

_MAX_NAME = 4096
_LATEST = 2.0**33
"""Times beyond the year 2242 are taken for it; not every file system knows later ones."""

_FILE_FLAGS = os.O_WRONLY | getattr(os, "O_BINARY", 0)
_DIRECTORY_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """A directory, regular file or symbolic link found by `walk`."""

    path: str
    """Where it is on this machine."""
    name: str
    """Its path from the root of the walk, with slashes."""
    stat: os.stat_result

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.stat.st_mode)

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return stat.S_ISLNK(self.stat.st_mode)


def walk(root: str, on_skip: OnSkip) -> Iterator[Entry]:
    """Yield all that a directory holds, each directory before its content.

    Links are not followed. Pipes, sockets and devices are skipped, and what has vanished.
    """
    pending = [(root, "")]
    while pending:
        directory, prefix = pending.pop()
        try:
            with os.scandir(directory) as scan:
                found = sorted(scan, key=lambda item: item.name)
        except FileNotFoundError:
            if not prefix:
                raise
            on_skip(directory, "it has vanished")
            continue
        for item in found:
            try:
                status = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                on_skip(item.path, "it has vanished")
                continue
            entry = Entry(item.path, prefix + item.name, status)
            if entry.is_dir:
                pending.append((item.path, f"{entry.name}/"))
            elif not (stat.S_ISREG(status.st_mode) or entry.is_link):
                on_skip(item.path, "it is not a file, directory or link")
                continue
            yield entry


class NewFile:
    """A file that is written under a passing name, and takes its own when it is whole.

    Constructing it does no I/O.

    Args:
        name: Its path, or its name in ``dir_fd``.
        dir_fd: The open directory it will be in, which must stay open.
        mode: Permission bits, before the umask; omitted: of the file that it replaces.
        path: What errors name; omitted: ``name``.
        in_place: Write into what is there, a device or pipe, instead of replacing it.
    """

    def __init__(
        self,
        name: str,
        *,
        dir_fd: int | None = None,
        mode: int | None = None,
        path: str | None = None,
        in_place: bool = False,
    ) -> None:
        self._name = name
        self._dir_fd = dir_fd
        self._mode = mode
        self._path = path or name
        self._in_place = in_place
        self._passing = os.path.join(os.path.dirname(name), _passing_name())
        self._fd = -1
        self._made = False

    def open(self) -> None:
        """Make it, unless that has been done."""
        if self._fd >= 0:
            return
        with naming(self._path):
            if self._in_place:
                self._fd = os.open(self._name, _FILE_FLAGS)
                return
            flags = _FILE_FLAGS | os.O_CREAT | os.O_EXCL | _NOFOLLOW
            mode = 0o666 if self._mode is None else self._mode
            self._fd = os.open(self._passing, flags, mode, dir_fd=self._dir_fd)
            self._made = True
            if self._mode is None:
                with suppress(FileNotFoundError):
                    os.chmod(self._passing, stat.S_IMODE(os.stat(self._name).st_mode))

    def write(self, data: bytes | memoryview) -> None:
        """Append ``data``."""
        self.open()
        view = memoryview(data)
        with naming(self._path):
            while view:
                view = view[os.write(self._fd, view) :]

    def commit(self, modified: float | None = None) -> None:
        """Give it its name, in place of the file or link that bears it now."""
        self.open()
        with naming(self._path):
            if modified is not None:
                when = min(max(modified, 0.0), _LATEST)
                os.utime(self._fd, (when, when))
            self._close()
            if self._made:
                os.replace(
                    self._passing, self._name, src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd
                )
                self._made = False

    def discard(self) -> None:
        """Remove it, unless it has been committed; idempotent."""
        try:
            if self._fd >= 0:
                self._close()
        finally:
            if self._made:
                self._made = False
                os.unlink(self._passing, dir_fd=self._dir_fd)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)


class Tree:
    """A directory that is filled under names which can't be trusted.

    A file or link takes the place of a file or link; a directory may be there already;
    anything else in the way is an error. Bits that give a program its owner's rights are
    dropped, and the umask applies. One file is written at a time.

    Constructing it does no I/O; the directory is made with the first thing put into it.

    Args:
        root: The directory.
        any_links: Make links that lead outside, too: for a place whose readers know how to
            read them. Nothing is ever written through a link.
    """

    def __init__(self, root: str, *, any_links: bool = False) -> None:
        if os.open not in os.supports_dir_fd:
            raise FeatureNotSupportedError("filling a directory safely needs a POSIX system")
        self._root = root
        self._any_links = any_links
        self._root_fd = -1
        self._here: tuple[str, ...] = ()
        self._here_fd = -1
        self._file: NewFile | None = None

    def make_dir(self, name: str, mode: int = 0o777) -> None:
        """Make a directory and those above it; fine if it is there."""
        self._enter(_parts(name), mode)

    def begin(self, name: str, mode: int = 0o666) -> None:
        """Begin a file, and make the directories above it."""
        *above, last = _named_parts(name)
        path = os.path.join(self._root, *above, last)
        directory = self._enter(tuple(above))
        _refuse_directory(last, directory, path)
        self._file = NewFile(last, dir_fd=directory, mode=mode & 0o777 | 0o400, path=path)
        self._file.open()

    def write(self, data: bytes | memoryview) -> None:
        """Append to the file that was begun."""
        assert self._file is not None
        self._file.write(data)

    def commit(self, modified: float | None = None) -> None:
        """Let the file that was begun appear."""
        assert self._file is not None
        self._file.commit(modified)
        self._file = None

    def symlink(self, name: str, target: str) -> None:
        """Make a symbolic link.

        Raises:
            UnsafeArchiveError: If it could lead outside, whatever else the tree holds.
        """
        *above, last = _named_parts(name)
        if not (self._any_links or _stays_inside(target, len(above))):
            raise _unsafe(name, f"it is a link that leads outside, to {_shown(target)}")
        directory = self._enter(tuple(above))
        self._place(name, last, lambda new: os.symlink(target, new, dir_fd=directory))

    def hard_link(self, name: str, source: str) -> None:
        """Make another name for a file of this tree.

        Raises:
            UnsafeArchiveError: If ``source`` is not in the tree, or not a file.
        """
        try:
            *above, last = _named_parts(source)
            there = self._open(tuple(above), make=False)
        except (FileNotFoundError, NotADirectoryError, UnsafeArchiveError) as exc:
            raise _unsafe(name, f"it is a name of {_shown(source)}, which is not here") from exc
        try:
            self._hard_link(name, source, last, there)
        finally:
            os.close(there)

    def _hard_link(self, name: str, source: str, last: str, there: int) -> None:
        mode = _mode(last, there)
        if stat.S_ISLNK(mode):  # harmless where it is, perhaps not in another directory
            self.symlink(name, os.readlink(last, dir_fd=there))
            return
        if not stat.S_ISREG(mode):
            raise _unsafe(name, f"it is a name of {_shown(source)}, which is not a file here")
        *above, new_last = _named_parts(name)
        here = self._enter(tuple(above))
        self._place(
            name,
            new_last,
            lambda new: os.link(
                last, new, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False
            ),
        )

    def close(self) -> None:
        """Let go of the directory, and of a file that was not committed; idempotent."""
        file, self._file = self._file, None
        try:
            if file is not None:
                file.discard()
        finally:
            for fd in {self._here_fd, self._root_fd} - {-1}:
                os.close(fd)
            self._here, self._here_fd, self._root_fd = (), -1, -1

    def _place(self, name: str, last: str, make: Callable[[str], object]) -> None:
        """Put a link into the directory entered last."""
        path, directory, passing = os.path.join(self._root, name), self._here_fd, _passing_name()
        _refuse_directory(last, directory, path)
        with naming(path):
            make(passing)
            try:
                os.replace(passing, last, src_dir_fd=directory, dst_dir_fd=directory)
            finally:
                # rename(2) does nothing, and leaves both, if they are names of one file.
                with suppress(FileNotFoundError):
                    os.unlink(passing, dir_fd=directory)

    def _enter(self, parts: tuple[str, ...], mode: int = 0o777) -> int:
        """Make a directory if need be, and keep it open until another is entered."""
        if self._here_fd < 0 or parts != self._here:
            fd = self._open(parts, mode)
            if self._here_fd >= 0:
                os.close(self._here_fd)
            self._here, self._here_fd = parts, fd
        return self._here_fd

    def _open(self, parts: tuple[str, ...], mode: int = 0o777, *, make: bool = True) -> int:
        if self._root_fd < 0:
            os.makedirs(self._root, exist_ok=True)
            self._root_fd = os.open(self._root, _DIRECTORY_FLAGS)
        fd = os.dup(self._root_fd)
        try:
            for depth in range(1, len(parts) + 1):
                with naming(os.path.join(self._root, *parts[:depth])):
                    bits = mode if depth == len(parts) else 0o777
                    below = _step(fd, parts[:depth], bits, make=make)
                os.close(fd)
                fd = below
        except BaseException:
            os.close(fd)
            raise
        return fd


def _step(fd: int, parts: tuple[str, ...], mode: int, *, make: bool) -> int:
    """Open the last of ``parts`` in an open directory, and make it if need be."""
    name = parts[-1]
    flags = _DIRECTORY_FLAGS | _NOFOLLOW
    try:
        return os.open(name, flags, dir_fd=fd)
    except FileNotFoundError:
        if not make:
            raise
    except OSError:
        if stat.S_ISLNK(_mode(name, fd)):
            raise _unsafe("/".join(parts), "it would be written through a link") from None
        raise
    os.mkdir(name, mode & 0o777 | 0o700, dir_fd=fd)
    return os.open(name, flags, dir_fd=fd)


def _mode(name: str, dir_fd: int) -> int:
    try:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0


def _refuse_directory(name: str, dir_fd: int, path: str) -> None:
    if stat.S_ISDIR(_mode(name, dir_fd)):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)


def _parts(name: str) -> tuple[str, ...]:
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:
        size = _MAX_NAME + 1
    if name.startswith("/") or ".." in parts:
        raise _unsafe(name, "it lies outside")
    if "\0" in name or size > _MAX_NAME:
        raise _unsafe(name, "it can't be the name of a file")
    return parts


def _named_parts(name: str) -> tuple[str, ...]:
    parts = _parts(name)
    if not parts:
        raise _unsafe(name, "it can't be the name of a file")
    return parts


def _stays_inside(target: str, depth: int) -> bool:
    """Whether a link, so many directories deep, stays inside whatever it passes through.

    It may first go up, from directories that are known to be real, and then only down: a
    step up from what may be another link could lead anywhere.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    plain = target and not target.startswith("/") and "\0" not in target
    return bool(plain) and up <= depth and ".." not in parts[up:]


def _unsafe(name: str, why: str) -> UnsafeArchiveError:
    return UnsafeArchiveError(f"{_shown(name)}: {why}", context={"entry": name})


def _shown(name: str) -> str:
    return repr(name if len(name) <= 200 else f"{name[:200]}...")


def _passing_name() -> str:
    return f".sandlot-{secrets.token_hex(8)}.part"


@contextmanager
def naming(path: str) -> Generator[None, None, None]:
    """Let an error of this machine name the path that matters to the caller."""
    try:
        yield
    except OSError as exc:
        exc.filename, exc.filename2 = path, None
        raise
