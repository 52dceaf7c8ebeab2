"""Which shell and which interpreter of this host local sandboxes use."""

from __future__ import annotations

import os
import shutil
from functools import cache


@cache
def shell(path: str) -> tuple[str, ...]:
    """Return what runs a shell line: bash where the host has it, else sh."""
    return shutil.which("bash", path=path) or "/bin/sh", "-c"


@cache
def python(path: str) -> str | None:
    """Return the interpreter that ``python3`` on a PATH leads to; may start a process.

    A version manager's shim costs ten times an interpreter's start, at each call: it is
    asked once where it leads.
    """
    found = shutil.which("python3", path=path) or shutil.which("python", path=path)
    if found is None or not _is_script(found):
        return found
    import subprocess

    try:
        asked = subprocess.run(
            [found, "-c", "import sys; print(sys.executable)"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return found
    return os.fsdecode(asked.stdout).strip() or found


def _is_script(program: str) -> bool:
    try:
        with open(program, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False
