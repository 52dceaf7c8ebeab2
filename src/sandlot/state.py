"""Where this machine's user keeps Sandlot's own records, and leases between processes."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from sandlot.errors import SandboxConfigurationError


def state_dir() -> Path:
    """Return the directory for records, made if need be, closed to other users.

    ``SANDLOT_STATE_DIR``, else ``$XDG_STATE_HOME/sandlot``, else ``~/.local/state/sandlot``.
    """
    named = os.environ.get("SANDLOT_STATE_DIR")
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = Path(named) if named else Path(base, "sandlot")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise SandboxConfigurationError(
            f"no place for Sandlot's records: {path}: {exc.strerror}",
            hint="set SANDLOT_STATE_DIR to a directory that can be written",
        ) from exc
    return path


@asynccontextmanager
async def lease(name: str) -> AsyncGenerator[None, None]:
    """Hold a name that only one holder on this machine can hold at a time; wait for it.

    A holder that dies, however it dies, gives it up: the kernel drops its lock.
    """
    directory = state_dir() / "leases"
    directory.mkdir(mode=0o700, exist_ok=True)
    path = directory / hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        pause = 0.001
        while not _locked(descriptor):
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
