"""A blocking client that can also misbehave, and what tests want to know about processes."""

from __future__ import annotations

import array
import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from sandlot.helper import launch
from sandlot.helper.protocol import (
    EXITED_BODY,
    HEADER,
    HELLO_BODY,
    PAIR,
    SIGNAL_BODY,
    U32,
    Exited,
    FrameType,
    Hello,
    Listed,
    pack_frame,
    pack_start,
    unpack_listing,
    unpack_text,
)

T = TypeVar("T")

BASE_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
"""The environment that helpers are started with."""

PATIENCE = 30.0
"""Seconds after which something hangs, rather than being slow."""


class Frame(NamedTuple):
    kind: FrameType
    request_id: int
    body: bytes


class Failed(NamedTuple):
    errno: int
    stage: int


class Ended(Exception):
    """The peer has closed the connection."""


class Peer:
    """One connection, at the level of frames."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE)
        self.sock = sock
        self.last_id = 0
        self._buffer = b""
        self._waiting: list[Frame] = []

    def send(
        self,
        kind: int,
        body: bytes = b"",
        *,
        request_id: int | None = None,
        fds: Sequence[int] = (),
    ) -> int:
        if request_id is None:
            self.last_id += 1
            request_id = self.last_id
        self.send_raw(pack_frame(kind, request_id, body), fds)
        return request_id

    def send_raw(self, data: bytes, fds: Sequence[int] = ()) -> None:
        sent = 0
        if fds:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
            sent = self.sock.sendmsg([data], [rights])
        if data[sent:]:
            self.sock.sendall(data[sent:])

    def receive(self) -> Frame:
        """Return the next frame."""
        if self._waiting:
            return self._waiting.pop(0)
        return self._read()

    def _read(self) -> Frame:
        while True:
            if len(self._buffer) >= HEADER.size:
                length, kind, request_id = HEADER.unpack_from(self._buffer)
                if len(self._buffer) >= 4 + length:
                    body = self._buffer[HEADER.size : 4 + length]
                    self._buffer = self._buffer[4 + length :]
                    return Frame(FrameType(kind), request_id, body)
            try:
                data = self.sock.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            if not data:
                raise Ended
            self._buffer += data

    def answer(self, request_id: int, *kinds: FrameType) -> Frame:
        """Return the next frame for a request (of these kinds, if given); keep the others."""
        for index, frame in enumerate(self._waiting):
            if frame.request_id == request_id and (not kinds or frame.kind in kinds):
                return self._waiting.pop(index)
        while True:
            frame = self._read()
            if frame.request_id == request_id and (not kinds or frame.kind in kinds):
                return frame
            self._waiting.append(frame)

    def is_ended(self) -> bool:
        """Wait for the end of the connection, whatever comes before."""
        with contextlib.suppress(Ended):
            while True:
                self._waiting.append(self._read())
        return True

    # ------------------------------------------------------------------ requests
    def hello(self) -> Hello:
        frame = self.receive()
        assert frame.kind is FrameType.HELLO
        return Hello._make(HELLO_BODY.unpack(frame.body))

    def start(
        self,
        *argv: str,
        cwd: str = "",
        env: Sequence[str] = (),
        flags: int = 0,
        fds: Sequence[int] = (),
    ) -> int:
        body = pack_start(cwd, argv, env, flags=flags, fds=len(fds))
        return self.send(FrameType.START, body, fds=fds)

    def started(self, request_id: int) -> int:
        frame = self.answer(request_id)
        assert frame.kind is FrameType.STARTED, frame
        pid: int = U32.unpack(frame.body)[0]
        return pid

    def failed(self, request_id: int) -> Failed:
        frame = self.answer(request_id)
        assert frame.kind is FrameType.FAILED, frame
        return Failed._make(PAIR.unpack(frame.body))

    def exited(self, request_id: int) -> Exited:
        frame = self.answer(request_id, FrameType.EXITED, FrameType.FAILED)
        assert frame.kind is FrameType.EXITED, frame
        return Exited._make(EXITED_BODY.unpack(frame.body))

    def gone(self, request_id: int) -> None:
        self.answer(request_id, FrameType.GONE)

    def done(self, request_id: int) -> tuple[int, str]:
        frame = self.answer(request_id)
        assert frame.kind is FrameType.DONE, (frame, frame.body)
        return unpack_text(frame.body)

    def error(self, request_id: int) -> int:
        """Return the errno of a request's ERROR."""
        frame = self.answer(request_id)
        assert frame.kind is FrameType.ERROR, frame
        return unpack_text(frame.body)[0]

    def listing(self) -> list[Listed]:
        return unpack_listing(self.answer(self.send(FrameType.LIST)).body)

    def signal(self, target: int, number: int, scope: int) -> int:
        return self.send(FrameType.SIGNAL, SIGNAL_BODY.pack(target, number, scope))

    def kill(self, target: int) -> int:
        return self.send(FrameType.KILL, U32.pack(target))

    def output(self, *argv: str, cwd: str = "", env: Sequence[str] = ()) -> bytes:
        """Run a command and return what it prints."""
        with open_pipe() as (read_end, write_end), open(os.devnull) as null:
            request_id = self.start(
                *argv, cwd=cwd, env=env, fds=(null.fileno(), write_end(), write_end())
            )
            self.started(request_id)
            write_end.close()
            printed = read_all(read_end())
            self.exited(request_id)
            self.gone(request_id)
            return printed


