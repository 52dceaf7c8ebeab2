from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helper_peer import BASE_ENV, Helper, StartHelper

from requirements import require_program
from sandlot import helper

SOURCES = Path(helper.__file__).parent


@pytest.fixture(scope="session")
def native_helper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The helper compiled from the sources as they are now, with warnings as errors.

    SANDLOT_TEST_CFLAGS adds flags, such as -fsanitize=address,undefined.
    """
    compiler = require_program("cc")
    flags = shlex.split(os.environ.get("SANDLOT_TEST_CFLAGS", "-O2"))
    binary = tmp_path_factory.mktemp("helper") / "sandlot-init"
    warnings = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    subprocess.run([compiler, *warnings, *flags, "-o", str(binary), *sources], check=True)
    return binary


@pytest.fixture(params=["c", "python"])
def helper_argv(request: pytest.FixtureRequest) -> list[str]:
    """The argv of each helper in turn."""
    if request.param == "c":
        binary: Path = request.getfixturevalue("native_helper")
        wrapper = shlex.split(os.environ.get("SANDLOT_TEST_WRAPPER", ""))
        return [*wrapper, str(binary)]
    return [sys.executable, "-I", "-S", str(helper.TWIN)]


@pytest.fixture
def start_helper(helper_argv: list[str]) -> Iterator[StartHelper]:
    """Starts helpers, and sees to it that none outlives the test."""
    started: list[Helper] = []

    def start(*options: str, env: dict[str, str] | None = None, owner: bool = True) -> Helper:
        one = Helper([*helper_argv, *options], BASE_ENV | (env or {}), owner=owner)
        started.append(one)
        return one

    yield start
    for one in started:
        one.dispose()


@pytest.fixture
def running(start_helper: StartHelper) -> Helper:
    """A helper that has said HELLO."""
    one = start_helper()
    one.hello()
    return one
