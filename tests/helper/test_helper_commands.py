"""What START does, and what is told of how a command ends. Runs against both helpers."""

from __future__ import annotations

import errno
import os
import pty
import select
import signal
from pathlib import Path

import pytest
from helper_peer import Failed, Helper, StartHelper, open_pipe, read_all, until

from sandlot.helper.protocol import FrameType, Stage, StartFlag


@pytest.mark.parametrize("code", [0, 1, 3, 127, 255])
def test_an_exit_code_is_reported_exactly(running: Helper, code: int) -> None:
    request_id = running.start("sh", "-c", f"exit {code}")
    running.started(request_id)
    assert os.waitstatus_to_exitcode(running.exited(request_id).status) == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, 40])
def test_a_signal_that_ends_a_command_is_reported_exactly(running: Helper, number: int) -> None:
    request_id = running.start("sh", "-c", f"kill -{int(number)} $$; sleep 60")
    assert os.waitstatus_to_exitcode(running.exited(request_id).status) == -number


def test_the_pid_told_is_the_programs_own(running: Helper) -> None:
    with open_pipe() as (read_end, write_end):
        request_id = running.start("sh", "-c", "echo $$", fds=(0, write_end(), 2))
        write_end.close()
        assert running.started(request_id) == int(read_all(read_end()))
        assert running.exited(request_id).pid > 0


def test_output_goes_through_the_passed_descriptors_and_ends_with_the_command(
    running: Helper,
) -> None:
    with open_pipe() as (out, out_end), open_pipe() as (err, err_end), open_pipe() as (give, to):
        request_id = running.start(
            "sh", "-c", "cat; echo two >&2", fds=(give(), out_end(), err_end())
        )
        out_end.close()
        err_end.close()
        os.write(to(), b"one")
        to.close()
        assert read_all(out()) == b"one"
        assert read_all(err()) == b"two\n"
        assert running.exited(request_id).status == 0


def test_without_descriptors_all_three_are_dev_null(running: Helper, tmp_path: Path) -> None:
    argv = ("sh", "-c", f"ls -l /proc/$$/fd > {tmp_path}/fds")
    assert running.exited(running.start(*argv)).status == 0
    listing = (tmp_path / "fds").read_text()
    assert listing.count("/dev/null") == 3


def test_a_command_leads_a_session_of_its_own(running: Helper) -> None:
    fields = running.output("cat", "/proc/self/stat").decode().split()
    pid, group, session = fields[0], fields[4], fields[5]
    assert pid == group == session


def test_no_other_descriptor_is_open(start_helper: StartHelper) -> None:
    with open_pipe() as (read_end, write_end):
        os.set_inheritable(write_end(), True)
        helper = start_helper()
        helper.hello()
        write_end.close()
        assert read_all(read_end()) == b""  # the helper itself has let go of it
    names = helper.output("sh", "-c", "ls /proc/$$/fd").split()
    assert names == [b"0", b"1", b"2"]


def test_signals_are_at_their_defaults_and_unblocked(running: Helper) -> None:
    status = running.output("cat", "/proc/self/status").decode()
    masks = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Sig"))
    of_the_c_library = 0x180000000  # 32 and 33, which it lets nobody change
    for name in ("SigBlk", "SigIgn", "SigCgt"):
        assert int(masks[name], 16) & ~of_the_c_library == 0, name


# --------------------------------------------------------------------- working directory
def test_the_working_directory_is_the_helpers_or_relative_to_it(
    start_helper: StartHelper, tmp_path: Path
) -> None:
    (tmp_path / "sub" / "subsub").mkdir(parents=True)
    helper = start_helper("--root", str(tmp_path))
    helper.hello()
    for cwd, expected in (
        ("", tmp_path),
        ("sub/subsub", tmp_path / "sub" / "subsub"),
        ("", tmp_path),  # the one before has not moved the helper
        ("/", Path("/")),
    ):
        assert helper.output("/bin/pwd", cwd=cwd).decode() == f"{expected}\n"


