"""What all tests share: coroutine tests, a state directory of their own, a watch on leaks."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from requirements import require_program

# Set before anything is imported that may read it; no test may touch the user's own records.
_STATE = tempfile.mkdtemp(prefix="sandlot-test-")
os.environ["SANDLOT_STATE_DIR"] = _STATE
atexit.register(shutil.rmtree, _STATE, ignore_errors=True)

_RESIDENT = ("sandlot-local",)
"""Beginnings of the names of threads that are shared and live as long as the program."""


_BRIEF = ("io.", "os.")
"""Calls that look at one local file: shorter than the hop to a thread would be. Whoever
moves much by them takes a thread; that the loop stays free is measured where it matters."""


def pytest_configure(config: pytest.Config) -> None:
    """Take the plugin from the source tree where the package is not installed."""
    if not config.pluginmanager.has_plugin("sandlot") and not config.pluginmanager.has_plugin(
        "sandlot.testing.plugin"
    ):
        config.pluginmanager.import_plugin("sandlot.testing.plugin")


@pytest.fixture(autouse=True)
def programs(request: pytest.FixtureRequest) -> None:
    """See to it that what ``needs_program`` names is there."""
    for mark in request.node.iter_markers("needs_program"):
        require_program(*mark.args)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine tests, each in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(autouse=True)
def nothing_blocks() -> Iterator[None]:
    """No part of Sandlot may make a blocking call in an event loop."""
    from blockbuster import blockbuster_ctx

    # The suite itself may: it looks at files here, and nothing else waits meanwhile.
    with blockbuster_ctx("sandlot", excluded_modules=["sandlot.testing"]) as watch:
        for name, function in watch.functions.items():
            if name.startswith(_BRIEF):
                function.deactivate()
        yield


@pytest.fixture(scope="session")
def bridge() -> None:
    """Start the thread of the blocking API, which lives as long as the program."""
    from sandlot._bridge import BRIDGE

    BRIDGE.call(bool)


@pytest.fixture(scope="module", autouse=True)
def nothing_leaks(bridge: None) -> Iterator[None]:
    """No process, thread or descriptor may be left when a module's tests are done."""
    before = _held()
    yield
    deadline = time.monotonic() + 10
    while (left := _more(_held(), before)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"left behind: {left}"


def _held() -> dict[str, set[str]]:
    return {"processes": _children(), "threads": _threads(), "descriptors": _descriptors()}


def _more(now: dict[str, set[str]], before: dict[str, set[str]]) -> dict[str, set[str]]:
    return {kind: more for kind in now if (more := now[kind] - before[kind])}


def _threads() -> set[str]:
    return {
        f"{thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if not thread.name.startswith(_RESIDENT)
    }


def _children() -> set[str]:
    if not sys.platform.startswith("linux"):
        return set()
    found = set()
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            name, _, rest = (directory / "stat").read_text().rpartition(")")
        except OSError:
            continue  # it has ended meanwhile
        if int(rest.split()[1]) == os.getpid():
            found.add(f"{name})")
    return found


def _descriptors() -> set[str]:
    if not sys.platform.startswith("linux"):
        return set()
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(path)
        except OSError:
            continue  # the one that lists the directory
        found.add(f"{path.name} -> {target}")
    return found
