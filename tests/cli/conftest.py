"""The program, with a backend beside ``local`` that can do no more than it must."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_program import SOURCES, Sandlot


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory for PYTHONPATH that adds the backend ``plain``."""
    directory = tmp_path_factory.mktemp("site")
    source = Path(__file__).with_name("plain_backend.py")
    (directory / source.name).write_text(source.read_text())
    info = directory / "plain-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plain\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[sandlot.backends]\n"
        "plain = plain_backend:PlainBackend\n"
        "local = sandlot.backends.local:LocalBackend\n"
    )
    return directory


@pytest.fixture
def sandlot(tmp_path: Path, site: Path) -> Iterator[Sandlot]:
    """Yield the program; afterwards, no sandbox may be left."""
    home = tmp_path / "here"
    home.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("SANDLOT_")}
    env |= {
        "PYTHONPATH": f"{SOURCES}{os.pathsep}{site}",
        "SANDLOT_STATE_DIR": str(tmp_path / "state"),
    }
    program = Sandlot(home, env)
    yield program
    for process in program.started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        with process:
            process.wait()
    left = program.left()
    if left:
        program("destroy", "-b", "local", *left)
    assert left == [], "sandboxes were left behind"
