"""Nothing survives: not what hides, not the fall of a supervisor or of the helper itself."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helper_peer import (
    Helper,
    StartHelper,
    children_of,
    is_alive,
    open_pipe,
    parent_of,
    state_of,
    until,
)

from sandlot.helper.protocol import U64, FrameType

TREE = Path(__file__).with_name("hostile_tree.py")


class Tree:
    """The processes of one hostile tree."""

    def __init__(self, directory: Path, mark: str) -> None:
        self.directory = directory
        self.mark = mark
        self.request_id = 0

    def start(self, helper: Helper, *more: str) -> int:
        """Start it under a helper, and return its leader's pid when all of it runs."""
        with open_pipe() as (read_end, write_end), open(os.devnull) as null:
            self.request_id = helper.start(
                sys.executable,
                "-I",
                "-S",
                str(TREE),
                str(self.directory),
                self.mark,
                *more,
                fds=(null.fileno(), write_end(), 2),
            )
            pid = helper.started(self.request_id)
            write_end.close()
            assert os.read(read_end(), 6) == b"ready\n"
        until(lambda: len(self.survivors()) >= 6 and (self.directory / "heartbeat").exists())
        return pid

    def survivors(self) -> list[int]:
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                with contextlib.suppress(OSError):
                    if self.mark.encode() in Path("/proc", name, "cmdline").read_bytes():
                        found.append(int(name))
        return found

    def beats(self) -> bool:
        """Whether the process that changes its pid is still at work."""
        heartbeat = self.directory / "heartbeat"
        before = heartbeat.stat().st_mtime_ns
        time.sleep(0.1)
        return heartbeat.stat().st_mtime_ns != before

    def is_dead(self) -> bool:
        return not self.survivors() and not self.beats()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    one = Tree(tmp_path, f"tree-{os.urandom(6).hex()}")
    yield one
    for _ in range(1000):
        if not (left := one.survivors()):
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def kill_command(helper: Helper, tree: Tree) -> None:
    helper.done(helper.kill(tree.request_id))
    assert os.waitstatus_to_exitcode(helper.exited(tree.request_id).status) == -signal.SIGKILL
    helper.gone(tree.request_id)


def shut_down(helper: Helper, tree: Tree) -> None:
    assert helper.done(helper.send(FrameType.SHUTDOWN)) == (0, "")
    helper.exited(tree.request_id)
    helper.gone(tree.request_id)
    assert helper.is_ended()


def hang_up(helper: Helper, tree: Tree) -> None:
    helper.sock.close()
    assert helper.wait() == 0


def end_lifetime(helper: Helper, tree: Tree) -> None:
    helper.done(helper.send(FrameType.LIFETIME, U64.pack(20)))
    assert helper.is_ended()


def terminate_helper(helper: Helper, tree: Tree) -> None:
    os.kill(helper.pid, signal.SIGTERM)
    assert helper.is_ended()


def kill_helper(helper: Helper, tree: Tree) -> None:
    os.kill(helper.pid, signal.SIGKILL)
    assert helper.is_ended()
    until(tree.is_dead)  # looking once can miss the one that changes its pid


