"""Which shell and which interpreter of this host local sandboxes use."""

from __future__ import annotations

import os
import shutil
from typing import TypeAlias

Programs: TypeAlias = tuple[tuple[str, ...], str | None]
"""What runs a shell line, and Python."""

_known: dict[str, Programs] = {}


def known(path: str) -> Programs | None:
    """Return what `look_for` has found on this PATH before."""
    return _known.get(path)


def look_for(path: str) -> Programs:
    """Look through a PATH; may start a process, so not in an event loop's thread."""
    if path not in _known:
        shell = shutil.which("bash", path=path) or "/bin/sh"
        _known[path] = (shell, "-c"), _python(path)
    return _known[path]


def _python(path: str) -> str | None:
    """Return the interpreter that ``python3`` leads to.

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
