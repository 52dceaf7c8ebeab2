"""The pytest plugin: records how each behaviour turned out, for the matrix of backends.

    pytest --sandlot-matrix docs/matrix

writes a file for each backend and mode that was tested. As every run of pytest loads this
where Sandlot is installed, it imports nothing of Sandlot until there is something to record.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_PROPERTY = "sandlot-behaviour"

pytest.register_assert_rewrite("sandlot.testing.conformance")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--sandlot-matrix``."""
    parser.getgroup("sandlot").addoption(
        "--sandlot-matrix",
        metavar="DIR",
        help="write how each behaviour of each backend turned out to JSON files in DIR",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the suite's marker, and begin to record if asked to."""
    config.addinivalue_line("markers", "slow: moves much data")
    directory = config.getoption("--sandlot-matrix", None)
    if directory and not hasattr(config, "workerinput"):  # with xdist, the controller writes
        config.pluginmanager.register(_Recorder(Path(directory)), "sandlot-recorder")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note at a behaviour's report what it was and how it turned out."""
    report = yield
    behaviour = getattr(getattr(item, "function", None), "behaviour", None)
    suite = getattr(item, "instance", None)
    if behaviour is not None and suite is not None and suite.in_matrix and call.when == "call":
        report.user_properties.append((_PROPERTY, json.dumps(_outcome(behaviour, suite, report))))
    return report


def _outcome(behaviour: str, suite: Any, report: pytest.TestReport) -> dict[str, str]:
    if suite.gap is not None:
        outcome = suite.gap
    elif not report.passed:
        outcome = "fail"
    else:
        outcome = "unsupported" if suite.unsupported else "pass"
    backend = suite.backend()
    return {
        "behaviour": behaviour,
        "outcome": outcome,
        "backend": backend.name,
        "mode": suite.mode,
        "sdk": getattr(backend, "sdk_version", None) or "",
    }


class _Recorder:
    """Gathers outcomes, and writes them when the run is over."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._found: dict[tuple[str, str, str], dict[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _PROPERTY and report.when == "call":
                found = json.loads(str(value))
                key = found["backend"], found["mode"], found["sdk"]
                self._found.setdefault(key, {})[found["behaviour"]] = found["outcome"]

    def pytest_sessionfinish(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        for (backend, mode, sdk), behaviours in self._found.items():
            record = {
                "backend": backend,
                "mode": mode,
                "sdk": sdk,
                "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                "behaviours": dict(sorted(behaviours.items())),
            }
            path = self._directory / f"{backend}.{mode}.json"
            path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
