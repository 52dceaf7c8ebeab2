"""The documentation is true: its examples run, and nothing public is left out."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import blocks
import pytest

import sandlot
from sandlot.types import SandboxSpec

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
)
BLOCKS = [block for page in PAGES for block in blocks.blocks(ROOT / page, page)]
RUNNABLE = sorted(
    {block.page for block in BLOCKS if block.language in blocks.RUN and block.no_run is None}
)


def readme_command(number: int) -> str:
    """Return one of the README's two commands, as CI finds it."""
    shell = f"source .ci/env; readme_command {number}"
    done = subprocess.run(
        ["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def output_of(command: Sequence[str], directory: Path) -> str:
    """Run a command as a newcomer would, in a directory and a state of its own."""
    programs = Path(sys.executable).parent  # not resolved: a virtual environment's own
    environment = {
        "HOME": str(directory),
        "LANG": "C.UTF-8",
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "PYTHONWARNINGS": "error",
        "SANDLOT_STATE_DIR": str(directory / ".state"),
    }
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Exception ignored" not in done.stdout, done.stdout
    return done.stdout


@pytest.mark.parametrize("page", RUNNABLE)
def test_every_example_of_a_page_runs_and_prints_what_is_shown(page: str, tmp_path: Path) -> None:
    printed = output_of([sys.executable, blocks.__file__, str(ROOT / page)], tmp_path)
    assert re.search(r"^[1-9]\d* examples ran$", printed, re.MULTILINE), printed


@pytest.mark.parametrize(
    ("program", "last_line"),
    [
        ("agent_loop.py", "    return sum(values) / len(values)"),
        ("parallel.py", "{'right': 10, 'too slow': 5, 'wrong': 5} in ..."),
        ("streaming.py", "exit code 0"),
    ],
)
def test_an_example_program_comes_to_its_end(program: str, last_line: str, tmp_path: Path) -> None:
    printed = output_of([sys.executable, str(ROOT / "examples" / program)], tmp_path)
    assert blocks.matches(last_line, printed.splitlines()[-1])


def test_the_readme_shows_the_drawing_that_its_first_command_makes(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = readme_command(1).partition(".venv/bin/")[2].partition(".venv/bin/")[2]
    printed = output_of(["bash", "-c", command], tmp_path)
    assert printed.endswith("14 cities drawn to daylight.svg\n")
    drawing = (tmp_path / "daylight.svg").read_bytes()
    assert drawing == (ROOT / "docs/daylight.svg").read_bytes()


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_run_or_says_why_not(block: blocks.Block) -> None:
    assert block.language in (*blocks.RUN, *blocks.SHOWN), (
        f"{block}: write python or console, which are run, or one of {blocks.SHOWN}"
    )


def test_readme_begins_with_the_two_commands_that_ci_runs() -> None:
    first, second = readme_command(1), readme_command(2)
    assert first.startswith("python3 -m venv .venv")
    assert ".venv/bin/sandlot run" in first
    assert second.startswith("python3 -m venv .venv")
    assert second.rstrip().endswith("-m pytest")
    for step, number in (("install", 1), ("test", 2)):
        assert f"\nrun_readme_command {number}\n" in (ROOT / ".ci" / step).read_text()


def test_every_public_name_is_in_the_reference() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
    documented = set(re.findall(r"^::: sandlot\.(?:\w+\.)*(\w+)$", pages, re.MULTILINE))
    missing = set(sandlot.__all__) - {"__version__"} - documented
    assert not missing


def test_every_option_of_a_sandbox_is_documented() -> None:
    page = (ROOT / "docs/guides/options.md").read_text()
    missing = [
        field.name for field in dataclasses.fields(SandboxSpec) if f"| `{field.name}` |" not in page
    ]
    assert not missing


def test_every_guide_and_concept_can_be_found_from_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page not in menu] == []


def test_relative_links_of_the_readme_lead_somewhere() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
        links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text())
        assert [link for link in links if not (ROOT / link).exists()] == []


# The checks above are only as good as what finds and compares the examples.


def page_of(text: str, tmp_path: Path) -> Path:
    page = tmp_path / "page.md"
    page.write_text(text)
    return page


def test_an_example_that_prints_something_else_fails(tmp_path: Path) -> None:
    page = page_of("```python\nprint(1)\n```\n\n```text\n2\n```\n", tmp_path)
    with pytest.raises(blocks.Failure):
        blocks.Reader().follow(page)


def test_a_command_that_prints_something_else_fails(tmp_path: Path) -> None:
    page = page_of("```console\n$ echo one \\\n  two\none three\n```\n", tmp_path)
    with pytest.raises(blocks.Failure):
        blocks.Reader().follow(page)


def test_a_command_that_fails_silently_fails(tmp_path: Path) -> None:
    page = page_of("```console\n$ false\n```\n", tmp_path)
    with pytest.raises(blocks.Failure):
        blocks.Reader().follow(page)


def test_examples_of_a_page_share_names_and_may_await(tmp_path: Path) -> None:
    text = (
        "```python\nimport asyncio\nx = 1\nawait asyncio.sleep(0)\n```\n"
        '~~~python title="not run: shown only"\n1 / 0\n~~~\n'
        "- a list\n\n    ```python\n    print(x)\n    ```\n    ```text\n    1\n    ```\n"
        "```console\n$ printf 'a\\nb\\nc\\n'\na\n...\n$ echo d\nd\n```\n"
    )
    assert blocks.Reader().follow(page_of(text, tmp_path)) == 3


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\n...\nb", "a\nb\n", True),
        ("a\n...\nb", "a\n1\n2\nb\n", True),
        ("a ... b", "a 1 b", True),
        ("...", "", True),
        ("a\n...", "b\na\n", False),
        ("a", "a\nb", False),
        ("a.b", "axb", False),
    ],
)
def test_dots_stand_for_what_may_differ(shown: str, printed: str, same: bool) -> None:
    assert blocks.matches(shown, printed) is same