@pytest.mark.parametrize(
    ("cwd", "number"), [("nowhere", errno.ENOENT), ("/dev/null", errno.ENOTDIR)]
)
def test_a_working_directory_that_is_none_is_told_as_such(
    running: Helper, cwd: str, number: int
) -> None:
    assert running.failed(running.start("true", cwd=cwd)) == Failed(number, Stage.CHDIR)


# --------------------------------------------------------------------------- environment
def test_variables_are_merged_over_the_helpers_own(start_helper: StartHelper) -> None:
    helper = start_helper(env={"KEPT": "k", "CHANGED": "old", "REMOVED": "r", "BACK": "old"})
    helper.hello()
    overlay = ["CHANGED=new", "REMOVED", "ADDED=a=b", "TWICE=1", "TWICE=2", "BACK", "BACK=new"]
    env = helper.output("env", env=overlay).decode().splitlines()
    assert sorted(env) == sorted(
        [
            "PATH=/usr/local/bin:/usr/bin:/bin",
            "LANG=C.UTF-8",
            "KEPT=k",
            "CHANGED=new",
            "ADDED=a=b",
            "TWICE=2",
            "BACK=new",
        ]
    )


def test_many_variables_are_merged_quickly(running: Helper) -> None:
    overlay = [f"V{i}={i}" for i in range(50_000)] + [f"V{i}" for i in range(49_999)]
    env = running.output("env", env=overlay).decode().splitlines()
    assert "V49999=49999" in env
    assert len(env) == 3


def test_bytes_that_are_not_utf8_get_through(running: Helper) -> None:
    odd = b"\xff\xfe caf\xc3\xa9".decode("utf-8", "surrogateescape")
    printed = running.output("sh", "-c", 'printf "%s|%s" "$1" "$V"', "x", odd, env=[f"V={odd}"])
    assert printed == b"\xff\xfe caf\xc3\xa9|\xff\xfe caf\xc3\xa9"


# ------------------------------------------------------------------- finding the program
def make_program(path: Path, text: str, mode: int = 0o755) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_program_is_looked_up_in_the_merged_path(running: Helper, tmp_path: Path) -> None:
    make_program(tmp_path / "a" / "prog", "#!/bin/sh\necho a\n", 0o644)
    make_program(tmp_path / "b" / "prog", "#!/bin/sh\necho b\n")
    path = f"PATH=/nowhere:{tmp_path}/a:{tmp_path}/b:/bin"
    assert running.output("prog", env=[path]) == b"b\n"


def test_an_empty_part_of_the_path_is_the_working_directory(
    running: Helper, tmp_path: Path
) -> None:
    make_program(tmp_path / "prog", "#!/bin/sh\necho here\n")
    assert running.output("prog", cwd=str(tmp_path), env=["PATH=/nowhere:"]) == b"here\n"


def test_a_program_with_a_slash_is_relative_to_the_working_directory(
    running: Helper, tmp_path: Path
) -> None:
    make_program(tmp_path / "bin" / "prog", "#!/bin/sh\necho there\n")
    assert running.output("bin/prog", cwd=str(tmp_path)) == b"there\n"


def test_without_a_path_the_usual_places_are_searched(running: Helper) -> None:
    assert running.output("echo", "found", env=["PATH"]) == b"found\n"


@pytest.mark.parametrize(
    ("argv", "number"),
    [
        (["no-such-program"], errno.ENOENT),
        (["/no/such/program"], errno.ENOENT),
        (["/dev/null/x"], errno.ENOTDIR),
        (["/etc/passwd"], errno.EACCES),
        (["/tmp"], errno.EACCES),
        ([""], errno.ENOENT),
        ([], errno.EINVAL),
        (["true", "x" * 200_000], errno.E2BIG),
    ],
)
def test_a_program_that_does_not_run_is_told_as_such(
    running: Helper, argv: list[str], number: int
) -> None:
    assert running.failed(running.start(*argv)) == Failed(number, Stage.EXEC)


