"""The asyncio client: against both helpers, and against a peer that talks nonsense."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from helper_peer import (
    BASE_ENV,
    PATIENCE,
    Peer,
    is_alive,
    open_pipe,
    read_all,
    state_of,
    until,
)

from sandlot.helper import command, launch
from sandlot.helper.client import HelperConnection, HelperError, Scope
from sandlot.helper.protocol import (
    EXITED_BODY,
    HELLO_BODY,
    PAIR,
    U32,
    CommandState,
    FrameType,
    Stage,
    pack_frame,
)


@asynccontextmanager
async def connected(argv: list[str], *options: str) -> AsyncIterator[HelperConnection]:
    helper = await HelperConnection.spawn(options, env=BASE_ENV, argv=argv)
    try:
        async with asyncio.timeout(PATIENCE):
            yield helper
    finally:
        helper.close()
        assert helper.process_id
        await end_of(helper.process_id)


async def end_of(pid: int) -> None:
    """Wait until a process is gone, and reaped if it is a child."""
    await asyncio.to_thread(until, lambda: state_of(pid) is None)


def run_client(
    argv: list[str], body: Callable[[HelperConnection], Coroutine[Any, Any, None]]
) -> None:
    async def main() -> None:
        async with connected(argv) as helper:
            await body(helper)

    asyncio.run(main())


# --------------------------------------------------------------------------- commands
async def test_a_command_is_started_exits_and_is_gone(helper_argv: list[str]) -> None:
    async with connected(helper_argv) as helper:
        with open_pipe() as (read_end, write_end):
            one = await helper.start(
                ["sh", "-c", 'echo "$A $B"; pwd; exit 3'],
                cwd="/",
                env={"A": "a", "B": None, "LANG": None},
                fds=(0, write_end(), 2),
            )
            write_end.close()
            exited = await one.exited()
            assert (exited.pid, os.waitstatus_to_exitcode(exited.status)) == (one.pid, 3)
            assert await one.gone()
            assert one.is_gone
            assert read_all(read_end()) == b"a \n/\n"
        assert await one.exited() == exited  # asked again, after all is over
        assert await one.started() == one.pid


async def test_a_command_that_does_not_start_raises_and_is_gone(helper_argv: list[str]) -> None:
    async with connected(helper_argv) as helper:
        with pytest.raises(HelperError) as caught:
            await helper.start(["true"], cwd="/no/such")
        assert (caught.value.errno, caught.value.stage) == (errno.ENOENT, Stage.CHDIR)
        quiet = helper.start_nowait(["nope"])
        with pytest.raises(HelperError) as caught:
            await quiet.exited()
        assert (caught.value.errno, caught.value.stage) == (errno.ENOENT, Stage.EXEC)
        assert await quiet.gone()
        with pytest.raises(HelperError):
            await quiet.started()


async def test_a_quiet_command_tells_its_pid_at_the_end(helper_argv: list[str]) -> None:
    async with connected(helper_argv) as helper:
        one = helper.start_nowait(["true"])
        assert one.pid is None
        exited = await one.exited()
        assert one.pid == exited.pid


async def test_kill_returns_when_all_is_gone(helper_argv: list[str]) -> None:
    async with connected(helper_argv) as helper:
        with open_pipe() as (read_end, write_end):
            script = "(setsid sleep 60 &); sleep 60"
            one = await helper.start(["sh", "-c", script], fds=(0, write_end(), 2))
            write_end.close()
            await one.kill()
            assert one.is_gone
            assert read_all(read_end()) == b""
        assert os.waitstatus_to_exitcode((await one.exited()).status) == -signal.SIGKILL
        await one.kill()  # once more does no harm


async def test_signals_reach_a_command_even_at_once_and_not_when_it_has_ended(
    helper_argv: list[str],
) -> None:
    async with connected(helper_argv) as helper:
        one = helper.start_nowait(["sleep", "60"])
        assert await one.signal(signal.SIGTERM) == 1
        assert os.waitstatus_to_exitcode((await one.exited()).status) == -signal.SIGTERM
        assert await one.signal(signal.SIGTERM) == 0
        assert await one.signal(signal.SIGTERM, Scope.TREE) == 0
        other = await helper.start(["sleep", "60"])
        with pytest.raises(HelperError) as caught:
            await other.signal(1000)
        assert caught.value.errno == errno.EINVAL


async def test_many_commands_with_large_environments_never_mix(helper_argv: list[str]) -> None:
    async with connected(helper_argv) as helper:

        async def run(number: int) -> int:
            text = str(number % 10) * 90_000
            script = f'test "$A$B" = "$1$1" && exit {number}'
            argv = ["sh", "-c", script, "x", text]
            one = helper.start_nowait(argv, env={"A": text, "B": text})
            return os.waitstatus_to_exitcode((await one.exited()).status)

        codes = await asyncio.gather(*map(run, range(1, 41)))
        assert codes == list(range(1, 41))


async def test_frames_wait_for_a_helper_that_is_slow_with_copies_of_their_descriptors(
    helper_argv: list[str],
) -> None:
    async with connected(helper_argv) as helper:
        assert helper.process_id
        os.kill(helper.process_id, signal.SIGSTOP)
        outputs = []
        with open_pipe() as (read_end, write_end):
            for number in range(30):
                argv = ["sh", "-c", f"echo {number}", "x" * 100_000]
                outputs.append(helper.start_nowait(argv, fds=(0, write_end(), 2)))
            write_end.close()
            os.kill(helper.process_id, signal.SIGCONT)
            for one in outputs:
                assert (await one.exited()).status == 0
            await asyncio.gather(*(one.gone() for one in outputs))
            printed = await asyncio.to_thread(read_all, read_end())
        assert sorted(map(int, printed.split())) == list(range(30))


@pytest.mark.parametrize(
    ("argv", "cwd", "env"),
    [
        (["a\0b"], "", {}),
        (["true"], "a\0b", {}),
        (["true"], "", {"A\0": "x"}),
        (["true"], "", {"A": "\0"}),
        (["true"], "", {"": "x"}),
        (["true"], "", {"A=B": "x"}),
        (["true"], "", {"A=B": None}),
        (["x" * 17_000_000], "", {}),
    ],
)
def test_what_would_mean_something_else_is_refused_before_it_is_sent(
    native_helper: Path, argv: list[str], cwd: str, env: dict[str, str | None]
) -> None:
    async def body(helper: HelperConnection) -> None:
        with pytest.raises(ValueError):  # noqa: PT011  (each has words of its own)
            helper.start_nowait(argv, cwd=cwd, env=env)
        assert await helper.list() == []

    run_client([str(native_helper)], body)


# ----------------------------------------------------------------------- cancellation
async def test_cancelling_a_start_kills_the_command(helper_argv: list[str]) -> None:
    async with connected(helper_argv) as helper:
        assert helper.process_id
        os.kill(helper.process_id, signal.SIGSTOP)
        start = asyncio.create_task(helper.start(["sleep", "60"]))
        await asyncio.sleep(0.01)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        os.kill(helper.process_id, signal.SIGCONT)
        while await helper.list():  # noqa: ASYNC110  (nobody would set an event)
            await asyncio.sleep(0.005)


async def test_giving_up_on_one_wait_does_not_end_another(helper_argv: list[str]) -> None:
    async with connected(helper_argv) as helper:
        one = await helper.start(["sleep", "60"])

        async def wait() -> int:
            return (await one.exited()).status

        first, second = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await one.signal(signal.SIGKILL)
        assert await second == signal.SIGKILL


# ------------------------------------------------------------------------ other requests
async def test_a_second_connection_finds_watches_and_shuts_down(
    helper_argv: list[str], tmp_path: Path
) -> None:
    deep = tmp_path.joinpath(*["d" * 90] * 4)
    deep.mkdir(parents=True)
    async with connected(helper_argv, "--dir", str(deep), "--listen", "s") as helper:
        await helper.keep(True)
        await helper.lifetime(60_000)
        one = await helper.start(["sleep", "60"])
        guest = await HelperConnection.connect(str(deep), "s")
        (listed,) = await guest.list()
        assert (listed.pid, listed.state) == (one.pid, CommandState.RUNNING)
        watched = await guest.watch(listed.pid)
        assert watched.pid == one.pid
        with pytest.raises(HelperError) as caught:
            await guest.watch(1)
        assert caught.value.errno == errno.ESRCH
        await watched.kill()
        assert await one.gone()
        await guest.own()
        assert await guest.shutdown() == (0, "")
        await helper.closed


async def test_shutdown_kills_removes_and_reaps(helper_argv: list[str], tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    async with connected(helper_argv, "--root", str(work), "--remove", str(work)) as helper:
        one = await helper.start(["sleep", "60"])
        assert one.pid
        assert await helper.shutdown(patience=PATIENCE) == (0, "")
        assert os.waitstatus_to_exitcode((await one.exited()).status) == -signal.SIGKILL
        assert not work.exists()
        assert helper.process_id
        assert state_of(helper.process_id) is None  # not even a zombie
        with pytest.raises(ConnectionResetError):
            helper.start_nowait(["true"])


async def test_a_shutdown_that_takes_too_long_ends_in_a_kill(helper_argv: list[str]) -> None:
    async with connected(helper_argv) as helper:
        one = await helper.start(["sleep", "60"])
        assert one.pid
        assert helper.process_id
        os.kill(helper.process_id, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            await helper.shutdown(patience=0.05)
        await helper.closed
        await end_of(one.pid)


# ------------------------------------------------------------------------ broken helpers
async def test_everything_pending_fails_when_the_helper_dies(helper_argv: list[str]) -> None:
    async with connected(helper_argv) as helper:
        one = await helper.start(["sleep", "60"])
        assert helper.process_id
        os.kill(helper.process_id, signal.SIGSTOP)
        waits: list[asyncio.Future[Any]] = [
            one.exited(),
            one.gone(),
            helper.start_nowait(["true"]).started(),
            helper.lifetime(1000),
            asyncio.ensure_future(helper.list()),
            asyncio.ensure_future(one.signal(15)),
            asyncio.ensure_future(helper.shutdown()),
        ]
        await asyncio.sleep(0.01)
        os.kill(helper.process_id, signal.SIGKILL)
        results = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionResetError] * len(waits)
        with pytest.raises(ConnectionResetError):
            await one.exited()
        assert not one.is_gone  # nobody knows
        await helper.closed
        assert one.pid
        await end_of(one.pid)


async def test_closing_fails_what_is_pending_and_ends_the_helper(helper_argv: list[str]) -> None:
    async with connected(helper_argv) as helper:
        one = await helper.start(["sleep", "60"])
        pending = one.exited()
        helper.close()
        helper.close()
        with pytest.raises(ConnectionResetError):
            await pending
        assert helper.closed.done()
        assert one.pid
        await end_of(one.pid)


async def test_a_helper_that_does_not_start_says_why(helper_argv: list[str]) -> None:
    with pytest.raises(ConnectionError, match="cannot enter /no/such/dir"):
        await HelperConnection.spawn(["--root", "/no/such/dir"], env=BASE_ENV, argv=helper_argv)
    with pytest.raises(FileNotFoundError):
        await HelperConnection.spawn(env=BASE_ENV, argv=["/no/such/helper"])
    with pytest.raises(ConnectionError, match="did not start"):
        await HelperConnection.spawn(env=BASE_ENV, argv=["true"])


async def test_nobody_listening_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await HelperConnection.connect(str(tmp_path), "socket")
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "socket"))
    dead.close()
    with pytest.raises(ConnectionRefusedError):
        await HelperConnection.connect(str(tmp_path), "socket")


async def test_nothing_is_left_open_by_helpers_that_come_and_go(helper_argv: list[str]) -> None:
    async with connected(helper_argv):
        pass
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        async with connected(helper_argv) as helper:
            await (await helper.start(["true"])).gone()
            await helper.shutdown()
        with pytest.raises(ConnectionError):
            await HelperConnection.spawn(["--root", "/no"], env=BASE_ENV, argv=helper_argv)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_an_event_loop_that_just_ends_leaves_no_helper_and_no_zombie(
    helper_argv: list[str],
) -> None:
    async def main() -> tuple[int, int]:
        helper = await HelperConnection.spawn(env=BASE_ENV, argv=helper_argv)
        one = await helper.start(["sleep", "60"])
        assert one.pid
        assert helper.process_id
        helper.close()
        return helper.process_id, one.pid

    process_id, pid = asyncio.run(main())
    until(lambda: not is_alive(process_id) and not is_alive(pid))
    launch.reap_leftovers()
    assert state_of(process_id) is None


async def test_it_works_in_a_thread_that_is_not_the_main_one(helper_argv: list[str]) -> None:
    async def body(helper: HelperConnection) -> None:
        assert (await helper.start_nowait(["true"]).exited()).status == 0
        await helper.shutdown()

    await asyncio.to_thread(run_client, helper_argv, body)


def test_a_forked_child_that_abandons_its_copy_does_not_keep_the_helper(
    native_helper: Path,
) -> None:
    program = """
