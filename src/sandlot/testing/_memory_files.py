"""A file tree in memory, with the errors of a real one."""

from __future__ import annotations

import errno
import io
import os
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from sandlot.types import FileInfo, FileType

_MAX_LINKS = 40


@dataclass(slots=True, kw_only=True)
class File:
    """A regular file."""

    mode: int = 0o644
    modified: float = field(default_factory=time.time)
    data: bytearray = field(default_factory=bytearray)


@dataclass(slots=True, kw_only=True)
class Directory:
    """A directory."""

    mode: int = 0o755
    modified: float = field(default_factory=time.time)
    entries: dict[str, Node] = field(default_factory=dict[str, "Node"])


@dataclass(slots=True, kw_only=True)
class Symlink:
    """A symbolic link."""

    target: str
    mode: int = 0o777
    modified: float = field(default_factory=time.time)


@dataclass(slots=True, kw_only=True)
class Fifo:
    """A named pipe: it has a name, and nothing can be read through it."""

    mode: int = 0o644
    modified: float = field(default_factory=time.time)


Node: TypeAlias = File | Directory | Symlink | Fifo
_TYPES = {
    File: FileType.FILE,
    Directory: FileType.DIRECTORY,
    Symlink: FileType.SYMLINK,
    Fifo: FileType.OTHER,
}


def failure(number: int, path: str) -> OSError:
    """Return the `OSError` that a kernel's error number stands for."""
    return OSError(number, os.strerror(number), path)


