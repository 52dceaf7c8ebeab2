"""What holds for the whole tree: light imports, no foreign code in the core, short files."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/sandlot"
NOT_CORE = {"backends", "cli", "testing", "helper"}
"""Parts that may import what others wrote."""

LONGEST = {".py": 500, ".c": 600, ".h": 600}
LONGER = {
    "src/sandlot/_sync.py": "generated",
    "src/sandlot/backends/local/zygote.py": "runs alone, as one file",
    "src/sandlot/helper/twin.py": "runs alone, as one file",
    "tests/helper/test_helper_client.py": "a list: one misfortune after the other",
    "tests/local/test_code_server.py": "a list: one way to differ after the other",
    "tests/local/test_tree.py": "a list: one attack after the other",
    "tests/unit/test_parse.py": "a list: one odd text after the other",
}
"""Files that may be longer than `LONGEST`, each with the reason."""

FORBIDDEN = re.compile(
    r"\b(TO[D]O|FIX[M]E|HA[C]K|lore[m] ipsum)\b|/work[/](main|shared)|/tmp/de[v]/"
)
"""Unfinished things, and paths of somebody's own machine."""

CORE = sorted(
    path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in NOT_CORE
)


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imported_names(path: Path) -> set[str]:
    """The top-level packages that a file imports anywhere, also within functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def modules_after(statement: str) -> set[str]:
    """The modules loaded in a fresh interpreter by a statement, beyond those it starts with."""
    program = (
        "import json, sys; before = set(sys.modules)\n"
        f"{statement}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


@pytest.mark.parametrize("path", CORE, ids=module_name)
def test_a_core_module_imports_the_standard_library_alone(path: Path) -> None:
    assert imported_names(path) <= sys.stdlib_module_names | {"sandlot"}


def test_loading_the_whole_core_loads_no_foreign_module() -> None:
    loaded = modules_after("import " + ", ".join(module_name(path) for path in CORE))
    ours_or_python = sys.stdlib_module_names | {"sandlot"}
    assert "sandlot.client" in loaded
    assert {name for name in loaded if name.partition(".")[0] not in ours_or_python} == set()


def test_importing_sandlot_loads_neither_a_loop_nor_a_database() -> None:
    loaded = modules_after("import sandlot")
    assert "sandlot" in loaded
    heavy = {"asyncio", "sqlite3", "subprocess", "socket", "ssl", "threading", "dataclasses"}
    assert loaded & heavy == set()
    assert {name for name in loaded if name.startswith("sandlot.")} == set()


def test_every_public_name_is_there() -> None:
    import sandlot

    assert [name for name in sandlot.__all__ if not hasattr(sandlot, name)] == []
    assert len(set(sandlot.__all__)) == len(sandlot.__all__)


def test_no_file_is_too_long_to_be_read_at_one_sitting() -> None:
    counted = {
        path.relative_to(ROOT).as_posix(): len(path.read_bytes().splitlines())
        for path in tracked_files()
        if path.suffix in LONGEST
    }
    too_long = {name for name, lines in counted.items() if lines > LONGEST[Path(name).suffix]}
    assert too_long == LONGER.keys()


def test_the_tree_holds_no_unfinished_or_stray_text() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in tracked_files()
        for match in FORBIDDEN.finditer(path.read_text(encoding="utf-8", errors="replace"))
    }
    assert found == set()


def test_programs_that_tests_need_are_installed_in_ci() -> None:
    import requirements

    asked_for = {
        str(node.args[0].value)
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "require_program"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    assert asked_for <= requirements.PROGRAMS.keys()
