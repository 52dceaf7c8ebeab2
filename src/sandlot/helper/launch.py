"""Starting a helper's process, reaching its socket, and reaping it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
from collections.abc import Mapping, Sequence

from sandlot.helper.protocol import OWNER_FD

_CONNECT_PATIENCE = 5.0
_unreaped: set[int] = set()
"""Helpers whose event loop may have ended before they did."""


def spawn(argv: Sequence[str], env: Mapping[str, str], sock: int, stderr: int) -> int:
    """Start a helper with ``sock`` as its owner's connection; return its pid.

    posix_spawn takes about as long as any exec, whatever the size of this process.
    """
    moved = fcntl.fcntl(sock, fcntl.F_DUPFD_CLOEXEC, OWNER_FD + 1)
    try:
        pid = os.posix_spawnp(
            argv[0],
            list(argv),
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, stderr, 2),
                (os.POSIX_SPAWN_DUP2, moved, OWNER_FD),
            ],
            setsid=True,
            setsigmask=(),
        )
    finally:
        os.close(moved)
    _unreaped.add(pid)
    return pid


def try_reap(pid: int) -> bool:
    """Reap a helper if it has ended; return whether it is reaped."""
    if pid not in _unreaped:
        return True
    try:
        reaped = os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # another part of the program waits for any child
        reaped = True
    if reaped:
        _unreaped.discard(pid)
    return reaped


def kill(pid: int) -> None:
    """Send SIGKILL to a helper, unless it is reaped: its number may be a stranger's then."""
    if pid in _unreaped:
        os.kill(pid, signal.SIGKILL)


def forget(pid: int) -> None:
    """Leave it to the caller to reap a helper."""
    _unreaped.discard(pid)


def reap_leftovers() -> None:
    """Reap helpers that ended after their event loop."""
    for pid in tuple(_unreaped):
        try_reap(pid)


async def connect(sock: socket.socket, directory: str, name: str) -> None:
    """Connect a non-blocking socket to a path that may be longer than an address holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _CONNECT_PATIENCE
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while True:
            try:
                sock.connect(f"/proc/self/fd/{fd}/{name}")
            except BlockingIOError:  # many connect at once
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(0.01)
            else:
                return
    finally:
        os.close(fd)
