"""A helper that is sent nonsense stays up, leaks nothing, and goes on serving others."""

from __future__ import annotations

import errno
import os
import random
import socket
import struct
import time
from pathlib import Path

import pytest
from helper_peer import Ended, Helper, Peer, StartHelper, open_pipe, parent_of, read_all, until

from sandlot.helper.protocol import (
    HEADER,
    MAX_FRAME,
    START_BODY,
    FrameType,
    StartFlag,
    pack_frame,
    pack_start,
    unpack_text,
)


@pytest.fixture
def listening(start_helper: StartHelper, tmp_path: Path) -> Helper:
    """A helper that takes further connections, which may then misbehave."""
    helper = start_helper("--dir", str(tmp_path), "--listen", "socket")
    helper.hello()
    return helper


@pytest.fixture
def guest(listening: Helper, tmp_path: Path) -> Peer:
    peer = listening.connect(tmp_path)
    peer.hello()
    return peer


def still_serves(helper: Helper) -> bool:
    return helper.output("echo", "on") == b"on\n"


# -------------------------------------------------------------------------------- framing
def test_a_frame_may_come_byte_by_byte(running: Helper) -> None:
    frame = pack_frame(FrameType.START, 7, pack_start("", ["sh", "-c", "exit 6"], []))
    for byte in frame:
        running.send_raw(bytes([byte]))
    running.started(7)
    assert os.waitstatus_to_exitcode(running.exited(7).status) == 6


def test_descriptors_come_with_the_first_byte_of_a_frame_that_comes_in_pieces(
    running: Helper,
) -> None:
    body = pack_start("", ["echo", "x" * 100_000], [], fds=3)
    frame = pack_frame(FrameType.START, 7, body)
    with open_pipe() as (read_end, write_end):
        running.send_raw(frame[:1], (0, write_end(), write_end()))
        write_end.close()
        for start in range(1, len(frame), 1000):
            running.send_raw(frame[start : start + 1000])
        assert read_all(read_end()) == b"x" * 100_000 + b"\n"


def test_many_frames_may_come_at_once(running: Helper) -> None:
    frames = [
        pack_frame(FrameType.START, number, pack_start("", ["sh", "-c", f"exit {number}"], []))
        for number in range(1, 31)
    ]
    running.send_raw(b"".join(frames))
    for number in range(1, 31):
        assert os.waitstatus_to_exitcode(running.exited(number).status) == number


@pytest.mark.parametrize("length", [0, 1, 4, MAX_FRAME + 1, 1 << 31, 0xFFFFFFFF])
def test_an_impossible_length_ends_the_connection_and_nothing_else(
    listening: Helper, guest: Peer, length: int
) -> None:
    guest.send_raw(struct.pack("<IBI", length, FrameType.LIST, 1) + b"x" * 100)
    frame = guest.receive()
    assert (frame.kind, frame.request_id) == (FrameType.ERROR, 0)
    assert unpack_text(frame.body)[0] == errno.EMSGSIZE
    assert guest.is_ended()
    assert still_serves(listening)


def test_a_frame_of_the_largest_size_is_taken(running: Helper) -> None:
    body = b"x" * (MAX_FRAME - 5)
    running.send_raw(HEADER.pack(MAX_FRAME, 0x7F, 9) + body)
    assert running.error(9) == errno.ENOSYS
    assert still_serves(running)


@pytest.mark.parametrize("kind", [0, FrameType.INPUT, 0x0B, 0x7F, *range(0x80, 0x8B), 0xFF])
def test_an_unknown_type_is_told_and_ignored(running: Helper, kind: int) -> None:
    assert running.error(running.send(kind, b"whatever")) == errno.ENOSYS
    assert still_serves(running)