WAYS: list[Callable[[Helper, Tree], None]] = [
    kill_command,
    shut_down,
    hang_up,
    end_lifetime,
    terminate_helper,
    kill_helper,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_hostile_tree_is_killed_to_the_last_process(
    running: Helper, tree: Tree, way: Callable[[Helper, Tree], None]
) -> None:
    tree.start(running)
    way(running, tree)
    assert tree.is_dead()


@pytest.mark.parametrize("way", [shut_down, kill_helper], ids=lambda way: way.__name__)
def test_what_a_finished_command_left_behind_is_killed_too(
    running: Helper, tree: Tree, way: Callable[[Helper, Tree], None]
) -> None:
    tree.start(running, "leave")
    assert os.waitstatus_to_exitcode(running.exited(tree.request_id).status) == 7
    assert tree.beats()
    if way is shut_down:
        assert running.done(running.send(FrameType.SHUTDOWN)) == (0, "")
        running.gone(tree.request_id)
    else:
        way(running, tree)
    assert tree.is_dead()


def test_what_a_finished_command_left_behind_can_be_killed_alone(
    running: Helper, tree: Tree
) -> None:
    tree.start(running, "leave")
    running.exited(tree.request_id)
    running.done(running.kill(tree.request_id))
    running.gone(tree.request_id)
    assert tree.is_dead()
    assert running.output("echo", "on") == b"on\n"


def test_killing_one_command_leaves_the_others_alone(
    running: Helper, tree: Tree, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Tree(tmp_path / "other", f"other-{os.urandom(6).hex()}")
    tree.start(running)
    other.start(running)
    try:
        kill_command(running, tree)
        assert tree.is_dead()
        assert other.beats()
        assert len(other.survivors()) >= 6
    finally:
        kill_command(running, other)
    assert other.is_dead()


def test_a_wide_and_deep_tree_of_forking_processes_is_killed(
    running: Helper, tmp_path: Path
) -> None:
    # Doubles five times; then each leaf goes on being replaced by a new process.
    mark = f"bomb-{os.urandom(6).hex()}"
    script = (
        "import os, time\n"
        "for _ in range(5): os.fork()\n"
        "while True:\n"
        "    time.sleep(.03)\n"
        "    if os.fork(): os._exit(0)\n"
    )
    request_id = running.start(sys.executable, "-I", "-S", "-c", script, mark)
    running.started(request_id)
    bomb = Tree(tmp_path, mark)
    until(lambda: len(bomb.survivors()) > 25)
    running.done(running.kill(request_id))
    running.gone(request_id)
    assert bomb.survivors() == []


# ------------------------------------------------------------- attacks on the supervisor
def test_a_command_that_kills_its_supervisor_is_killed_and_that_is_told(
    running: Helper, tree: Tree
) -> None:
    pid = tree.start(running)
    supervisor = parent_of(pid)
    assert supervisor != running.pid
    bystander = running.start("sleep", "60")
    running.started(bystander)
    os.kill(supervisor, signal.SIGKILL)
    exited = running.exited(tree.request_id)
    assert (exited.pid, os.waitstatus_to_exitcode(exited.status)) == (pid, -signal.SIGKILL)
    assert exited.peak_kib > 0  # it was reaped, not just given up
    running.gone(tree.request_id)
    assert tree.is_dead()
    assert [command.request_id for command in running.listing()] == [bystander]


def test_a_command_that_kills_its_parent_first_thing_does_not_stay(running: Helper) -> None:
    for _ in range(5):
        request_id = running.start("sh", "-c", "kill -9 $PPID; exec sleep 60")
        frame = running.answer(request_id, FrameType.EXITED, FrameType.FAILED)
        if frame.kind is FrameType.EXITED:
            running.gone(request_id)
        else:  # it was so quick that its supervisor could not even tell that it runs
            assert frame.body[0] == errno.EOWNERDEAD
    assert running.listing() == []
    assert running.output("echo", "on") == b"on\n"


def test_the_end_of_a_leader_whose_supervisor_could_not_tell_it_is_made_up(
    running: Helper,
) -> None:
    # A stopped supervisor neither reaps nor reports; then it is killed.
    request_id = running.start("sleep", "60")
    pid = running.started(request_id)
    supervisor = parent_of(pid)
    os.kill(supervisor, signal.SIGSTOP)
    until(lambda: state_of(supervisor) == "T")
    os.kill(pid, signal.SIGTERM)
    until(lambda: state_of(pid) == "Z")
    os.kill(supervisor, signal.SIGKILL)
    exited = running.exited(request_id)
    assert exited.pid == pid
    assert os.waitstatus_to_exitcode(exited.status) in (-signal.SIGTERM, -signal.SIGKILL)
    running.gone(request_id)


def test_stopping_the_supervisor_does_not_protect_a_command(running: Helper, tree: Tree) -> None:
    supervisor = parent_of(tree.start(running))
    os.kill(supervisor, signal.SIGSTOP)
    until(lambda: state_of(supervisor) == "T")
    kill_command(running, tree)
    assert tree.is_dead()


def test_catchable_signals_do_nothing_to_a_supervisor(running: Helper) -> None:
    request_id = running.start("sleep", "60")
    pid = running.started(request_id)
    supervisor = parent_of(pid)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
        os.kill(supervisor, number)
        os.kill(supervisor, number)
    assert running.done(running.signal(request_id, signal.SIGTERM, 0))[0] == 1
    assert os.waitstatus_to_exitcode(running.exited(request_id).status) == -signal.SIGTERM
    running.gone(request_id)


def test_catchable_signals_but_sigterm_do_nothing_to_the_helper(running: Helper) -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD, signal.SIGPIPE):
        os.kill(running.pid, number)
    assert running.output("echo", "on") == b"on\n"


def send_signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # not all of them stay
        os.kill(pid, number)


def test_idle_supervisors_that_are_killed_are_replaced(running: Helper) -> None:
    for _ in range(3):
        assert running.output("echo", "on") == b"on\n"
        for pid in until(lambda: children_of(running.pid)):
            send_signal(pid, signal.SIGKILL)
            until(lambda pid=pid: not is_alive(pid))  # type: ignore[misc]
    assert running.output("echo", "on") == b"on\n"


def test_an_idle_supervisor_that_was_stopped_takes_the_next_command(running: Helper) -> None:
    assert running.output("echo", "on") == b"on\n"
    for pid in until(lambda: children_of(running.pid)):
        send_signal(pid, signal.SIGSTOP)
    assert running.output("echo", "on") == b"on\n"


def test_a_command_is_not_lost_when_many_end_and_are_killed_at_once(running: Helper) -> None:
    # A supervisor that has just become idle may be hit by the KILL of the command before.
    for _ in range(60):
        request_id = running.start("true")
        running.send(FrameType.KILL, request_id.to_bytes(4, "little"))
        following = running.start("sh", "-c", "exit 9")
        assert os.waitstatus_to_exitcode(running.exited(following).status) == 9


def test_helpers_supervisors_die_with_it_and_release_everything(
    start_helper: StartHelper, tmp_path: Path
) -> None:
    helper = start_helper("--dir", str(tmp_path), "--lock", "lock")
    helper.hello()
    leader = helper.started(helper.start("sleep", "60"))
    supervisor = parent_of(leader)
    others = children_of(helper.pid)
    os.kill(helper.pid, signal.SIGKILL)
    helper.wait()
    until(lambda: not any(map(is_alive, [leader, supervisor, *others])))