import asyncio, os, sys
from sandlot.helper.client import HelperConnection

async def main():
    helper = await HelperConnection.spawn(env={"PATH": "/bin:/usr/bin"}, argv=[sys.argv[1]])
    if not os.fork():
        helper.abandon()
        os.close(1)
        os.read(0, 1)  # lives until the test lets it go
        os._exit(0)
    assert (await helper.start_nowait(["true"]).exited()).status == 0
    print(helper.process_id, flush=True)
    os._exit(0)

asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program, str(native_helper)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout
        assert process.stdin
        process_id = int(process.stdout.read())
        until(lambda: not is_alive(process_id))
        process.stdin.close()


# ---------------------------------------------------------------------- a false helper
HELLO = pack_frame(FrameType.HELLO, 0, HELLO_BODY.pack(1, 1, 7))


@asynccontextmanager
async def false_helper(*first: bytes) -> AsyncIterator[tuple[HelperConnection, Peer]]:
    ours, theirs = socket.socketpair()
    peer = Peer(theirs)
    for data in first:
        peer.send_raw(data)
    helper = HelperConnection(ours)
    try:
        async with asyncio.timeout(PATIENCE):
            yield helper, peer
    finally:
        helper.close()
        theirs.close()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\0" * 100,
        b"\xff" * 100,
        pack_frame(0x42, 1),
        pack_frame(FrameType.START, 1),
        pack_frame(FrameType.STARTED, 99, U32.pack(5)),
        pack_frame(FrameType.EXITED, 99, EXITED_BODY.pack(5, 0, 0, 0, 0)),
        pack_frame(FrameType.GONE, 99),
        pack_frame(FrameType.DONE, 99, U32.pack(0)),
        pack_frame(FrameType.STARTED, 1, b""),
        pack_frame(FrameType.STARTED, 1, b"12345"),
        pack_frame(FrameType.EXITED, 1, b"123"),
        pack_frame(FrameType.FAILED, 1, PAIR.pack(2, 77)),
        pack_frame(FrameType.ERROR, 1, b"1"),
        pack_frame(FrameType.LISTING, 1, U32.pack(1 << 31)),
        pack_frame(FrameType.HELLO, 0, HELLO_BODY.pack(2, 1, 7)),
        pack_frame(FrameType.HELLO, 0, b""),
        HELLO[:5],
    ],
)
async def test_a_helper_that_talks_nonsense_is_hung_up_on(nonsense: bytes) -> None:
    async with false_helper(HELLO) as (helper, peer):
        one = helper.start_nowait(["true"])
        exited = one.exited()
        peer.send_raw(nonsense)
        peer.sock.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionResetError):
            await exited
        await helper.closed
        assert peer.is_ended()


