"""Compiles the helper into the wheel, which then is for this platform only.

Without a C compiler the wheel is a pure one, in which the helper's Python twin does the work.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HELPER = Path("src/sandlot/helper")
BINARY = HELPER / "bin" / "sandlot-init"
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-s")


class HelperBuildHook(BuildHookInterface[Any]):
    """Builds ``sandlot-init`` for wheels and for editable installs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files are gathered, and name the platform if that worked."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        reason = compile_helper(root)
        if reason:
            print(f"sandlot: a pure wheel, with the Python helper: {reason}", file=sys.stderr)
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(is_static(root / BINARY))}"
        if version != "editable":
            build_data["force_include"][str(root / BINARY)] = "sandlot/helper/bin/sandlot-init"

    def clean(self, versions: list[str]) -> None:
        """Remove what was compiled."""
        (Path(self.root) / BINARY).unlink(missing_ok=True)


def compile_helper(root: Path) -> str:
    """Compile the helper, statically if possible; return why it can't be, or nothing."""
    if not sys.platform.startswith("linux"):
        return f"the helper is for Linux, and this is {sys.platform}"
    compiler = find_compiler()
    if not compiler:
        return "there is no C compiler"
    binary = root / BINARY
    binary.parent.mkdir(exist_ok=True)
    sources = sorted(str(path) for path in (root / HELPER).glob("*.c"))
    # Beside the old one, and then in its place: that one may be running.
    fresh = binary.with_name(f".sandlot-init-{os.getpid()}")
    try:
        for static in (["-static"], []):
            argv = [*compiler, *FLAGS, *static, "-o", str(fresh), *sources]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                fresh.replace(binary)
                return ""
    finally:
        fresh.unlink(missing_ok=True)
    binary.unlink(missing_ok=True)  # what an older source gave would be worse than the twin
    return f"{shlex.join(compiler)} failed:\n{done.stderr}"


def find_compiler() -> list[str]:
    """Return the command of a C compiler, or nothing."""
    choices = [shlex.split(os.environ.get("CC", "")), ["cc"], ["gcc"], ["clang"]]
    return next((choice for choice in choices if choice and shutil.which(choice[0])), [])


def is_static(binary: Path) -> bool:
    """Whether a program runs without a dynamic loader: whether it names none."""
    return b"/ld-" not in binary.read_bytes()[:4096]


def platform_tag(static: bool) -> str:
    """Return this platform's name in wheels; a static program runs with any libc."""
    machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    if not static:
        return machine
    arch = machine.removeprefix("linux_")
    return f"manylinux2014_{arch}.manylinux_2_17_{arch}.musllinux_1_1_{arch}"
