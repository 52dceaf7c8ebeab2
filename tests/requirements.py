"""The programs that tests need besides Python: skip without them at home, fail in CI.

Run as a program, it prints the Debian packages of those that are missing, for ``.ci/install``.
"""

from __future__ import annotations

import os
import shutil

PROGRAMS = {
    "bash": "bash",
    "busybox": "busybox-static",
    "cargo": "cargo",
    "cc": "gcc libc6-dev",
    "dash": "dash",
    "git": "git",
    "go": "golang-go",
    "node": "nodejs",
    "python3": "python3",
    "sh": "dash",
    "npm": "npm",
    "pgrep": "procps",
    "rustc": "rustc",
    "tar": "tar",
}
"""What tests may ask for, with the Debian packages that hold it."""
NPM_PROGRAMS = {"tsx": "tsx"}
"""What tests may ask for, with the npm packages that hold it."""


def require_program(name: str, apt: str | None = None) -> str:
    """Return the path of a program that a test can't do without.

    Where it is missing the test is skipped, saying what to install; in CI, which installs
    everything in `PROGRAMS`, it fails: a check that is not made there is not made at all.
    """
    import pytest

    if path := shutil.which(name):
        return path
    if name in NPM_PROGRAMS:
        reason = f"needs {name}: npm install --global {NPM_PROGRAMS[name]}"
    else:
        reason = f"needs {name}: apt-get install {apt or PROGRAMS[name]}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def missing_packages() -> list[str]:
    """Return the Debian packages of the programs that are not here."""
    return [package for name, package in PROGRAMS.items() if shutil.which(name) is None]


if __name__ == "__main__":
    print(*missing_packages())
