"""How a path is walked below a root directory of the host, so that nothing leads outside."""

from __future__ import annotations

import errno
import os
import stat as modes
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from sandlot.types import FileInfo, FileType

DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags to open a directory, and nothing that is a link to one."""
_PATH = os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", 0)
_DIR_MODE = 0o755
_MAX_LINKS = 40

Place: TypeAlias = tuple[str, ...]
"""Where something is in the tree: the names from the root down, without links."""


class Top:
    """The root or a mounted directory; the same one as long as it is used.

    Commands could replace it, or a directory above it, with a link to elsewhere: so it is
    known by its inode, and its path only leads there.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.spellings = {self.path, os.path.realpath(path)}
        self._identity: tuple[int, int] | None = None
        with suppress(FileNotFoundError):  # then what is put there later is not it
            self._identity = identity(os.stat(path))

    def open(self) -> int:
        """Return a descriptor for walking on from it."""
        fd = os.open(self.path, _PATH & ~os.O_NOFOLLOW | os.O_DIRECTORY)
        if identity(os.fstat(fd)) != self._identity:
            os.close(fd)
            raise OSError(errno.ESTALE, "The directory was replaced by another", self.path)
        return fd

    def info(self, path: str) -> FileInfo:
        """Describe it."""
        fd = self.open()
        try:
            return file_info(path, os.fstat(fd), fd, ".")
        finally:
            os.close(fd)


Tops: TypeAlias = Mapping[Place, Top]
"""The root, at ``()``, and what is mounted."""


class Spot(NamedTuple):
    """Where a path leads."""

    parent: int
    """An open directory."""
    name: str
    """A name in it, or ``"."`` for the directory itself."""
    found: os.stat_result | None
    """What was there; ``None`` if nothing."""
    place: Place
    tops: Tops

    @property
    def stat(self) -> os.stat_result:
        """What was there.

        Raises:
            FileNotFoundError: If nothing was.
        """
        if self.found is None:
            raise error(errno.ENOENT, self.name)
        return self.found

    def refuse_top(self) -> None:
        """Refuse to remove or replace the root, a mount, or what one is mounted in."""
        if any(top[: len(self.place)] == self.place for top in self.tops):
            raise error(errno.EBUSY, "/" + "/".join(self.place))


class Walk:
    """A way down from the root: names yet to go, and the directory reached, held open.

    Whoever makes one closes its ``fd``.

    Args:
        names: The names to go, where ``".."`` may be among them.
        tops: The root, and the mounts that count.
        read_link: Tells from an absolute link's target both of these anew.
    """

    def __init__(
        self, names: list[str], tops: Tops, read_link: Callable[[str], tuple[list[str], Tops]]
    ) -> None:
        self._todo = names[::-1]
        self._tops = tops
        self._read_link = read_link
        self._links = 0
        self._place: Place = ()
        self.fd = tops[()].open()

    def to_end(self, *, follow: bool, make: bool) -> Spot:
        """Go all the way.

        Args:
            follow: Whether the last name, if it is a link, is followed.
            make: Whether missing directories on the way are made.
        """
        while self._todo:
            name = self._todo.pop()
            inner = (*self._place, name)
            if name == "..":
                # By its names again, not by the kernel's "..": from a directory that was
                # moved out of the tree meanwhile, that leads outside.
                self._restart(list(self._place[:-1]))
            elif inner in self._tops:
                self._go(self._tops[inner].open(), inner)
            elif self._todo:
                self._enter(name, make=make)
            else:
                found = _lstat(name, self.fd)
                if not (follow and found and modes.S_ISLNK(found.st_mode)):
                    return Spot(self.fd, name, found, inner, self._tops)
                self._follow(name)
        return Spot(self.fd, ".", os.fstat(self.fd), self._place, self._tops)

    def _go(self, fd: int, place: Place) -> None:
        os.close(self.fd)
        self.fd, self._place = fd, place

    def _restart(self, names: list[str]) -> None:
        self._todo += reversed(names)
        self._go(self._tops[()].open(), ())

    def _enter(self, name: str, *, make: bool) -> None:
        try:
            fd = os.open(name, _PATH | os.O_DIRECTORY, dir_fd=self.fd)
        except FileNotFoundError:
            if not make:
                raise
            make_dir(name, self.fd)
            fd = os.open(name, _PATH | os.O_DIRECTORY, dir_fd=self.fd)
        except NotADirectoryError:
            self._follow(name)
            return
        self._go(fd, (*self._place, name))

    def _follow(self, name: str) -> None:
        self._links += 1
        if self._links > _MAX_LINKS:
            raise error(errno.ELOOP, name)
        try:
            target = os.readlink(name, dir_fd=self.fd)
        except OSError as exc:
            if exc.errno == errno.EINVAL:  # not a link
                raise error(errno.ENOTDIR, name) from None
            raise
        if target.startswith("/"):
            names, self._tops = self._read_link(target)
            self._restart(names)
        else:
            self._todo += reversed(split(target))


def split(path: str) -> list[str]:
    """Return the names in a path, without those that mean nothing."""
    return [name for name in path.split("/") if name not in ("", ".")]


def error(number: int, path: str) -> OSError:
    """Return the kernel's own error, as if it had said so."""
    return OSError(number, os.strerror(number), path)


def identity(found: os.stat_result) -> tuple[int, int]:
    """Return what tells a file from all others."""
    return found.st_dev, found.st_ino


def make_dir(name: str, parent: int) -> None:
    """Make a directory whose mode does not depend on our umask; fine if it is there."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
        set_mode(name, _DIR_MODE, parent)


def set_mode(name: str, mode: int, parent: int) -> None:
    """Set permission bits, not following a link."""
    # chmod(2) follows links; by way of a descriptor it can't be led astray.
    fd = os.open(name, _PATH, dir_fd=parent)
    try:
        if modes.S_ISLNK(os.fstat(fd).st_mode):
            raise error(errno.ELOOP, name)
        os.chmod(f"/proc/self/fd/{fd}", mode)
    finally:
        os.close(fd)


_TYPES = {
    modes.S_IFREG: FileType.FILE,
    modes.S_IFDIR: FileType.DIRECTORY,
    modes.S_IFLNK: FileType.SYMLINK,
}


def file_info(path: str, found: os.stat_result, parent: int, name: str) -> FileInfo:
    """Describe ``name`` in an open directory to users, who call it ``path``."""
    kind = _TYPES.get(modes.S_IFMT(found.st_mode), FileType.OTHER)
    return FileInfo(
        path=path,
        type=kind,
        size=found.st_size,
        mode=modes.S_IMODE(found.st_mode),
        modified=found.st_mtime,
        target=os.readlink(name, dir_fd=parent) if kind is FileType.SYMLINK else None,
    )


def _lstat(name: str, parent: int) -> os.stat_result | None:
    try:
        return os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return None