def test_the_reason_that_is_told_is_not_a_missing_file_if_there_is_a_better_one(
    running: Helper, tmp_path: Path
) -> None:
    make_program(tmp_path / "prog", "#!/bin/sh\n", 0o644)
    request_id = running.start("prog", env=[f"PATH={tmp_path}:/nowhere"])
    assert running.failed(request_id) == Failed(errno.EACCES, Stage.EXEC)


def test_a_script_without_interpreter_is_not_handed_to_a_shell(
    running: Helper, tmp_path: Path
) -> None:
    program = make_program(tmp_path / "prog", "echo no\n")
    assert running.failed(running.start(str(program))) == Failed(errno.ENOEXEC, Stage.EXEC)


# --------------------------------------------------------------------------------- sizes
def test_a_hundred_thousand_arguments_arrive(running: Helper) -> None:
    printed = running.output("sh", "-c", "echo $#", "x", *["a"] * 100_000)
    assert printed == b"100000\n"


def test_arguments_and_environment_of_nearly_2_mb_arrive(running: Helper) -> None:
    half = ["x" * 100_000] * 9
    variables = [f"V{i}={text}" for i, text in enumerate(half)]
    printed = running.output("sh", "-c", 'echo ${#1} ${#9} $# "${#V8}"', "x", *half, env=variables)
    assert printed == b"100000 100000 9 100000\n"


def test_a_command_larger_than_the_kernel_takes_is_refused_and_the_next_one_runs(
    running: Helper,
) -> None:
    request_id = running.start("true", *["x" * 1000] * 15_000)
    assert running.failed(request_id) == Failed(errno.E2BIG, Stage.EXEC)
    assert running.output("echo", "fine") == b"fine\n"


# ----------------------------------------------------------------------- what is reported
def test_a_quiet_command_is_told_of_only_at_its_end(running: Helper) -> None:
    request_id = running.start("sh", "-c", "exit 4", flags=StartFlag.QUIET)
    frame = running.answer(request_id)
    assert frame.kind is FrameType.EXITED
    running.gone(request_id)
    assert running.failed(running.start("nope", flags=StartFlag.QUIET)).stage == Stage.EXEC


def test_usage_is_reported(running: Helper) -> None:
    spin = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"
    exited = running.exited(running.start("sh", "-c", spin))
    assert 1_000 < exited.user_us + exited.system_us < 60_000_000
    assert 100 < exited.peak_kib < 1_000_000


def test_exited_comes_with_the_leaders_end_and_gone_with_the_last_process(
    running: Helper, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "gate")
    request_id = running.start("sh", "-c", f"(setsid cat {tmp_path}/gate &) ; exit 5")
    assert os.waitstatus_to_exitcode(running.exited(request_id).status) == 5
    assert [command.state for command in running.listing()] == [2]
    (tmp_path / "gate").write_text("open")
    running.gone(request_id)
    assert running.listing() == []


