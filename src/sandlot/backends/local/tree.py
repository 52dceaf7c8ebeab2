"""The file system of a local sandbox: a directory of the host that nothing leads out of.

Paths are walked one name at a time from an open directory, and symbolic links are resolved
here rather than by the kernel, so that neither ``..`` nor a link, nor a directory that is
swapped for a link while a path is walked, ends outside. This confines the file operations of
the sandbox's user; commands on the host are confined by nobody.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat as modes
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from sandlot.backends.local.walk import (
    DIRECTORY,
    Place,
    Spot,
    Top,
    Tops,
    Walk,
    error,
    file_info,
    identity,
    make_dir,
    set_mode,
    split,
)
from sandlot.types import FileInfo

_FILE_MODE = 0o644
# A FIFO must not block, a terminal must not become ours, a link must not be followed.
_CAREFUL = os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC


class ConfinedTree:
    """Files below a root directory of the host, as seen by the file operations of a sandbox.

    An absolute path starts at the root; below a mount point it leads to the mounted directory
    instead. A relative path starts at the root too, and there mounts don't count: ``tmp/x``
    is what a command that starts in the root calls so, even if ``/tmp`` is mounted. A path
    that begins with the host's own path of the root or of a mounted directory is understood,
    for it is what ``pwd`` prints. Symbolic links are read by the same rules.

    All methods block, and raise plain `OSError`. Names that are not valid text are passed
    through by ``surrogateescape``. Linux only.

    Args:
        root: A directory of the host, which exists.
        mounts: Host directories, which exist, by the absolute paths where they appear. What
            is above a mount point must exist in the tree, the mount point itself need not.
    """

    def __init__(self, root: str, mounts: Mapping[str, str]) -> None:
        self._root_only: Tops = {(): Top(root)}
        mounted = {tuple(split(point)): Top(host) for point, host in mounts.items()}
        self._tops: Tops = {**self._root_only, **mounted}
        hosts: list[tuple[Place, Place]] = [
            (tuple(split(spelling)), place)
            for place, top in self._tops.items()
            for spelling in top.spellings
            if spelling != "/"
        ]
        self._hosts = sorted(hosts, key=lambda pair: len(pair[0]), reverse=True)

    # ------------------------------------------------------------------ files
    def read(self, path: str) -> bytes:
        """Return a regular file's content."""
        with os.fdopen(self.open_read(path), "rb", buffering=0) as file:
            return file.readall()

    def open_read(self, path: str) -> int:
        """Open a regular file for reading and return its descriptor. Never blocks."""
        with self._at(path, follow=True) as spot:
            _require_regular(spot.stat)
            fd = os.open(spot.name, os.O_RDONLY | _CAREFUL, dir_fd=spot.parent)
        try:
            _require_regular(os.fstat(fd))  # it may have been swapped since
        except OSError:
            os.close(fd)
            raise
        return fd

    def write(self, path: str, data: bytes) -> None:
        """Make or replace a file, and the directories above it. See `open_write`."""
        with self.open_write(path) as file:
            file.write(data)

    def open_write(self, path: str) -> Replacement:
        """Begin to write a file, which appears whole when committed, or not at all.

        The content is written beside and renamed into place: readers and running programs
        keep the old one, and a full disk leaves it unharmed. An existing file keeps its mode,
        and its owner where that is permitted; it must be writable. Not kept are its inode,
        and with it other hard links to it (a link into a package manager's cache is cut, and
        the cache unharmed), and extended attributes. A link is followed, and stays.
        """
        if path.endswith("/"):
            raise error(errno.EISDIR, path)
        with self._at(path, follow=True, make=True) as spot:
            old = spot.found
            if old is not None:
                _require_regular(old)
                old = _writable(spot, old)
            return Replacement(os.dup(spot.parent), spot.name, old)

    def move(self, source: str, target: str) -> None:
        """Rename a file or directory as rename(2) does, also between file systems."""
        with self._at(source) as old, self._at(target) as new:
            old.refuse_top()
            new.refuse_top()
            try:
                os.rename(old.name, new.name, src_dir_fd=old.parent, dst_dir_fd=new.parent)
            except OSError as exc:
                if exc.errno != errno.EXDEV:
                    raise
                _move_across(old, new)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link, in place of a file or link that is there."""
        with self._at(path, make=True) as spot:
            spot.refuse_top()
            if spot.found is not None:
                if modes.S_ISDIR(spot.found.st_mode):
                    raise error(errno.EISDIR, path)
                os.unlink(spot.name, dir_fd=spot.parent)
            os.symlink(target, spot.name, dir_fd=spot.parent)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or link, an empty directory, or with ``recursive`` a whole tree."""
        with self._at(path) as spot:
            spot.refuse_top()
            if not modes.S_ISDIR(spot.stat.st_mode):
                os.unlink(spot.name, dir_fd=spot.parent)
            elif recursive:
                _remove_tree(spot.parent, spot.name)
            else:
                os.rmdir(spot.name, dir_fd=spot.parent)

    def stat(self, path: str) -> FileInfo:
        """Describe a path; a symbolic link as itself."""
        with self._at(path) as spot:
            return file_info(path, spot.stat, spot.parent, spot.name)

    def set_mode(self, path: str, mode: int) -> None:
        """Set permission bits; those of its target if it is a link."""
        with self._at(path, follow=True) as spot:
            set_mode(spot.name, mode, spot.parent)

    # ------------------------------------------------------------ directories
    def list_dir(self, path: str) -> list[FileInfo]:
        """Return what a directory holds, sorted by name."""
        with self._directory(path) as (fd, mounted):
            listed: list[FileInfo] = []
            for name in sorted({*os.listdir(fd), *mounted}):
                inner = f"{path.rstrip('/')}/{name}" if path else name
                with suppress(FileNotFoundError):  # removed since
                    if name in mounted:
                        listed.append(mounted[name].info(inner))
                    else:
                        listed.append(file_info(inner, os.lstat(name, dir_fd=fd), fd, name))
            return listed

    def make_dir(self, path: str) -> None:
        """Make a directory and those above it; fine if it is there."""
        with self._at(path, follow=True, make=True) as spot:
            if spot.found is None:
                make_dir(spot.name, spot.parent)
            elif not modes.S_ISDIR(spot.found.st_mode):
                raise error(errno.EEXIST, path)

    def pack(self, path: str) -> Iterator[bytes]:
        """Yield what a directory holds as a tar stream; mounts in it are left out."""
        from sandlot import _archive

        with self.host_dir(path) as directory:
            yield from _archive.pack(directory)

    def unpack(self, path: str, pieces: Iterable[bytes]) -> None:
        """Unpack a tar stream into a directory, which exists.

        Raises:
            UnsafeArchiveError: If an entry would be written outside of it.
            SandboxFileError: If the archive is damaged.
        """
        from sandlot import _archive

        with self.host_dir(path) as directory:
            _archive.unpack(pieces, directory)

    @contextmanager
    def host_dir(self, path: str) -> Generator[str, None, None]:
        """Yield a path of the host that is this very directory while the context lasts."""
        with self._directory(path) as (fd, _):
            yield f"/proc/self/fd/{fd}"

    def command_path(self, path: str) -> str:
        """Return the host's path for a path of the tree; a matter of names, nothing is read."""
        names, tops = self._locate(path)
        inside: list[str] = []
        for name in names:
            if name != "..":
                inside.append(name)
            elif inside:
                inside.pop()
        place = max((top for top in tops if (*inside[: len(top)],) == top), key=len)
        return os.path.join(tops[place].path, *inside[len(place) :])

    # --------------------------------------------------------------- walking
    def _locate(self, path: str) -> tuple[list[str], Tops]:
        """Return the names to walk from the root, and the mounts that count on the way."""
        names = split(path)
        if not path.startswith("/"):
            return names, self._root_only
        for host, place in self._hosts:
            if tuple(names[: len(host)]) == host:
                return [*place, *names[len(host) :]], self._tops if place else self._root_only
        return names, self._tops

    @contextmanager
    def _at(
        self, path: str, *, follow: bool = False, make: bool = False
    ) -> Generator[Spot, None, None]:
        """Yield where a path leads; see `Walk.to_end`."""
        try:
            if b"\0" in os.fsencode(path):
                raise error(errno.EINVAL, path)
        except UnicodeEncodeError:
            raise error(errno.EILSEQ, path) from None
        walk = Walk(*self._locate(path), self._locate)
        try:
            yield walk.to_end(follow=follow, make=make)
        finally:
            os.close(walk.fd)

    @contextmanager
    def _directory(self, path: str) -> Generator[tuple[int, dict[str, Top]], None, None]:
        """Yield a directory, open for reading, and what is mounted right in it."""
        with self._at(path, follow=True) as spot:
            if not modes.S_ISDIR(spot.stat.st_mode):
                raise error(errno.ENOTDIR, path)
            fd = os.open(spot.name, os.O_RDONLY | DIRECTORY, dir_fd=spot.parent)
        try:
            yield fd, {at[-1]: top for at, top in spot.tops.items() if at and at[:-1] == spot.place}
        finally:
            os.close(fd)