@pytest.mark.parametrize(
    "kind",
    [
        FrameType.SIGNAL,
        FrameType.KILL,
        FrameType.SHUTDOWN,
        FrameType.LIFETIME,
        FrameType.KEEP,
        FrameType.LIST,
        FrameType.WATCH,
        FrameType.OWN,
    ],
)
@pytest.mark.parametrize("size", [0, 1, 2, 5, 11, 13, 1000])
def test_a_body_of_another_size_is_refused(running: Helper, kind: FrameType, size: int) -> None:
    right = {FrameType.KEEP: 1, FrameType.SHUTDOWN: 0, FrameType.LIST: 0, FrameType.OWN: 0}
    if right.get(kind) == size:
        return
    assert running.error(running.send(kind, b"\0" * size)) == errno.EBADMSG
    assert still_serves(running)


def start_body(flags: int, fds: int, argc: int, envc: int, strings: bytes) -> bytes:
    return START_BODY.pack(flags, fds, argc, envc) + strings


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0" * 8,
        b"\0" * 15,
        start_body(0, 0, 0, 0, b""),
        start_body(0, 0, 1, 0, b"\0true"),
        start_body(0, 0, 1, 0, b"\0"),
        start_body(0, 0, 2, 0, b"\0true\0"),
        start_body(0, 0, 1, 1, b"\0true\0"),
        start_body(0, 0, 1, 0, b"\0true\0more\0"),
        start_body(0, 0, 0xFFFFFFFF, 1, b"\0true\0"),
        start_body(0, 0, 0xFFFFFFFF, 0xFFFFFFFF, b"\0"),
        start_body(0, 0, 0, 0xFFFFFFFF, b"\0true\0"),
        start_body(0, 1, 1, 0, b"\0true\0"),
        start_body(0, 2, 1, 0, b"\0true\0"),
        start_body(0, 4, 1, 0, b"\0true\0"),
        start_body(0, 0xFFFFFFFF, 1, 0, b"\0true\0"),
        start_body(0, 0, 1, 1, b"\0true\0\0"),
        start_body(0, 0, 1, 1, b"\0true\0=x\0"),
        start_body(0, 0, 1, 2, b"\0true\0A=1\0=\0"),
    ],
)
def test_a_malformed_start_is_refused(running: Helper, body: bytes) -> None:
    assert running.error(running.send(FrameType.START, body)) == errno.EBADMSG
    assert still_serves(running)


def test_an_id_that_is_in_use_or_0_is_refused_and_its_command_lives_on(running: Helper) -> None:
    request_id = running.start("sleep", "60")
    pid = running.started(request_id)
    running.send(FrameType.START, pack_start("", ["true"], []), request_id=request_id)
    assert running.error(request_id) == errno.EEXIST
    running.send(FrameType.WATCH, struct.pack("<I", pid), request_id=request_id)
    assert running.error(request_id) == errno.EEXIST
    running.send(FrameType.START, pack_start("", ["true"], []), request_id=0)
    assert running.error(0) == errno.EEXIST
    assert [command.pid for command in running.listing()] == [pid]


def test_an_id_may_be_used_again_once_it_is_free(running: Helper) -> None:
    for code in range(5):
        body = pack_start("", ["sh", "-c", f"exit {code}"], [])
        running.send(FrameType.START, body, request_id=77)
        assert os.waitstatus_to_exitcode(running.exited(77).status) == code
        running.gone(77)


@pytest.mark.parametrize("kind", [FrameType.SIGNAL, FrameType.KILL])
def test_a_target_that_is_none_is_told_as_such(running: Helper, kind: FrameType) -> None:
    body = struct.pack("<III", 12345, 9, 0)[: 12 if kind == FrameType.SIGNAL else 4]
    assert running.error(running.send(kind, body)) == errno.ESRCH