class FileTree:
    """Files, directories and links below one root.

    Paths are absolute; ``superuser`` passes over the permission bits, as root does.
    """

    def __init__(self) -> None:
        self.root = Directory()

    # ---------------------------------------------------------------- looking
    def find(self, path: str, *, follow: bool = True, superuser: bool = False) -> Node:
        """Return what is at a path."""
        parent, name = self._parent(path, superuser, follow=follow)
        if not name:
            return parent
        if (node := parent.entries.get(name)) is None:
            raise failure(errno.ENOENT, path)
        if path.endswith("/") and not isinstance(node, Directory):
            raise failure(errno.ENOTDIR, path)
        return node

    def directory(self, path: str, *, superuser: bool = False) -> Directory:
        """Return the directory at a path."""
        node = self.find(path, superuser=superuser)
        if not isinstance(node, Directory):
            raise failure(errno.ENOTDIR, path)
        return node

    def file(self, path: str, *, superuser: bool = False) -> File:
        """Return the regular file at a path, which may be read."""
        node = self.find(path, superuser=superuser)
        if isinstance(node, Directory):
            raise failure(errno.EISDIR, path)
        if not isinstance(node, File):
            raise failure(errno.EINVAL, path)
        if not (superuser or node.mode & 0o400):
            raise failure(errno.EACCES, path)
        return node

    def describe(self, path: str, *, superuser: bool = False) -> FileInfo:
        """Describe a path; a link as itself."""
        return _info(path, self.find(path, follow=False, superuser=superuser))

    def list_dir(self, path: str, *, superuser: bool = False) -> list[FileInfo]:
        """Describe what a directory holds, sorted by name."""
        directory = self.directory(path, superuser=superuser)
        if not (superuser or directory.mode & 0o400):
            raise failure(errno.EACCES, path)
        base = path if path.endswith("/") else f"{path}/"
        return [_info(f"{base}{name}", node) for name, node in sorted(directory.entries.items())]

    # --------------------------------------------------------------- changing
    def open_for_writing(self, path: str, *, append: bool = False, superuser: bool = False) -> File:
        """Return the file at a path, made or emptied; its mode is kept."""
        parent, name = self._parent(path, superuser, follow=True)
        node = parent.entries.get(name) if name else parent
        if isinstance(node, Directory):
            raise failure(errno.EISDIR, path)
        if node is None:
            if path.endswith("/"):
                raise failure(errno.EISDIR, path)
            node = self._add(parent, name, File(), path, superuser)
        if not isinstance(node, File):
            raise failure(errno.EINVAL, path)
        if not (superuser or node.mode & 0o200):
            raise failure(errno.EACCES, path)
        if not append:
            node.data = bytearray()
        node.modified = time.time()
        return node

    def make_dirs(self, path: str, *, superuser: bool = False) -> None:
        """Make a directory and those above it; fine if it is there."""
        made = ""
        for part in _parts(path):
            made = f"{made}/{part}"
            try:
                node = self.find(made, superuser=superuser)
            except FileNotFoundError:
                parent, name = self._parent(made, superuser, follow=True)
                node = self._add(parent, name, Directory(), made, superuser)
            if not isinstance(node, Directory):
                raise failure(errno.EEXIST if made == path.rstrip("/") else errno.ENOTDIR, made)

    def add(self, path: str, node: Node, *, superuser: bool = False) -> None:
        """Put something at a path where nothing is yet."""
        parent, name = self._parent(path, superuser, follow=False)
        if not name or name in parent.entries:
            raise failure(errno.EEXIST, path)
        self._add(parent, name, node, path, superuser)

    def link(self, path: str, target: str, *, superuser: bool = False) -> None:
        """Make a symbolic link, in place of a file or link that is there."""
        if isinstance(node := self._entry(path), Directory):
            raise failure(errno.EISDIR, path)
        if node is not None:
            self.remove(path, superuser=superuser)
        self.add(path, Symlink(target=target), superuser=superuser)

    def remove(self, path: str, *, recursive: bool = False, superuser: bool = False) -> None:
        """Remove a file or link, an empty directory, or a whole tree."""
        parent, name = self._parent(path.rstrip("/"), superuser, follow=False)
        if not name:
            raise failure(errno.EBUSY, path)
        node = parent.entries.get(name)
        if node is None:
            raise failure(errno.ENOENT, path)
        if isinstance(node, Directory) and node.entries and not recursive:
            raise failure(errno.ENOTEMPTY, path)
        _check_writable(parent, path, superuser)
        del parent.entries[name]

    def move(self, source: str, target: str, *, superuser: bool = False) -> None:
        """Rename; a file in the way is replaced."""
        old_parent, old_name = self._parent(source.rstrip("/"), superuser, follow=False)
        node = old_parent.entries.get(old_name)
        if node is None:
            raise failure(errno.ENOENT, source)
        new_parent, new_name = self._parent(target.rstrip("/"), superuser, follow=False)
        replaced = new_parent.entries.get(new_name)
        if isinstance(replaced, Directory):
            raise failure(errno.EISDIR, target)
        if isinstance(node, Directory) and replaced is not None:
            raise failure(errno.ENOTDIR, target)
        if isinstance(node, Directory) and f"{target}/".startswith(f"{source.rstrip('/')}/"):
            raise failure(errno.EINVAL, target)
        _check_writable(old_parent, source, superuser)
        _check_writable(new_parent, target, superuser)
        del old_parent.entries[old_name]
        new_parent.entries[new_name] = node

    # ------------------------------------------------------------------ tar
    def pack(self, path: str) -> bytes:
        """Return what a directory holds as a tar archive."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name, node in _walk(self.directory(path)):
                entry = tarfile.TarInfo(name)
                entry.mode, entry.mtime = node.mode, int(node.modified)
                content = None
                if isinstance(node, Directory):
                    entry.type = tarfile.DIRTYPE
                elif isinstance(node, Symlink):
                    entry.type, entry.linkname = tarfile.SYMTYPE, node.target
                elif isinstance(node, Fifo):
                    entry.type = tarfile.FIFOTYPE
                else:
                    entry.size, content = len(node.data), io.BytesIO(node.data)
                tar.addfile(entry, content)
        return buffer.getvalue()

    def unpack(self, path: str, archive: bytes, *, superuser: bool = False) -> None:
        """Fill a directory from a tar archive."""
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for entry in tar:
                where = f"{path.rstrip('/')}/{entry.name}"
                if entry.isdir():
                    self.make_dirs(where, superuser=superuser)
                    self.directory(where, superuser=True).mode = entry.mode & 0o7777
                    continue
                self.make_dirs(where.rpartition("/")[0] or "/", superuser=superuser)
                if not isinstance(self._entry(where), Directory | None):
                    self.remove(where, superuser=superuser)
                if entry.issym():
                    self.add(where, Symlink(target=entry.linkname), superuser=superuser)
                elif entry.isfile() and (content := tar.extractfile(entry)):
                    node = File(mode=entry.mode & 0o7777, data=bytearray(content.read()))
                    self.add(where, node, superuser=superuser)

    # --------------------------------------------------------------- walking
    def _entry(self, path: str) -> Node | None:
        try:
            return self.find(path, follow=False, superuser=True)
        except FileNotFoundError:
            return None

    def _add(self, parent: Directory, name: str, node: Node, path: str, superuser: bool) -> Node:
        if len(name.encode("utf-8", "surrogateescape")) > 255:
            raise failure(errno.ENAMETOOLONG, path)
        _check_writable(parent, path, superuser)
        parent.entries[name] = node
        parent.modified = time.time()
        return node

    def _parent(self, path: str, superuser: bool, *, follow: bool) -> tuple[Directory, str]:
        """Return the directory that holds, or would hold, the last part of a path."""
        todo = _parts(path)
        above: list[Directory] = [self.root]
        links = 0
        while todo:
            part = todo.pop(0)
            here = above[-1]
            if part == "..":
                above = above[:-1] or above
                continue
            if not (superuser or here.mode & 0o100):
                raise failure(errno.EACCES, path)
            node = here.entries.get(part)
            if isinstance(node, Symlink) and (todo or follow):
                links += 1
                if links > _MAX_LINKS:
                    raise failure(errno.ELOOP, path)
                if node.target.startswith("/"):
                    above = [self.root]
                todo = _parts(node.target) + todo
            elif not todo:
                return here, part
            elif node is None:
                raise failure(errno.ENOENT, path)
            elif isinstance(node, Directory):
                above.append(node)
            else:
                raise failure(errno.ENOTDIR, path)
        return above[-1], ""


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _check_writable(parent: Directory, path: str, superuser: bool) -> None:
    if not (superuser or parent.mode & 0o200):
        raise failure(errno.EACCES, path)


def _info(path: str, node: Node) -> FileInfo:
    return FileInfo(
        path=path,
        type=_TYPES[type(node)],
        size=len(node.data) if isinstance(node, File) else 0,
        mode=node.mode,
        modified=node.modified,
        target=node.target if isinstance(node, Symlink) else None,
    )


def _walk(directory: Directory, prefix: str = "") -> Iterator[tuple[str, Node]]:
    for name, node in sorted(directory.entries.items()):
        yield f"{prefix}{name}", node
        if isinstance(node, Directory):
            yield from _walk(node, f"{prefix}{name}/")