async def test_answers_may_come_in_any_pieces() -> None:
    async with false_helper() as (helper, peer):
        one = helper.start_nowait(["true"], quiet=False)
        listing = asyncio.ensure_future(helper.list())
        await asyncio.sleep(0)
        frames = (
            HELLO
            + pack_frame(FrameType.STARTED, 1, U32.pack(5))
            + pack_frame(FrameType.LISTING, 2, U32.pack(0))
            + pack_frame(FrameType.EXITED, 1, EXITED_BODY.pack(5, 256, 1, 2, 3))
            + pack_frame(FrameType.GONE, 1)
        )
        for byte in frames:
            peer.send_raw(bytes([byte]))
            await asyncio.sleep(0)
        assert await one.started() == 5
        assert await listing == []
        assert await one.exited() == (5, 256, 1, 2, 3)
        assert await one.gone()


async def test_what_the_helper_says_at_the_end_is_in_the_error() -> None:
    async with false_helper(HELLO) as (helper, peer):
        pending = helper.start_nowait(["true"]).exited()
        peer.send_raw(pack_frame(FrameType.ERROR, 0, struct.pack("<I", 90) + b"too long"))
        peer.sock.close()
        with pytest.raises(ConnectionResetError, match="too long"):
            await pending


async def test_a_refused_start_is_an_error_of_that_command_only() -> None:
    async with false_helper(HELLO) as (helper, peer):
        one, other = helper.start_nowait(["true"]), helper.start_nowait(["true"])
        peer.send_raw(pack_frame(FrameType.ERROR, 1, struct.pack("<I", errno.EBADMSG) + b"bad"))
        with pytest.raises(HelperError, match="bad"):
            await one.exited()
        peer.send_raw(pack_frame(FrameType.EXITED, 2, EXITED_BODY.pack(5, 0, 0, 0, 0)))
        assert (await other.exited()).status == 0


