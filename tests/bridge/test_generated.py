"""The generated module: fresh, complete, and of the same signatures as what it is made from."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sandlot
from sandlot import _sync

ROOT = Path(__file__).resolve().parents[2]
PAIRS = [
    (sandlot.AsyncSandbox, _sync.Sandbox),
    (sandlot.AsyncSandboxClient, _sync.SandboxClient),
    (sandlot.AsyncProcess, _sync.Process),
]
RENAMED = {"aclose": "close"}
NOT_FOR_USERS = {"for_one", "close_if_unused"}


def generate(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    script = root / "scripts/gen_sync.py"
    return subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what the generator reads, to be changed."""
    for name in ("scripts/gen_sync.py", *(f"src/sandlot/{path.name}" for path in SOURCES)):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((ROOT / name).read_text())
    return tmp_path


SOURCES = sorted((ROOT / "src/sandlot").glob("*.py"))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_what_is_committed_is_fresh() -> None:
    done = generate("--check")
    assert done.returncode == 0, done.stderr


def test_a_change_of_the_source_makes_it_stale(copy: Path) -> None:
    change(copy / "src/sandlot/_files.py", "async def make_dir(", "async def make_directory(")
    done = generate("--check", root=copy)
    assert done.returncode == 1
    assert "stale" in done.stderr


def test_a_rule_that_matches_nothing_fails_the_run(copy: Path) -> None:
    change(copy / "src/sandlot/client.py", "async def close_if_unused(", "async def _close_unused(")
    done = generate("--check", root=copy)
    assert done.returncode == 1
    assert "rules that matched nothing: 'close_if_unused'" in done.stderr


def test_a_signature_that_no_rule_covers_fails_the_run(copy: Path) -> None:
    change(
        copy / "src/sandlot/client.py",
        "async def gc(self) -> Sequence[str]:",
        "async def gc(self) -> Sequence[AsyncProcessPool]:",
    )
    done = generate("--check", root=copy)
    assert done.returncode == 1
    assert "gc: no rule makes its signature blocking" in done.stderr


def test_a_docstring_that_speaks_of_async_fails_the_run(copy: Path) -> None:
    change(
        copy / "src/sandlot/client.py",
        '"""Remove what crashed programs left behind;',
        '"""``await`` the removal of what crashed programs left behind;',
    )
    change(copy / "src/sandlot/client.py", "``await`` the", "await the")
    done = generate("--check", root=copy)
    assert done.returncode == 1
    assert "gc: its docstring speaks of async" in done.stderr


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_each_public_name_is_on_both_sides(asynchronous: type, blocking: type) -> None:
    there = {RENAMED.get(name, name) for name in dir(asynchronous) if not name.startswith("_")}
    here = {name for name in dir(blocking) if not name.startswith("_")}
    assert here == there - NOT_FOR_USERS


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_each_method_takes_the_same_parameters(asynchronous: type, blocking: type) -> None:
    for name in dir(asynchronous):
        function = getattr(asynchronous, name)
        if name.startswith("_") or name in NOT_FOR_USERS or not callable(function):
            continue
        twin = getattr(blocking, RENAMED.get(name, name))
        assert (
            inspect.signature(function).parameters.values().__str__()
            == inspect.signature(twin).parameters.values().__str__()
        ), name


@pytest.mark.parametrize("blocking", [pair[1] for pair in PAIRS])
def test_nothing_public_is_a_coroutine_or_speaks_of_one(blocking: type) -> None:
    for name, member in inspect.getmembers(blocking):
        if name.startswith("_"):
            continue
        assert not asyncio.iscoroutinefunction(member), name
        assert not re.search(r"\bawait\b|\basync\b|Async", inspect.getdoc(member) or ""), name