class Helper(Peer):
    """A helper's process, and its owner's connection."""

    def __init__(self, argv: list[str], env: dict[str, str], *, owner: bool) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours)
        self.said = os.memfd_create("stderr")
        if owner:
            self.pid = launch.spawn(argv, env, theirs.fileno(), self.said)
        else:
            popen = subprocess.Popen(argv, env=env, stderr=self.said, start_new_session=True)
            popen.returncode = 0  # waited for below
            self.pid = popen.pid
        theirs.close()
        self.guests: list[socket.socket] = []
        self._status: int | None = None

    def wait(self) -> int:
        """Return its exit code, once it has ended."""
        if self._status is None:
            self._status = until(lambda: reaped(self.pid))[1]
        return os.waitstatus_to_exitcode(self._status)

    def stderr(self) -> str:
        return os.pread(self.said, 1 << 16, 0).decode()

    def dispose(self) -> None:
        """End it, and look whether it or a supervisor has said that something is wrong."""
        for sock in (self.sock, *self.guests):
            sock.close()
        try:
            if self._status is None and reaped(self.pid) is None:
                os.kill(self.pid, signal.SIGCONT)
                os.kill(self.pid, signal.SIGTERM)
                self.wait()
            for trouble in ("Traceback", "Sanitizer", "runtime error"):
                assert trouble not in self.stderr(), self.stderr()
        finally:
            os.close(self.said)

    def connect(self, directory: Path, name: str = "socket") -> Peer:
        """Return a further connection."""
        sock = socket.socket(socket.AF_UNIX)
        self.guests.append(sock)
        fd = os.open(directory, os.O_PATH)

        def listens() -> bool:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                sock.connect(f"/proc/self/fd/{fd}/{name}")
                return True
            return False

        try:
            until(listens)
        finally:
            os.close(fd)
        return Peer(sock)


StartHelper = Callable[..., Helper]
"""What the fixture of this name gives: options in, a running helper out."""


def reaped(pid: int) -> tuple[int, int] | None:
    launch.forget(pid)  # its status is wanted here
    result = os.waitpid(pid, os.WNOHANG)
    return result if result[0] else None


# ------------------------------------------------------------------------- processes
def until(condition: Callable[[], T | None]) -> T:
    """Return what a condition gives once it is true."""
    deadline = time.monotonic() + PATIENCE
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.002)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    return state_of(pid) not in (None, "Z", "X")


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of a process's stat from the third (state) on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def state_of(pid: int) -> str | None:
    fields = stat_fields(pid)
    return fields[0] if fields else None


def parent_of(pid: int) -> int:
    fields = stat_fields(pid)
    assert fields
    return int(fields[1])


def children_of(pid: int) -> list[int]:
    """Return a process's children, by looking at all processes."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = stat_fields(int(name))
            if fields and int(fields[1]) == pid:
                found.append(int(name))
    return found


# ------------------------------------------------------------------------------ pipes
class End:
    """One end of a pipe, which can be closed more than once."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __call__(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextlib.contextmanager
def open_pipe() -> Iterator[tuple[End, End]]:
    ends = tuple(map(End, os.pipe()))
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            end.close()


def read_all(fd: int) -> bytes:
    """Read to the end, failing if it does not come."""
    pieces: list[bytes] = []
    while True:
        ready, _, _ = select.select([fd], [], [], PATIENCE)
        assert ready, "somebody keeps the other end open"
        piece = os.read(fd, 65536)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
