"""The program ``sandlot``: one module a verb, imported when it is used."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code.

    Args:
        arguments: Omitted: those of this process.
    """
    _claim_standard_descriptors()
    try:
        from sandlot.cli._app import invoke
    except ModuleNotFoundError as exc:
        if exc.name != "click":
            raise
        print("error: the command line needs click\nhint: pip install click", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return invoke(arguments)


def _claim_standard_descriptors() -> None:
    """Put /dev/null where the caller closed standard input, output or error.

    Else the next thing opened gets that number, and a program's output is written into,
    say, the connection to its sandbox.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            os.dup2(opened, descriptor)
            if opened != descriptor:
                os.close(opened)
            setattr(sys, name, os.fdopen(descriptor, "r" if descriptor == 0 else "w"))
