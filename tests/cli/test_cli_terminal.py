from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator

import pytest
from cli_program import HUNG, Sandlot


class Terminal:
    """A terminal of 40 lines and 100 columns, and the program that has it."""

    def __init__(self, sandlot: Sandlot) -> None:
        self._sandlot = sandlot
        self._ours, self._theirs = pty.openpty()
        self.seen = ""
        self.resize(40, 100)
        self.before = self.settings()

    def start(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        def take() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        return self._sandlot.start(
            *words,
            env={"TERM": "xterm", "NO_COLOR": None, **variables},
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            preexec_fn=take,
        )

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def settings(self) -> list[object]:
        return termios.tcgetattr(self._theirs)

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def sees(self, text: str) -> bool:
        """Whether the text appears, before we would call it hung."""
        end = time.monotonic() + HUNG
        while text not in self.seen and time.monotonic() < end:
            if select.select([self._ours], [], [], 0.2)[0]:
                self.seen += os.read(self._ours, 65536).decode()
        return text in self.seen

    def close(self) -> None:
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminal(sandlot: Sandlot) -> Iterator[Terminal]:
    opened = Terminal(sandlot)
    yield opened
    opened.close()


def test_the_command_has_a_terminal_of_the_same_size_and_kind(terminal: Terminal) -> None:
    line = "test -t 0 && test -t 1 && test -t 2 && stty size; echo term=$TERM; exit 5"
    process = terminal.start("run", "-b", "local", "-T", line)
    assert terminal.sees("40 100")
    assert terminal.sees("term=xterm\r\n")
    assert process.wait(HUNG) == 5
    assert terminal.settings() == terminal.before


def test_keys_reach_the_command_ctrl_c_among_them(terminal: Terminal) -> None:
    line = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done"
    process = terminal.start("run", "-b", "local", "--tty", line)
    assert terminal.sees("ready")
    terminal.type(b"\x03")
    assert terminal.sees("caught")
    assert process.wait(HUNG) == 9
    assert terminal.settings() == terminal.before


def test_a_change_of_size_reaches_the_command(terminal: Terminal) -> None:
    line = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done"
    process = terminal.start("run", "-b", "local", "-T", line)
    assert terminal.sees("ready")
    terminal.resize(50, 132)
    assert terminal.sees("50 132")
    assert process.wait(HUNG) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_terminal_is_restored_when_a_signal_ends_it(
    terminal: Terminal, number: int, code: int
) -> None:
    process = terminal.start("run", "-b", "local", "-T", "echo ready; sleep 600")
    assert terminal.sees("ready")
    assert terminal.settings() != terminal.before
    process.send_signal(number)
    assert process.wait(HUNG) == code
    assert terminal.settings() == terminal.before


def test_exec_has_the_terminal_too(sandlot: Sandlot, terminal: Terminal) -> None:
    name = sandlot.kept()
    process = terminal.start("exec", name, "-T", "sh")
    terminal.type(b"echo $((40 + 2)); exit 3\n")
    assert terminal.sees("42")
    assert process.wait(HUNG) == 3
    sandlot("destroy", name)


def test_without_asking_lines_typed_are_still_input(terminal: Terminal) -> None:
    process = terminal.start("run", "-b", "local", "echo ready; read line; echo got $line")
    assert terminal.sees("ready")
    terminal.type(b"some words\n")
    assert terminal.sees("got some words")
    assert process.wait(HUNG) == 0


def test_ctrl_c_without_a_terminal_of_its_own_destroys(
    sandlot: Sandlot, terminal: Terminal
) -> None:
    process = terminal.start("run", "-b", "local", "echo ready; sleep 600")
    assert terminal.sees("ready")
    terminal.type(b"\x03")
    assert process.wait(HUNG) == 130
    assert sandlot.left() == []


def test_code_is_not_expected_from_a_keyboard(terminal: Terminal) -> None:
    process = terminal.start("run", "-b", "local", "--lang", "python")
    assert terminal.sees("pipe it in")
    assert process.wait(HUNG) == 125


def test_tables_are_drawn(terminal: Terminal) -> None:
    process = terminal.start("backends")
    assert terminal.sees("local")
    assert process.wait(HUNG) == 0


def test_progress_is_shown_while_copying(sandlot: Sandlot, terminal: Terminal) -> None:
    name = sandlot.kept()
    sandlot.file("tree/leaf", "leaf")
    process = terminal.start("cp", "tree", f"{name}:/tree")
    assert terminal.sees("copying")
    assert process.wait(HUNG) == 0
    assert sandlot("exec", name, "cat tree/leaf").out == "leaf"
    sandlot("destroy", name)


def test_destroying_everything_asks_first(sandlot: Sandlot, terminal: Terminal) -> None:
    name = sandlot.kept()
    process = terminal.start("destroy", "--all", "-b", "local")
    assert terminal.sees("End 1 sandbox")
    terminal.type(b"n\n")
    assert terminal.sees("nothing was ended")
    assert process.wait(HUNG) == 1
    terminal.seen = ""
    process = terminal.start("destroy", "--all", "-b", "local")
    assert terminal.sees("End 1 sandbox")
    terminal.type(b"\x03")
    assert process.wait(HUNG) == 130
    assert sandlot.left() == [name]
    terminal.seen = ""
    process = terminal.start("destroy", "--all", "-b", "local")
    assert terminal.sees("End 1 sandbox")
    terminal.type(b"y\n")
    assert process.wait(HUNG) == 0
    assert sandlot.left() == []


def test_errors_are_coloured_unless_that_is_unwanted(terminal: Terminal) -> None:
    process = terminal.start("list", "-b", "locl")
    assert terminal.sees("error\x1b[0m: there is no backend")
    assert process.wait(HUNG) == 1
    process = terminal.start("list", "-b", "locl", NO_COLOR="1")
    assert terminal.sees("\nerror: there is no backend")
    assert process.wait(HUNG) == 1