def test_many_commands_run_at_once_and_none_is_mixed_up(running: Helper, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    wait = f"read x < {tmp_path}/gate; exit "
    ids = {running.start("sh", "-c", f"{wait}{code}"): code for code in range(60)}
    pids = {running.started(request_id) for request_id in ids}
    assert len(pids) == 60
    assert {command.pid for command in running.listing()} == pids
    with open(tmp_path / "gate", "r+b", buffering=0) as gate:
        gate.write(b"x\n" * len(ids))
        for request_id, code in ids.items():
            assert os.waitstatus_to_exitcode(running.exited(request_id).status) == code
            running.gone(request_id)


def test_the_listing_tells_arguments_state_and_start(running: Helper) -> None:
    request_id = running.start("sh", "-c", "sleep 60", "", "é")
    pid = running.started(request_id)
    (command,) = running.listing()
    assert command.request_id == request_id
    assert (command.pid, command.state) == (pid, 1)
    assert command.argv == (b"sh", b"-c", b"sleep 60", b"", "é".encode())
    assert command.start_ms > 1_700_000_000_000
    long = running.start("sh", "-c", "sleep 60", "x" * 10_000)
    running.started(long)
    listed = {command.request_id: command for command in running.listing()}
    assert listed[long].argv[3] == b"x" * (4096 - len("sh\0-c\0sleep 60\0"))


# ------------------------------------------------------------------------------ terminals
def test_a_terminal_becomes_the_controlling_one_and_passes_on_ctrl_c(running: Helper) -> None:
    master, slave = pty.openpty()
    try:
        script = "test -t 0 && test -t 2 && : < /dev/tty && echo ready; exec cat"
        request_id = running.start("sh", "-c", script, flags=StartFlag.PTY, fds=(slave,) * 3)
        running.started(request_id)
        printed = b""
        while b"ready" not in printed:
            assert select.select([master], [], [], 30)[0]
            printed += os.read(master, 1000)
        os.write(master, b"\x03")
        assert os.waitstatus_to_exitcode(running.exited(request_id).status) == -signal.SIGINT
    finally:
        os.close(slave)
        os.close(master)


def test_what_is_no_terminal_is_refused_as_one(running: Helper) -> None:
    with open_pipe() as (read_end, write_end):
        fds = (read_end(), write_end(), write_end())
        request_id = running.start("true", flags=StartFlag.PTY, fds=fds)
        assert running.failed(request_id) == Failed(errno.ENOTTY, Stage.SETUP)
    request_id = running.start("true", flags=StartFlag.PTY)
    assert running.failed(request_id) == Failed(errno.ENOTTY, Stage.SETUP)


# -------------------------------------------------------------------------------- signals
def test_a_signal_to_the_group_reaches_the_group_and_one_to_the_tree_all(
    running: Helper, tmp_path: Path
) -> None:
    wait = "echo up >> log; while :; do sleep .01; done"
    for name in ("leader", "member", "other"):
        (tmp_path / name).write_text(f"trap 'echo {name} >> log; exit 1' USR1; {wait}")
    script = "sh member & setsid sh other & . ./leader"
    log = tmp_path / "log"
    log.touch()
    request_id = running.start("sh", "-c", script, cwd=str(tmp_path))
    running.started(request_id)
    until(lambda: log.read_text().count("up") == 3)
    assert running.done(running.signal(request_id, signal.SIGUSR1, 0))[0] == 1
    until(lambda: "leader" in log.read_text() and "member" in log.read_text())
    assert "other" not in log.read_text()
    running.exited(request_id)
    assert running.error(running.signal(request_id, signal.SIGUSR1, 0)) == errno.ESRCH
    assert running.done(running.signal(request_id, signal.SIGUSR1, 1))[0] >= 1
    running.gone(request_id)
    assert "other" in log.read_text()


def test_a_signal_right_after_the_start_gets_there_or_is_told_to_come_again(
    running: Helper,
) -> None:
    for _ in range(20):
        request_id = running.start("sleep", "60")
        frame = running.answer(running.signal(request_id, signal.SIGKILL, 0))
        while frame.kind is FrameType.ERROR:
            assert int.from_bytes(frame.body[:4], "little") == errno.EAGAIN
            frame = running.answer(running.signal(request_id, signal.SIGKILL, 0))
        assert os.waitstatus_to_exitcode(running.exited(request_id).status) == -signal.SIGKILL


@pytest.mark.parametrize(("number", "scope"), [(65, 0), (1 << 31, 0), (1 << 31, 1), (15, 2)])
def test_a_signal_or_scope_that_is_none_is_refused(
    running: Helper, number: int, scope: int
) -> None:
    request_id = running.start("sleep", "60")
    running.started(request_id)
    assert running.error(running.signal(request_id, number, scope)) == errno.EINVAL
    assert [command.state for command in running.listing()] == [1]


def test_a_command_is_likelier_to_be_killed_for_memory_than_the_helper(running: Helper) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert int(running.output("cat", "/proc/self/oom_score_adj")) == min(1000, own + 500)
    assert Path(f"/proc/{running.pid}/oom_score_adj").read_text() == f"{own}\n"


def test_the_umask_is_set_when_asked(start_helper: StartHelper) -> None:
    helper = start_helper("--umask", "027")
    helper.hello()
    assert helper.output("sh", "-c", "umask") == b"0027\n"