class Replacement:
    """A file that is being written beside its place, and takes it when committed.

    As a context manager it commits, or discards if an exception passes.
    """

    def __init__(self, parent: int, name: str, old: os.stat_result | None) -> None:
        """Take over ``parent``, an open directory."""
        self._parent = parent
        self._name = name
        self._old = old
        self._passing = f".sandlot-{secrets.token_hex(8)}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._fd = os.open(self._passing, flags, 0o600, dir_fd=parent)
        except OSError:
            os.close(parent)
            raise

    def fileno(self) -> int:
        """Return the descriptor, for writing."""
        return self._fd

    def write(self, data: bytes) -> None:
        """Write all of ``data``."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def commit(self) -> None:
        """Put it in its place. If that fails, it is discarded."""
        try:
            self._take_over()
            names = self._passing, self._name
            os.rename(*names, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        except OSError:
            self.discard()
            raise
        self._close()

    def discard(self) -> None:
        """Remove it, and leave what was there as it is."""
        try:
            with suppress(FileNotFoundError):  # commands may have removed it
                os.unlink(self._passing, dir_fd=self._parent)
        finally:
            self._close()

    def _take_over(self) -> None:
        """Become what is replaced, in all but content."""
        if self._old is None:
            os.fchmod(self._fd, _FILE_MODE)
            return
        mine = os.fstat(self._fd)
        if (mine.st_uid, mine.st_gid) != (self._old.st_uid, self._old.st_gid):
            with suppress(PermissionError):  # only root may give files away
                os.fchown(self._fd, self._old.st_uid, self._old.st_gid)
        os.fchmod(self._fd, modes.S_IMODE(self._old.st_mode))

    def _close(self) -> None:
        os.close(self._fd)
        os.close(self._parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()


def _require_regular(found: os.stat_result) -> None:
    if modes.S_ISDIR(found.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not modes.S_ISREG(found.st_mode):
        kinds = {modes.S_IFIFO: "FIFO", modes.S_IFSOCK: "socket", modes.S_IFLNK: "link"}
        kind = kinds.get(modes.S_IFMT(found.st_mode), "device")
        raise OSError(errno.EINVAL, f"Not a regular file but a {kind}")


def _writable(spot: Spot, found: os.stat_result) -> os.stat_result:
    """Return what is to be replaced, having made sure that we may write to it."""
    try:
        fd = os.open(spot.name, os.O_WRONLY | _CAREFUL, dir_fd=spot.parent)
    except OSError as exc:
        if exc.errno == errno.ETXTBSY:  # a program that is running can well be replaced
            return found
        raise
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def _move_across(old: Spot, new: Spot) -> None:
    """Move between file systems, which is what mv(1) is for."""
    import subprocess

    paths = [f"/proc/self/fd/{spot.parent}/{spot.name}" for spot in (old, new)]
    done = subprocess.run(
        ["mv", "-fT", "--", *paths],
        pass_fds=(old.parent, new.parent),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise OSError(errno.EIO, os.fsdecode(done.stderr).strip())


def _remove_tree(parent: int, name: str) -> None:
    """Remove a directory and all below it, however deep, following no links."""
    fd = os.open(name, os.O_RDONLY | DIRECTORY, dir_fd=parent)
    try:
        trail = [(name, _unlink_files(fd), identity(os.fstat(fd)))]
        while trail:
            name, subdirs, _ = trail[-1]
            if subdirs:
                name = subdirs.pop()
                fd = _replace(fd, os.open(name, os.O_RDONLY | DIRECTORY, dir_fd=fd))
                trail.append((name, _unlink_files(fd), identity(os.fstat(fd))))
                continue
            trail.pop()
            fd = _replace(fd, _open_above(fd, trail[-1][2]) if trail else os.dup(parent))
            os.rmdir(name, dir_fd=fd)
    finally:
        os.close(fd)


def _unlink_files(fd: int) -> list[str]:
    """Remove all but the directories from a directory, and return those."""
    with os.scandir(fd) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_dir in found:
        if not is_dir:
            with suppress(FileNotFoundError):  # somebody else has removed it
                os.unlink(name, dir_fd=fd)
    return [name for name, is_dir in found if is_dir]


def _open_above(fd: int, expected: tuple[int, int]) -> int:
    above = os.open("..", os.O_RDONLY | DIRECTORY, dir_fd=fd)
    if identity(os.fstat(above)) != expected:
        os.close(above)
        raise OSError(errno.EBUSY, "A directory was moved while it was being removed")
    return above


def _replace(old: int, new: int) -> int:
    os.close(old)
    return new
