"""The resident helper: the init program of one sandbox, and how to talk to it.

There are two of it, doing the same: a compiled one (``init.c`` and its neighbours), and
``twin.py`` for where no compiler was. PROTOCOL.md says what they do.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
NATIVE = _HERE / "bin" / "sandlot-init"
TWIN = _HERE / "twin.py"


def command() -> list[str]:
    """Return the argv that starts the helper.

    The compiled one if it is there and runs, else its Python twin. The environment variable
    ``SANDLOT_HELPER`` forces one: ``c`` or ``python``.

    Raises:
        FileNotFoundError: If the forced one is not there, or does not run here.
        ValueError: If the variable says something else.
    """
    choice = os.environ.get("SANDLOT_HELPER", "")
    if choice not in ("", "c", "python"):
        raise ValueError(f"SANDLOT_HELPER={choice!r}: it can be 'c' or 'python'")
    if choice != "python" and _runs(str(NATIVE)):
        return [str(NATIVE)]
    if choice == "c":
        raise FileNotFoundError(f"SANDLOT_HELPER=c, but {NATIVE} is missing or can't run here")
    return [sys.executable, "-I", "-S", str(TWIN)]


@functools.cache
def _runs(path: str) -> bool:
    """Whether a program can be executed here: a wheel of another machine's kind can't."""
    if not os.access(path, os.X_OK):
        return False
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    try:
        pid = os.posix_spawn(path, [path, "--version"], {}, file_actions=null)
    except OSError:
        return False
    return os.waitpid(pid, 0)[1] == 0
