"""The helper's frames: constants, and how bodies are packed and unpacked. See PROTOCOL.md."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum, IntFlag
from typing import NamedTuple

VERSION = 1
OWNER_FD = 3
MAX_FRAME = 16 * 1024 * 1024
MAX_WAITING_FDS = 16
HEADER = struct.Struct("<IBI")
"""Length of what follows the length itself, type, request id."""
LENGTH_OVERHEAD = 5
"""What the length counts besides the body."""


class FrameType(IntEnum):
    """What a frame says; from 0x81 on, the helper says it."""

    START = 0x01
    SIGNAL = 0x02
    KILL = 0x03
    SHUTDOWN = 0x04
    LIFETIME = 0x05
    KEEP = 0x06
    LIST = 0x07
    WATCH = 0x08
    OWN = 0x09
    INPUT = 0x0A
    HELLO = 0x81
    STARTED = 0x82
    FAILED = 0x83
    EXITED = 0x84
    GONE = 0x85
    DONE = 0x86
    ERROR = 0x87
    LISTING = 0x88
    WATCHING = 0x89
    OUTPUT = 0x8A
    ENDING = 0x8B


class StartFlag(IntFlag):
    """How a command is started."""

    PTY = 1
    """Descriptor 0 becomes its controlling terminal."""
    QUIET = 2
    """Do not send STARTED."""


class Scope(IntEnum):
    """Whom a signal is for."""

    GROUP = 0
    TREE = 1


class Stage(IntEnum):
    """Where starting a command failed."""

    SETUP = 1
    CHDIR = 2
    EXEC = 3


class CommandState(IntEnum):
    """Where a command is in its life."""

    STARTING = 0
    RUNNING = 1
    LEADER_EXITED = 2
    """The command itself has ended; processes that it started live."""


class Feature(IntFlag):
    """What a helper can do."""

    FDS = 1
    PTY = 2
    NATIVE = 4
    """It is the compiled one."""


class Hello(NamedTuple):
    """The helper is ready."""

    version: int
    pid: int
    features: int


class Exited(NamedTuple):
    """How a command's leader ended."""

    pid: int
    status: int
    """Its wait status, as from `os.wait4`."""
    user_us: int
    system_us: int
    peak_kib: int


class Listed(NamedTuple):
    """A command in a listing."""

    request_id: int
    """Its request id on the connection that asked; 0 if it has none."""
    pid: int
    state: CommandState
    start_ms: int
    """When it was started, in milliseconds since the epoch."""
    argv: tuple[bytes, ...]
    """Its arguments, as far as they fit into 4096 bytes."""


START_BODY = struct.Struct("<IIII")
SIGNAL_BODY = struct.Struct("<III")
U8 = struct.Struct("<B")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
PAIR = struct.Struct("<II")
HELLO_BODY = struct.Struct("<III")
EXITED_BODY = struct.Struct("<IIQQQ")
LISTED_HEAD = struct.Struct("<IIIQI")
MAX_STRINGS = MAX_FRAME - LENGTH_OVERHEAD - START_BODY.size
"""What a START has room for: working directory, arguments, environment."""


def pack_frame(kind: int, request_id: int, body: bytes = b"") -> bytes:
    """Return a whole frame."""
    return HEADER.pack(LENGTH_OVERHEAD + len(body), kind, request_id) + body


def pack_start(
    cwd: str, argv: Sequence[str], env: Sequence[str], *, flags: int = 0, fds: int = 0
) -> bytes:
    """Return the body of a START. Bytes that are not UTF-8 are given as lone surrogates.

    Raises:
        ValueError: If a string holds a NUL or can't be encoded, or the whole is too large.
    """
    strings = "\0".join((cwd, *argv, *env, "")).encode("utf-8", "surrogateescape")
    if strings.count(0) != 1 + len(argv) + len(env):
        raise ValueError("a NUL in the working directory, an argument or a variable")
    if len(strings) > MAX_STRINGS:
        raise ValueError("the arguments and variables are larger than 16 MiB")
    return START_BODY.pack(flags, fds, len(argv), len(env)) + strings


def pack_text(number: int, text: str) -> bytes:
    """Return the body of a DONE or ERROR."""
    return U32.pack(number) + text.encode()


def unpack_text(body: bytes) -> tuple[int, str]:
    """Return the number and the text of a DONE or ERROR."""
    return U32.unpack_from(body)[0], body[4:].decode("utf-8", "replace")


def pack_listing(commands: Iterable[Listed]) -> bytes:
    """Return the body of a LISTING."""
    entries: list[bytes] = []
    for command in commands:
        argv = b"".join(argument + b"\0" for argument in command.argv)
        head = LISTED_HEAD.pack(
            command.request_id, command.pid, command.state, command.start_ms, len(argv)
        )
        entries.append(head + argv)
    return U32.pack(len(entries)) + b"".join(entries)


def unpack_listing(body: bytes) -> list[Listed]:
    """Return the commands of a LISTING."""
    commands: list[Listed] = []
    offset = U32.size
    for _ in range(U32.unpack_from(body)[0]):
        request_id, pid, state, start_ms, size = LISTED_HEAD.unpack_from(body, offset)
        offset += LISTED_HEAD.size
        argv = tuple(body[offset : offset + size].removesuffix(b"\0").split(b"\0"))
        commands.append(
            Listed(request_id, pid, CommandState(state), start_ms, argv if size else ())
        )
        offset += size
    return commands