# ---------------------------------------------------------------------------- descriptors
def test_descriptors_that_a_start_counts_on_and_does_not_get_are_an_error(
    running: Helper,
) -> None:
    request_id = running.send(FrameType.START, pack_start("", ["true"], [], fds=3))
    failed = running.failed(request_id)
    assert (failed.errno, failed.stage) == (errno.EBADF, 1)
    with open_pipe() as (read_end, write_end):
        body = pack_start("", ["true"], [], fds=3)
        request_id = running.send(FrameType.START, body, fds=[write_end()])
        write_end.close()
        assert running.failed(request_id).errno == errno.EBADF
        assert read_all(read_end()) == b""


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (FrameType.LIST, b""),
        (FrameType.LIST, b"wrong size"),
        (0x7F, b""),
        (FrameType.START, pack_start("", ["true"], [])),
        (FrameType.START, pack_start("", ["nope"], [], fds=3)),
        (FrameType.START, b"malformed"),
        (FrameType.START, start_body(0, 3, 5, 5, b"\0")),
        (FrameType.START, pack_start("", ["true"], [], fds=3, flags=StartFlag.PTY)),
    ],
)
def test_descriptors_that_nobody_takes_are_closed(running: Helper, kind: int, body: bytes) -> None:
    with open_pipe() as (read_end, write_end):
        running.send(kind, body, fds=[write_end(), write_end(), write_end()])
        write_end.close()
        assert read_all(read_end()) == b""
    assert still_serves(running)


def test_surplus_descriptors_are_not_taken_by_the_next_command(running: Helper) -> None:
    with open_pipe() as (read_end, write_end):
        running.answer(running.send(FrameType.LIST, fds=[write_end()] * 3))
        request_id = running.send(FrameType.START, pack_start("", ["echo"], [], fds=3))
        assert running.failed(request_id).errno == errno.EBADF
        write_end.close()
        assert read_all(read_end()) == b""


def test_a_client_that_vanishes_in_the_middle_of_a_frame_leaves_nothing(
    listening: Helper, tmp_path: Path
) -> None:
    frame = pack_frame(FrameType.START, 1, pack_start("", ["echo", "x"], [], fds=3))
    for size in (1, 4, 8, 9, 12, len(frame) - 1):
        guest = listening.connect(tmp_path)
        with open_pipe() as (read_end, write_end):
            guest.send_raw(frame[:size], [write_end()] * 3)
            write_end.close()
            guest.sock.close()
            assert read_all(read_end()) == b""
    assert still_serves(listening)


@pytest.mark.parametrize("count", [17, 100, 253])
def test_too_many_descriptors_end_the_connection(
    listening: Helper, guest: Peer, count: int
) -> None:
    with open_pipe() as (read_end, write_end):
        guest.send_raw(b"\x20", [write_end()] * count)
        write_end.close()
        assert guest.is_ended()
        assert read_all(read_end()) == b""
    assert still_serves(listening)


def send_for_ever(guest: Peer, fd: int) -> None:
    for _ in range(500):
        guest.send_raw(b"x", [fd] * 3)
        time.sleep(0.001)


def test_descriptors_that_pile_up_behind_a_frame_that_never_ends_are_bounded(
    listening: Helper, guest: Peer
) -> None:
    guest.send_raw(struct.pack("<I", 1000))
    with open_pipe() as (read_end, write_end):
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send_for_ever(guest, write_end())
        write_end.close()
        assert read_all(read_end()) == b""
    assert still_serves(listening)


# ----------------------------------------------------------------------- bad listeners
def ask_for_ever(guest: Peer) -> None:
    while True:  # each answer is some 4 kB
        guest.send(FrameType.LIST)


def test_a_client_that_never_reads_costs_little_and_hurts_nobody(
    listening: Helper, guest: Peer
) -> None:
    wide = listening.start("sh", "-c", "sleep 60", "x" * 4000)
    listening.started(wide)
    guest.sock.settimeout(0.3)
    with pytest.raises(TimeoutError):
        ask_for_ever(guest)
    memory = int(Path(f"/proc/{listening.pid}/statm").read_text().split()[1]) * 4096
    assert memory < 64 << 20
    assert still_serves(listening)
    guest.sock.settimeout(30)
    guest.answer(1, FrameType.LISTING)  # and one that reads again is served again


