"""The build hook compiles the helper where it can, and says so where it can't."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from requirements import require_program
from sandlot import helper

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources, to be built in."""
    here = tmp_path / "src" / "sandlot" / "helper"
    here.mkdir(parents=True)
    for path in Path(helper.__file__).parent.glob("*.[ch]"):
        shutil.copy(path, here)
    return tmp_path


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_it_compiles_a_static_program(
    hook: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_program("cc")
    assert hook.compile_helper(tree) == ""
    binary = tree / hook.BINARY
    assert subprocess.run([binary, "--version"], capture_output=True).stdout == b"1\n"
    assert os.listdir(binary.parent) == ["sandlot-init"]
    if hook.is_static(binary):
        assert "manylinux" in hook.platform_tag(True)
        assert "musllinux" in hook.platform_tag(True)


def test_it_makes_do_without_a_static_c_library(
    hook: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_program("cc")
    compiler = hook.find_compiler()
    text = f'case " $* " in *" -static "*) exit 1;; esac\nexec {compiler[0]} "$@"'
    monkeypatch.setenv("CC", script(tree / "cc", text))
    assert hook.compile_helper(tree) == ""
    assert not hook.is_static(tree / hook.BINARY)
    assert hook.platform_tag(False).startswith("linux_")


def test_a_failing_compiler_is_told_and_leaves_no_stale_program(
    hook: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = tree / hook.BINARY
    stale.parent.mkdir()
    stale.write_text("of an older source")
    monkeypatch.setenv("CC", script(tree / "cc", "echo 'no luck' >&2; exit 1"))
    assert "no luck" in hook.compile_helper(tree)
    assert not stale.exists()


def test_no_compiler_is_told(hook: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tree))
    monkeypatch.setenv("CC", "no-such-compiler")
    assert hook.compile_helper(tree) == "there is no C compiler"