# ------------------------------------------------------------------- choosing the helper
def test_the_choice_of_the_helper_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLOT_HELPER", "python")
    assert command()[:3] == [sys.executable, "-I", "-S"]
    monkeypatch.setenv("SANDLOT_HELPER", "perl")
    with pytest.raises(ValueError, match="perl"):
        command()


def test_the_compiled_helper_is_taken_if_it_runs_here(
    monkeypatch: pytest.MonkeyPatch, native_helper: Path, tmp_path: Path
) -> None:
    monkeypatch.delenv("SANDLOT_HELPER", raising=False)
    monkeypatch.setattr("sandlot.helper.NATIVE", native_helper)
    assert command() == [str(native_helper)]
    for name, content, mode in (
        ("missing", None, 0),
        ("foreign", b"\x7fELF of another machine", 0o755),
        ("not executable", native_helper.read_bytes(), 0o644),
        ("failing", b"#!/bin/sh\nexit 1\n", 0o755),
    ):
        binary = tmp_path / name
        if content is not None:
            binary.write_bytes(content)
            binary.chmod(mode)
        monkeypatch.setattr("sandlot.helper.NATIVE", binary)
        assert command()[0] == sys.executable, name
        monkeypatch.setenv("SANDLOT_HELPER", "c")
        with pytest.raises(FileNotFoundError, match=name):
            command()
        monkeypatch.delenv("SANDLOT_HELPER")