def test_a_client_that_reads_again_gets_all_its_answers(running: Helper) -> None:
    filler = running.start("sh", "-c", "sleep 60", "x" * 4000)
    running.started(filler)
    ids = range(1000, 3000)  # 8 MB of answers, more than is ever queued, in one write
    running.send_raw(b"".join(pack_frame(FrameType.LIST, number) for number in ids))
    for number in ids:
        assert running.answer(number).kind is FrameType.LISTING


def test_commands_of_a_client_that_is_gone_run_on(listening: Helper, guest: Peer) -> None:
    request_id = guest.start("sleep", "60")
    pid = guest.started(request_id)
    guest.sock.close()
    until(lambda: [command.request_id for command in listening.listing()] == [0])
    assert parent_of(pid) > 0


# ----------------------------------------------------------------------------- nonsense
@pytest.mark.parametrize("seed", range(6))
def test_random_bytes_do_no_harm(listening: Helper, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    types = [*range(0x00, 0x0C), *range(0x80, 0x8C)]
    types.remove(FrameType.SHUTDOWN)
    types.remove(FrameType.LIFETIME)
    types.remove(FrameType.OWN)
    for _ in range(15):
        peer = listening.connect(tmp_path)
        try:
            for _ in range(chance.randrange(30)):
                body = chance.randbytes(chance.choice([0, 1, 4, 8, 12, 16, 17, 60]))
                if chance.random() < 0.5:  # nearly right, to get further in
                    counts = [chance.choice([0, 0, 1, 2, 3, 5]) for _ in range(4)]
                    strings = chance.choice([b"\0", b"\0true\0", b"\0nope\0A=1\0", b"/\0echo\0\0"])
                    body = START_BODY.pack(*counts) + strings
                frame = pack_frame(chance.choice(types), chance.randrange(4), body)
                cut = chance.random() < 0.05
                fds = [0] * chance.choice([0, 0, 0, 1, 3, 6])
                peer.send_raw(frame[: chance.randrange(1, len(frame))] if cut else frame, fds)
        except (BrokenPipeError, ConnectionResetError):
            pass
        peer.sock.close()
    assert still_serves(listening)
    until(lambda: listening.listing() == [])


def test_nothing_is_leaked_by_all_that(listening: Helper, tmp_path: Path) -> None:
    fds = Path(f"/proc/{listening.pid}/fd")
    if not os.access(fds, os.R_OK):
        pytest.skip("only root may look into a helper")
    assert still_serves(listening)
    # The idle supervisors, which it holds a descriptor to, come and go.
    before = until(lambda: len(os.listdir(fds)))
    for _ in range(40):
        peer = listening.connect(tmp_path)
        peer.hello()
        with open_pipe() as (read_end, write_end):
            ends = [read_end(), write_end(), write_end()]
            peer.send(FrameType.LIST, fds=ends)
            peer.send(FrameType.START, pack_start("", ["true"], [], fds=3), fds=ends)
            peer.send(FrameType.START, pack_start("", ["nope"], [], fds=3), fds=ends)
            peer.send_raw(b"\x50", ends)
        peer.sock.close()
    until(lambda: listening.listing() == [])
    until(lambda: len(os.listdir(fds)) <= before + 4)


def test_another_user_is_turned_away(listening: Helper, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can become another user")
    socket_path = tmp_path / "socket"
    until(socket_path.exists)
    assert socket_path.stat().st_mode & 0o777 == 0o600
    directory = os.open(tmp_path, os.O_PATH)
    socket_path.chmod(0o666)
    tmp_path.chmod(0o755)
    child = os.fork()
    if not child:
        code = 1
        try:
            os.fchdir(directory)
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(20)
            sock.connect("socket")
            try:
                Peer(sock).receive()
            except Ended:
                code = 0
        finally:
            os._exit(code)
    os.close(directory)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert still_serves(listening)
