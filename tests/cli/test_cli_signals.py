from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from cli_program import HUNG, Sandlot

ENDINGS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


def eventually(condition: Callable[[], object]) -> bool:
    """Whether the condition comes true before we would call it hung."""
    end = time.monotonic() + HUNG
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def first_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def errors(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.read().decode()


@pytest.mark.parametrize(("number", "code"), ENDINGS)
def test_a_signal_destroys_what_was_made(
    sandlot: Sandlot, number: signal.Signals, code: int
) -> None:
    process = sandlot.start("run", "-b", "local", "echo $$; sleep 600 & sleep 600")
    pid = int(first_line(process))
    assert len(sandlot.left()) == 1
    process.send_signal(number)
    assert process.wait(HUNG) == code
    assert errors(process) == ""
    assert sandlot.left() == []
    assert not runs(pid)


@pytest.mark.parametrize("wait", [0.05, 0.1, 0.2, 0.3, 0.5, 0.8])
def test_a_signal_at_any_moment_leaves_nothing(sandlot: Sandlot, wait: float) -> None:
    process = sandlot.start("run", "-b", "local", "sleep 600")
    time.sleep(wait)
    process.send_signal(signal.SIGINT)
    assert process.wait(HUNG) != 0
    assert "sandlot/cli/_" not in errors(process)  # before that, it is the interpreter's to tell
    assert sandlot.left() == []


def test_a_signal_during_installation_destroys_too(sandlot: Sandlot) -> None:
    sandlot.file("requirements.txt", "")
    sandlot.file("app.py", "")
    # A pip that never ends.
    sandlot.file("bin/python3", "#!/bin/sh\necho installing >&2\nexec sleep 600\n").chmod(0o755)
    path = f"{sandlot.home}/bin:{os.environ['PATH']}"
    process = sandlot.start(
        "run", "-b", "local", "-e", f"PATH={path}", "--file", "app.py", "--deps"
    )
    assert process.stderr is not None
    assert process.stderr.readline() == b"installing\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(HUNG) == 130
    assert sandlot.left() == []


def test_a_reused_sandbox_survives_a_signal_and_its_command_does_not(sandlot: Sandlot) -> None:
    sandlot("run", "-b", "local", "-l", "a=b", "--reuse", "true")
    process = sandlot.start("run", "-b", "local", "-l", "a=b", "--reuse", "echo $$; sleep 600")
    pid = int(first_line(process))
    process.send_signal(signal.SIGINT)
    assert process.wait(HUNG) == 130
    assert not runs(pid)
    assert sandlot("run", "-b", "local", "-l", "a=b", "--reuse", "echo alive").out == "alive\n"
    sandlot("destroy", "-l", "a=b")


def test_exec_kills_its_command_on_a_signal_and_leaves_the_sandbox(sandlot: Sandlot) -> None:
    name = sandlot.kept()
    process = sandlot.start("exec", name, "echo $$; sleep 600")
    pid = int(first_line(process))
    process.send_signal(signal.SIGTERM)
    assert process.wait(HUNG) == 143
    assert not runs(pid)
    assert sandlot("exec", name, "echo alive").out == "alive\n"
    sandlot("destroy", name)


def test_an_ignored_signal_stays_ignored(sandlot: Sandlot) -> None:
    process = sandlot.start(
        "run", "-b", "local", "echo ready; read word; echo $word",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    assert first_line(process) == "ready"
    process.send_signal(signal.SIGHUP)
    out, _ = process.communicate(b"went on\n", timeout=HUNG)
    assert (process.returncode, out) == (0, b"went on\n")


class TestWhileCleaningUp:
    @pytest.fixture
    def waiting(self, sandlot: Sandlot) -> subprocess.Popen[bytes]:
        """Return a program that a signal has ended and whose destroy() takes its time."""
        env = {"PLAIN_GATE": str(sandlot.home / "gate"), "PLAIN_LOG": str(sandlot.home / "log")}
        process = sandlot.start(
            "run", "-b", "plain", "sleep 600", env=env, stdin=subprocess.DEVNULL
        )
        assert eventually((sandlot.home / "log").exists)
        process.send_signal(signal.SIGINT)
        assert eventually((sandlot.home / "knock").exists)
        return process

    def test_a_second_signal_tells_what_is_at_stake_and_disturbs_nothing(
        self, sandlot: Sandlot, waiting: subprocess.Popen[bytes]
    ) -> None:
        waiting.send_signal(signal.SIGINT)
        assert waiting.stderr is not None
        assert b"may leave sandbox plain-" in waiting.stderr.readline()
        assert waiting.poll() is None
        (sandlot.home / "gate").touch()
        assert waiting.wait(HUNG) == 130
        assert errors(waiting) == ""

    def test_a_third_gives_up_and_says_what_may_be_left(
        self, waiting: subprocess.Popen[bytes]
    ) -> None:
        waiting.send_signal(signal.SIGINT)
        assert waiting.stderr is not None
        assert waiting.stderr.readline().startswith(b"note: ")
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(HUNG) == 143
        assert "this may be left: sandbox plain-" in errors(waiting)


def test_a_reader_that_leaves_ends_the_program_quietly(sandlot: Sandlot) -> None:
    process = sandlot.start("run", "-b", "local", "echo $$; exec yes")
    pid = int(first_line(process))
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(HUNG) == 141
    assert errors(process) == ""
    assert not runs(pid)
    assert sandlot.left() == []


def test_a_reader_that_leaves_ends_a_listing_quietly(sandlot: Sandlot) -> None:
    process = sandlot.start("backends", "--capabilities")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(HUNG) == 141
    assert errors(process) == ""


def test_a_reader_that_sleeps_does_not_keep_signals_out(sandlot: Sandlot) -> None:
    process = sandlot.start("run", "-b", "local", "echo $$; exec yes")
    pid = int(first_line(process))
    time.sleep(0.5)  # until every buffer is full
    process.send_signal(signal.SIGINT)
    assert process.wait(HUNG) == 130
    assert not runs(pid)


def test_nothing_outlives_a_killed_program_for_long(sandlot: Sandlot) -> None:
    process = sandlot.start("run", "-b", "local", "echo $$; sleep 600")
    pid = int(first_line(process))
    process.kill()
    process.wait(HUNG)
    assert eventually(lambda: not runs(pid) and not sandlot.left())


def test_gc_removes_what_is_left_when_all_were_killed(sandlot: Sandlot) -> None:
    process = sandlot.start("run", "-b", "local", "echo $$; exec sleep 600")
    command = int(first_line(process))
    (name,) = sandlot.left()
    helpers = [pid for pid in pids() if name in command_line(pid) and "--dir" in command_line(pid)]
    everybody = [process.pid, *helpers, command]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped, none cleans up after the others
        for pid in everybody:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    process.wait(HUNG)
    assert helpers
    assert eventually(lambda: not any(runs(pid) for pid in helpers))
    assert sandlot.left() == [name]
    done = sandlot("gc")
    assert (done.code, done.out) == (0, f"local {name}\n")
    assert sandlot("gc", "--json", "-b", "local").json == [{"backend": "local", "removed": []}]


def pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""
