"""What is kept on disk about each local sandbox, for other processes and for after a crash.

<state>/local/<id>/record.json    who made it, when, its labels
                   lock           held by its helper for as long as that lives
                   control.sock   where the helper listens
                   root/ tmp/ home/
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from sandlot.backends.local.cgroups import Cgroup
from sandlot.errors import SandboxConfigurationError, SandboxNotFoundError
from sandlot.state import state_dir
from sandlot.types import SandboxInfo, SandboxSessionState, SandboxState

SOCKET = "control.sock"
LOCK = "lock"
_RECORD = "record.json"
_ID = re.compile(r"local-[0-9a-f]{12}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One local sandbox, as its directory tells. Holds no secrets."""

    id: str
    root: str
    """Where its commands start."""
    owner: int
    """Process id of the program that made it."""
    created: float
    expires: float | None = None
    kept: bool = False
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    cgroups: tuple[str, ...] = ()
    directory: str = ""

    @property
    def tmp(self) -> str:
        """Its directory for temporary files."""
        return os.path.join(self.directory, "tmp")

    @property
    def home(self) -> str:
        """Its home directory."""
        return os.path.join(self.directory, "home")

    @property
    def running(self) -> bool:
        """Whether its helper lives, which holds the lock."""
        try:
            descriptor = os.open(os.path.join(self.directory, LOCK), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def changed(self, **fields: object) -> Record:
        """Return it with other values, written to disk."""
        record = replace(self, **fields)  # type: ignore[arg-type]
        record.write()
        return record

    def write(self) -> None:
        """Write it, whole or not at all."""
        values = asdict(self)
        del values["directory"]
        path = os.path.join(self.directory, _RECORD)
        draft = f"{path}.{os.getpid()}"
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(values, file)
        os.replace(draft, path)

    def reread(self) -> Record:
        """Return it as it is on disk now.

        Raises:
            SandboxNotFoundError: If it is gone.
        """
        return read_record(self.id, self.directory)

    def session_state(self) -> SandboxSessionState:
        """Return what another process needs to find it."""
        return SandboxSessionState("local", {"sandbox_id": self.id, "directory": self.directory})

    def kill_marked(self) -> None:
        """Kill processes that carry its mark although its helper is gone.

        That takes a SIGKILL of the helper and of a command's supervisor at once. What has
        also cleared its environment is not found.
        """
        mark = f"SANDLOT_SANDBOX_ID={self.id}".encode()
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        os.kill(int(entry), signal.SIGKILL)
            except OSError:
                continue  # it has ended, or is another user's

    def remove(self) -> list[str]:
        """Remove what is left of it on disk, and its cgroups; return what could not be."""
        left: list[str] = []

        def note(_call: object, path: str, failure: tuple[object, BaseException, object]) -> None:
            if not isinstance(failure[1], FileNotFoundError):
                left.append(f"{path}: {failure[1]}")

        try:
            Cgroup(self.cgroups).remove()
        except OSError as exc:
            left.append(str(exc))
        shutil.rmtree(self.directory, onerror=note)
        return left

    def info(self, *, running: bool) -> SandboxInfo:
        """Describe it to users."""
        return SandboxInfo(
            id=self.id,
            backend="local",
            state=SandboxState.RUNNING if running else SandboxState.STOPPED,
            labels=self.labels,
            created=self.created,
            expires=self.expires,
            kept=self.kept,
        )


def home_of_all() -> Path:
    """Return the directory that holds all local sandboxes."""
    path = state_dir() / "local"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def cgroup_prefix() -> str:
    """Return what the names of this state directory's cgroups begin with, and no other's."""
    place = hashlib.sha256(os.fsencode(home_of_all())).hexdigest()
    return f"sandlot-{place[:8]}-"


def new_record(*, workdir: str | None, labels: Mapping[str, str], expires: float | None) -> Record:
    """Make a sandbox's directory and its record.

    Raises:
        SandboxConfigurationError: If ``workdir`` is not a directory that can be used.
    """
    root = _host_directory(workdir) if workdir is not None else None
    sandbox_id = f"local-{secrets.token_hex(6)}"
    directory = os.path.join(home_of_all(), sandbox_id)
    os.mkdir(directory, 0o700)
    try:
        for name in ("tmp", "home") if root else ("tmp", "home", "root"):
            os.mkdir(os.path.join(directory, name), 0o700)
        record = Record(
            id=sandbox_id,
            root=root or os.path.join(directory, "root"),
            owner=os.getpid(),
            created=time.time(),
            expires=expires,
            labels=labels,
            directory=directory,
        )
        record.write()
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return record


def read_record(sandbox_id: str, directory: str | None = None) -> Record:
    """Return the record of a sandbox.

    Raises:
        SandboxNotFoundError: If there is none.
    """
    if not _ID.match(sandbox_id):
        raise SandboxNotFoundError(f"{sandbox_id!r} is not the id of a local sandbox")
    directory = directory or os.path.join(home_of_all(), sandbox_id)
    try:
        with open(os.path.join(directory, _RECORD), encoding="utf-8") as file:
            values = json.load(file)
        values["cgroups"] = tuple(values["cgroups"])
        return Record(**values, directory=directory)
    except (OSError, ValueError, TypeError, KeyError) as exc:
        raise SandboxNotFoundError(f"there is no local sandbox {sandbox_id}") from exc


def records() -> Iterator[Record]:
    """Yield the records of all local sandboxes; half-made ones are passed over."""
    for entry in sorted(os.listdir(home_of_all())):
        try:
            yield read_record(entry)
        except SandboxNotFoundError:
            continue


def unrecorded(older_than: float) -> Iterator[str]:
    """Yield directories without a record that are older than so many seconds.

    A program that died between making the directory and writing the record leaves one.
    """
    home = home_of_all()
    for entry in sorted(os.listdir(home)):
        directory = os.path.join(home, entry)
        if not _ID.match(entry) or os.path.exists(os.path.join(directory, _RECORD)):
            continue
        try:
            age = time.time() - os.stat(directory).st_mtime
        except FileNotFoundError:
            continue
        if age > older_than:
            yield directory


def _host_directory(path: str) -> str:
    real = os.path.realpath(os.path.expanduser(path))
    try:
        os.makedirs(real, exist_ok=True)
    except OSError as exc:
        raise SandboxConfigurationError(
            f"workdir: {path!r} can't be used: {exc.strerror}",
            hint="on the local backend, workdir is a directory of this host",
        ) from exc
    return real
