"""The plugin and the suite's own rules, as an adapter's author meets them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.testing import BackendConformance, never

ADAPTER = """
from sandlot.testing import BackendConformance, MemoryBackend, MemoryWorld, never

class Careless(MemoryBackend):
    name = "careless"

class TestCareless(BackendConformance):
    world = MemoryWorld()
    gaps = {
        "destroying_twice_is_fine": never("it is, and so this fails"),
        "a_file_larger_than_the_memory_for_it_passes_in_pieces": never("memory"),
    }

    def backend(self):
        return Careless(self.world, capabilities=())
"""


def _pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_careless.py").write_text(ADAPTER)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments]
    return subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=100, check=False
    )


def test_outcomes_are_recorded_for_the_matrix(tmp_path: Path) -> None:
    chosen = "destroying_twice or larger_than or never_was or exit_code"
    _pytest(tmp_path, "-k", chosen, "--sandlot-matrix", "matrix")
    record = json.loads((tmp_path / "matrix/careless.emulated.json").read_text())
    assert (record["backend"], record["mode"], record["sdk"]) == ("careless", "emulated", "")
    assert record["behaviours"] == {
        "a_file_larger_than_the_memory_for_it_passes_in_pieces": "never: memory",
        "a_process_that_never_was_is_not_found": "unsupported",
        "a_result_tells_the_exit_code": "pass",
        "destroying_twice_is_fine": "fail",
    }


def test_a_gap_that_holds_fails_the_run(tmp_path: Path) -> None:
    run = _pytest(tmp_path, "-k", "destroying_twice or larger_than")
    assert run.returncode == 1
    assert "destroying_twice_is_fine holds: take it out of gaps" in run.stdout
    assert re.search(r"1 failed, \d+ deselected, 1 xfailed", run.stdout)


def test_a_gap_names_a_behaviour() -> None:
    with pytest.raises(TypeError, match="no_such_behaviour"):

        class Misspelt(BackendConformance):
            gaps = {"no_such_behaviour": never("it has another name")}


def test_every_behaviour_says_what_it_is() -> None:
    silent = [
        name
        for name in dir(BackendConformance)
        if name.startswith("test_") and not getattr(BackendConformance, name).__doc__
    ]
    assert not silent


def test_the_plugin_is_light(tmp_path: Path) -> None:
    """Every run of pytest of every user loads it."""
    program = (
        "import sys, pytest; before = set(sys.modules); import sandlot.testing.plugin; "
        "print(*sorted(m for m in set(sys.modules) - before))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert [name for name in run.stdout.split() if name.startswith("sandlot")] == [
        "sandlot",
        "sandlot.testing",
        "sandlot.testing.plugin",
    ]
