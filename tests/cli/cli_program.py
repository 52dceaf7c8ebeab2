"""The real program, run as its users run it: in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parents[2] / "src"
HUNG = 60.0
"""Seconds after which a program that should have ended has hung."""


@dataclass(frozen=True)
class Done:
    """How the program ended."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def out(self) -> str:
        return self.stdout.decode()

    @property
    def err(self) -> str:
        return self.stderr.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


@dataclass
class Sandlot:
    """``python -m sandlot`` with records of its own."""

    home: Path
    env: dict[str, str]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __call__(
        self,
        *words: str,
        stdin: bytes | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> Done:
        """Run it to its end."""
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        done = subprocess.run(
            self.command(*words),
            capture_output=True,
            cwd=self.home,
            env=self.environment(env),
            timeout=HUNG,
            check=False,
            **given,
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start it, with pipes for its streams unless said otherwise."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(
            self.command(*words),
            cwd=self.home,
            env=self.environment(options.pop("env", None)),
            **{**pipes, **options},
        )
        self.started.append(process)
        return process

    def kept(self, *words: str) -> str:
        """Make a sandbox that stays; return its id."""
        done = self("run", "-b", "local", "--keep", *words, "true")
        assert done.code == 0, done.err
        return done.err.split()[2]

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "sandlot", *words]

    def environment(self, changes: Mapping[str, str | None] | None) -> dict[str, str]:
        changed = {**self.env, **(changes or {})}
        return {name: value for name, value in changed.items() if value is not None}

    def left(self) -> list[str]:
        """Return the ids of local sandboxes that have left anything on disk."""
        places = self.home.parent / "state/local"
        return sorted(path.name for path in places.iterdir()) if places.exists() else []

    def file(self, name: str, text: str | bytes) -> Path:
        """Write a file in the directory where the program runs."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path
