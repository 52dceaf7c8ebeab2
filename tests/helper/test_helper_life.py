"""How a helper begins, whom it serves, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helper_peer import Helper, Peer, StartHelper, is_alive, parent_of, until

from sandlot.helper.protocol import (
    EXITED_BODY,
    PAIR,
    U32,
    U64,
    CommandState,
    Feature,
    FrameType,
    pack_frame,
    pack_start,
)

CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def listening(start_helper: StartHelper, tmp_path: Path) -> Helper:
    helper = start_helper("--dir", str(tmp_path), "--listen", "socket", "--lock", "lock")
    helper.hello()
    return helper


def connect(helper: Helper, directory: Path) -> Peer:
    peer = helper.connect(directory)
    peer.hello()
    return peer


# ------------------------------------------------------------------------------ begin
def test_hello_tells_version_pid_and_features(start_helper: StartHelper) -> None:
    helper = start_helper()
    hello = helper.hello()
    assert (hello.version, hello.pid) == (1, helper.pid)
    assert hello.features & Feature.FDS
    assert hello.features & Feature.PTY


def test_it_says_its_version_and_ends(helper_argv: list[str]) -> None:
    done = subprocess.run([*helper_argv, "--version"], capture_output=True, check=True)
    assert done.stdout == b"1\n"


@pytest.mark.parametrize(
    "options",
    [
        ["--nonsense", "x"],
        ["argument"],
        ["--root"],
        ["--umask", "9"],
        ["--umask", "1777"],
        ["--umask", ""],
        ["--umask", "0x1"],
    ],
)
def test_wrong_usage_is_told_with_exit_code_2(
    start_helper: StartHelper, options: list[str]
) -> None:
    helper = start_helper(*options)
    assert helper.is_ended()
    assert helper.wait() == 2
    assert helper.stderr()


@pytest.mark.parametrize(
    "options",
    [
        ["--root", "/no/such/dir"],
        ["--dir", "/no/such/dir"],
        ["--lock", "/no/such/dir/lock"],
        ["--listen", "/no/such/dir/socket"],
        ["--cgroup", "/no/such/cgroup"],
    ],
)
def test_a_start_that_fails_says_why_with_exit_code_1(
    start_helper: StartHelper, options: list[str]
) -> None:
    helper = start_helper(*options)
    assert helper.is_ended()
    assert helper.wait() == 1
    assert "No such file or directory" in helper.stderr()
    assert options[1] in helper.stderr()


def test_descriptor_3_must_be_a_stream_socket(helper_argv: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arrangement in ("3</dev/null", "3<&-"):
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {arrangement}', "sh", *helper_argv],
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2
        assert "descriptor 3" in done.stderr


def test_a_cgroup_is_joined_and_at_the_end_removed(start_helper: StartHelper) -> None:
    parent = next(
        (
            path
            for path in (CGROUPS / "unified", CGROUPS / "pids", CGROUPS)
            if (path / "cgroup.procs").exists() and os.access(path, os.W_OK)
        ),
        None,
    )
    if parent is None:
        pytest.skip("no cgroup can be made here")
    group = parent / f"sandlot-test-{os.getpid()}"
    group.mkdir()
    try:
        helper = start_helper("--cgroup", str(group))
        helper.hello()
        pid = helper.started(helper.start("sleep", "60"))
        members = set(map(int, (group / "cgroup.procs").read_text().split()))
        assert {helper.pid, pid} <= members
        assert helper.done(helper.send(FrameType.SHUTDOWN)) == (0, "")
        helper.wait()
        assert not group.exists()
    finally:
        with contextlib.suppress(FileNotFoundError):
            group.rmdir()


def test_all_are_told_that_the_end_begins_before_what_it_kills_is(
    listening: Helper, tmp_path: Path
) -> None:
    guest = connect(listening, tmp_path)
    guest.listing()
    running = listening.start("sleep", "60")
    listening.started(running)
    asked = guest.send(FrameType.SHUTDOWN)
    kinds = [listening.receive().kind for _ in range(3)]
    assert kinds == [FrameType.ENDING, FrameType.EXITED, FrameType.GONE]
    assert guest.receive().kind == FrameType.ENDING
    assert guest.done(asked) == (0, "")


def test_others_of_the_same_user_cannot_look_into_it(running: Helper) -> None:
    if os.geteuid() == 0:
        owner = Path(f"/proc/{running.pid}/environ").stat().st_uid
        assert owner == 0
        status = Path(f"/proc/{running.pid}/status").read_text()
        assert f"PPid:\t{os.getpid()}" in status
    else:
        with pytest.raises(PermissionError):
            Path(f"/proc/{running.pid}/environ").read_bytes()


# ------------------------------------------------------------------------------- lock
def is_locked(path: Path) -> bool:
    with path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_the_lock_says_whether_the_helper_lives(listening: Helper, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert lock.read_bytes() == b""
    assert is_locked(lock)
    pid = listening.started(listening.start("sleep", "60"))
    supervisor = parent_of(pid)
    os.kill(supervisor, signal.SIGSTOP)  # it outlives the helper, and must not hold the lock
    os.kill(listening.pid, signal.SIGKILL)
    listening.wait()
    try:
        assert not is_locked(lock)
    finally:
        os.kill(supervisor, signal.SIGCONT)
    until(lambda: not is_alive(pid))


def test_a_second_helper_does_not_get_the_lock_and_leaves_the_first_alone(
    listening: Helper, start_helper: StartHelper, tmp_path: Path
) -> None:
    second = start_helper("--dir", str(tmp_path), "--listen", "socket", "--lock", "lock")
    assert second.is_ended()
    assert second.wait() == 1
    assert "lock" in second.stderr()
    assert connect(listening, tmp_path).listing() == []


# --------------------------------------------------------------------------- listening
def test_the_socket_is_private_and_removed_at_the_end(listening: Helper, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o600
    listening.done(listening.send(FrameType.SHUTDOWN))
    assert not (tmp_path / "socket").exists()


def test_a_directory_of_a_long_path_will_do_and_a_dead_socket_is_replaced(
    start_helper: StartHelper, tmp_path: Path
) -> None:
    directory = tmp_path.joinpath(*["d" * 100] * 5)
    directory.mkdir(parents=True)
    for _ in range(2):
        helper = start_helper("--dir", str(directory), "--listen", "socket")
        helper.hello()
        assert connect(helper, directory).output("echo", "on") == b"on\n"
        os.kill(helper.pid, signal.SIGKILL)
        helper.wait()
        assert (directory / "socket").exists()


def test_a_file_that_is_no_socket_is_not_replaced(
    start_helper: StartHelper, tmp_path: Path
) -> None:
    (tmp_path / "socket").write_text("precious")
    helper = start_helper("--dir", str(tmp_path), "--listen", "socket")
    assert helper.wait() == 1
    assert (tmp_path / "socket").read_text() == "precious"


def test_without_an_owner_it_waits_for_one(start_helper: StartHelper, tmp_path: Path) -> None:
    helper = start_helper("--dir", str(tmp_path), "--listen", "socket", owner=False)
    first = connect(helper, tmp_path)
    assert first.output("echo", "on") == b"on\n"
    first.sock.close()
    second = connect(helper, tmp_path)
    second.done(second.send(FrameType.OWN))
    second.sock.close()
    assert helper.wait() == 0


# -------------------------------------------------------------------------------- watch
def test_another_connection_watches_a_command(listening: Helper, tmp_path: Path) -> None:
    guest = connect(listening, tmp_path)
    started = listening.start("sleep", "60")
    pid = listening.started(started)
    assert [(c.request_id, c.pid) for c in guest.listing()] == [(0, pid)]
    watch = guest.send(FrameType.WATCH, U32.pack(pid))
    assert PAIR.unpack(guest.answer(watch).body) == (pid, CommandState.RUNNING)
    assert guest.listing()[0].request_id == watch
    assert guest.done(guest.signal(watch, signal.SIGTERM, 0)) == (1, "")
    for peer, request_id in ((guest, watch), (listening, started)):
        exited = peer.exited(request_id)
        assert (exited.pid, exited.status) == (pid, signal.SIGTERM)
        peer.gone(request_id)


def test_a_command_is_watched_after_its_starter_is_gone_and_after_its_leaders_end(
    listening: Helper, tmp_path: Path
) -> None:
    guest = connect(listening, tmp_path)
    request_id = guest.start("sh", "-c", "sleep 60 & exit 3")
    pid = guest.started(request_id)
    guest.exited(request_id)
    guest.sock.close()
    watch = listening.send(FrameType.WATCH, U32.pack(pid))
    assert PAIR.unpack(listening.answer(watch).body) == (pid, CommandState.LEADER_EXITED)
    exited = listening.exited(watch)
    assert (exited.pid, os.waitstatus_to_exitcode(exited.status)) == (pid, 3)
    listening.done(listening.kill(watch))
    listening.gone(watch)


@pytest.mark.parametrize("pid", [0, 1, 0xFFFFFFFF])
def test_watching_what_is_not_there_is_an_error(running: Helper, pid: int) -> None:
    running.start("sleep", "60")
    assert running.error(running.send(FrameType.WATCH, U32.pack(pid))) == errno.ESRCH


# ------------------------------------------------------------------------------- owner
def test_the_owners_end_is_the_helpers(listening: Helper, tmp_path: Path) -> None:
    guest = connect(listening, tmp_path)
    pid = guest.started(guest.start("sleep", "60"))
    listening.sock.close()
    assert guest.is_ended()
    assert listening.wait() == 0
    assert not is_alive(pid)


def test_keep_lets_it_outlive_its_owner_until_it_is_shut_down(
    listening: Helper, tmp_path: Path
) -> None:
    listening.done(listening.send(FrameType.KEEP, b"\1"))
    pid = listening.started(listening.start("sleep", "60"))
    listening.sock.close()
    guest = connect(listening, tmp_path)
    until(lambda: [(c.request_id, c.pid) for c in guest.listing()] == [(0, pid)])
    assert guest.done(guest.send(FrameType.SHUTDOWN)) == (0, "")
    assert listening.wait() == 0
    assert not is_alive(pid)


def test_keep_can_be_taken_back(listening: Helper) -> None:
    listening.done(listening.send(FrameType.KEEP, b"\1"))
    listening.done(listening.send(FrameType.KEEP, b"\0"))
    listening.sock.close()
    assert listening.wait() == 0


def test_the_role_of_the_owner_can_be_passed_on(listening: Helper, tmp_path: Path) -> None:
    guest = connect(listening, tmp_path)
    guest.done(guest.send(FrameType.OWN))
    listening.sock.close()
    assert guest.output("echo", "on") == b"on\n"
    guest.sock.close()
    assert listening.wait() == 0


# ---------------------------------------------------------------------------- lifetime
def test_it_ends_with_its_lifetime_although_it_was_told_to_stay(listening: Helper) -> None:
    listening.done(listening.send(FrameType.KEEP, b"\1"))
    pid = listening.started(listening.start("sleep", "60"))
    started = time.monotonic()
    listening.done(listening.send(FrameType.LIFETIME, U64.pack(150)))
    assert listening.is_ended()
    assert time.monotonic() - started > 0.14
    assert listening.wait() == 0
    assert not is_alive(pid)


def test_a_lifetime_is_replaced_by_a_later_one_and_cancelled_by_0(running: Helper) -> None:
    running.done(running.send(FrameType.LIFETIME, U64.pack(100)))
    running.done(running.send(FrameType.LIFETIME, U64.pack(100_000)))
    running.done(running.send(FrameType.LIFETIME, U64.pack(100)))
    running.done(running.send(FrameType.LIFETIME, U64.pack(0)))
    time.sleep(0.3)
    assert running.output("echo", "on") == b"on\n"


def test_a_very_long_lifetime_is_possible(running: Helper) -> None:
    running.done(running.send(FrameType.LIFETIME, U64.pack(100 * 365 * 86_400_000)))
    running.answer(running.send(FrameType.LIFETIME, U64.pack((1 << 64) - 1)))
    assert running.output("echo", "on") == b"on\n"


# ---------------------------------------------------------------------------- shutdown
def test_a_shutdown_answers_all_who_ask_and_refuses_new_commands(
    listening: Helper, tmp_path: Path
) -> None:
    guest = connect(listening, tmp_path)
    guest.listing()
    running = listening.start("sleep", "60")
    listening.started(running)
    frames = [
        pack_frame(FrameType.SHUTDOWN, 90),
        pack_frame(FrameType.SHUTDOWN, 91),
        pack_frame(FrameType.START, 92, pack_start("", ["true"], [])),
    ]
    listening.send_raw(b"".join(frames))
    assert listening.error(91) == errno.EALREADY
    assert listening.failed(92).errno == errno.ESHUTDOWN
    assert listening.exited(running).status == signal.SIGKILL
    listening.gone(running)
    assert listening.done(90) == (0, "")
    assert listening.is_ended()
    assert guest.is_ended()
    assert listening.wait() == 0


def test_sigterm_is_a_shutdown(running: Helper) -> None:
    request_id = running.start("sleep", "60")
    pid = running.started(request_id)
    os.kill(running.pid, signal.SIGTERM)
    assert EXITED_BODY.unpack(running.answer(request_id).body)[1] == signal.SIGKILL
    running.gone(request_id)
    assert running.wait() == 0
    assert not is_alive(pid)


# ----------------------------------------------------------------------------- removal
def make_awkward_tree(root: Path, outside: Path) -> None:
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_text("x")
    (root / "a" / "link").symlink_to(outside)
    (root / "dangling").symlink_to("/no/such")
    os.mkfifo(root / "fifo")
    for name, mode in (("none", 0), ("readonly", 0o500), ("unsearchable", 0o600)):
        (root / name / "inner").mkdir(parents=True)
        (root / name / "inner" / "file").write_text("x")
        (root / name).chmod(mode)
    for number in range(300):
        (root / f"many{number}").touch()
    (root / "b\udcff\n").write_text("x")


def test_the_last_act_is_to_remove_what_was_named_and_no_more(
    start_helper: StartHelper, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    make_awkward_tree(tmp_path / "tree", outside)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(outside)
    options = [f"--remove={name}" for name in ("tree", "file", "link", "nothing")]
    helper = start_helper("--dir", str(tmp_path), *options)
    helper.hello()
    helper.started(helper.start("sleep", "60"))
    assert (tmp_path / "tree").exists()
    assert helper.done(helper.send(FrameType.SHUTDOWN)) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (outside / "precious").exists()


@pytest.mark.parametrize("way", ["hang up", "lifetime", "sigterm"])
def test_what_was_named_is_removed_whatever_the_end(
    start_helper: StartHelper, tmp_path: Path, way: str
) -> None:
    target = tmp_path / "tree"
    (target / "sub").mkdir(parents=True)
    helper = start_helper("--root", str(target), "--remove", str(target))
    helper.hello()
    # A command that writes all the time must not keep the directory alive.
    script = "import itertools\nfor i in itertools.count(): open(f'f{i % 999}', 'w').close()"
    helper.started(helper.start(sys.executable, "-I", "-S", "-c", script))
    if way == "hang up":
        helper.sock.close()
    elif way == "lifetime":
        helper.done(helper.send(FrameType.LIFETIME, U64.pack(10)))
    else:
        os.kill(helper.pid, signal.SIGTERM)
    assert helper.wait() == 0
    assert not target.exists()


def test_a_tree_too_deep_for_its_path_is_removed(start_helper: StartHelper, tmp_path: Path) -> None:
    target = tmp_path / "tree"
    target.mkdir()
    helper = start_helper("--root", str(target), "--remove", str(target))
    helper.hello()
    script = (
        "import os\n"
        "for _ in range(3000):\n"
        "    os.mkdir('d' * 50); open('f', 'w').close(); os.chdir('d' * 50)\n"
    )
    request_id = helper.start(sys.executable, "-I", "-S", "-c", script)
    assert helper.exited(request_id).status == 0
    assert helper.done(helper.send(FrameType.SHUTDOWN)) == (0, "")
    assert not target.exists()


def test_what_cannot_be_removed_is_told(start_helper: StartHelper, tmp_path: Path) -> None:
    (tmp_path / "fine").mkdir()
    options = ("--remove=/proc/self/status", "--remove=fine")
    helper = start_helper("--dir", str(tmp_path), *options)
    helper.hello()
    survivors, text = helper.done(helper.send(FrameType.SHUTDOWN))
    assert survivors == 0
    assert text.startswith("cannot remove /proc/self/status: ")
    assert not (tmp_path / "fine").exists()
    assert helper.wait() == 0
