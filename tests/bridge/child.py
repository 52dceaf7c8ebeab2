"""Runs a piece of Python in an interpreter of its own, which is interrupted, forks or ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
LIMIT = 50.0
"""Seconds after which a child hangs, as opposed to being slow."""

PROLOGUE = """
import asyncio, atexit, os, sys, threading, time
from pathlib import Path
from sandlot import AsyncSandbox, Sandbox, SandboxClient, SandboxClosedError, _at_exit, _bridge
from sandlot._bridge import BRIDGE
from scratch_backend import ScratchBackend, is_running
root = Path(sys.argv[1])

def say(*words):
    print(*words, flush=True)

def there():
    return sorted(path.name for path in root.iterdir()) if root.exists() else []

def tell_when_creating():
    while not there():
        time.sleep(0.01)
    say("creating")
"""


@dataclass
class Child:
    """A child that runs, and what it has said so far."""

    code: str
    root: Path
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A group of its own: what the tests send it must not reach the tests.
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", self._script(), str(self.root)],
            env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{HERE}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.errors = ""

    def _script(self) -> str:
        return PROLOGUE + textwrap.dedent(self.code)

    def await_line(self, wanted: str) -> None:
        """Read what it says until it says this."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))
            if self.said[-1] == wanted:
                return
        self.end()
        raise AssertionError(f"it never said {wanted!r}: {self.said}\n{self.errors}")

    def await_file(self, pattern: str) -> Path:
        """Wait until there is such a file under the root."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := [path for path in self.root.glob(pattern) if path.read_text()]:
                return found[0]
            time.sleep(0.01)
        self.end()
        raise AssertionError(f"there never was a {pattern}: {self.said}\n{self.errors}")

    def interrupt(self) -> None:
        """Send it what Ctrl-C sends."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Close its input, wait for its end and return its exit code."""
        try:
            out, self.errors = self.process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            out, self.errors = self.process.communicate()
            raise AssertionError(f"it hangs: {self.said}, {out}\n{self.errors}") from None
        self.said += out.splitlines()
        return self.process.returncode


def run_child(code: str, root: Path) -> Child:
    """Run a child to its end, which must be a good one."""
    child = Child(code, root)
    assert child.end() == 0, f"{child.said}\n{child.errors}"
    return child


def remaining(root: Path) -> list[str]:
    """Return the sandboxes that are still there."""
    return sorted(path.name for path in root.iterdir()) if root.exists() else []
