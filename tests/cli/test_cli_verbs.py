from __future__ import annotations

import importlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from cli_program import SOURCES, Sandlot

import sandlot as package
from sandlot.capabilities import Capability
from sandlot.cli._app import ALIASES, VERBS, root
from sandlot.cli._options import _CREATION
from sandlot.types import SandboxSpec

ELSEWHERE = {"env_vars", "labels", "keep", "files", "inherit_env", "app_name"}
"""Fields of a spec that other options set, or that a command line has better words for."""


def test_every_field_of_a_spec_can_be_asked_for() -> None:
    assert set(SandboxSpec.__dataclass_fields__) == set(_CREATION) | ELSEWHERE


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(sandlot: Sandlot, verb: str) -> None:
    done = sandlot(verb, "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: sandlot {verb}")
    assert sandlot(verb, "-h").out == done.out


def test_the_root_lists_every_verb(sandlot: Sandlot) -> None:
    done = sandlot()
    assert done.out == sandlot("--help").out
    for verb in VERBS:
        command = importlib.import_module(f"sandlot.cli.{verb}").command
        assert command.short_help in " ".join(done.out.split())


def test_the_version_is_the_packages(sandlot: Sandlot) -> None:
    assert sandlot("--version").out == f"sandlot {package.__version__}\n"


def test_a_misspelt_verb_is_guessed(sandlot: Sandlot) -> None:
    done = sandlot("lisst")
    assert (done.code, done.out) == (2, "")
    assert "did you mean 'list'?" in done.err


def test_without_click_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError('no', name='click')")
    done = subprocess.run(
        [sys.executable, "-m", "sandlot", "list"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCES}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "pip install click" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_reference_page_is_up_to_date() -> None:
    script = Path(__file__).resolve().parents[2] / "scripts/gen_cli_docs.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


class TestList:
    def test_shows_labels_and_state(self, sandlot: Sandlot) -> None:
        name = sandlot.kept("-l", "env=prod", "-l", "a=b", "--lifetime", "2h")
        (row,) = [line for line in sandlot("list").out.splitlines() if line.startswith(name)]
        assert row.split()[1:3] == ["local", "running"]
        assert row.endswith("yes   a=b env=prod")
        sandlot("destroy", name)

    def test_filters_by_labels(self, sandlot: Sandlot) -> None:
        one = sandlot.kept("-l", "env=prod", "-l", "n=1")
        two = sandlot.kept("-l", "env=prod", "-l", "n=2")
        found = sandlot("list", "-l", "env=prod", "--json").json
        assert [info["id"] for info in found] == [one, two]
        (only,) = sandlot("list", "-l", "env=prod", "-l", "n=2", "-b", "local", "--json").json
        assert only.keys() == {
            "id", "backend", "state", "labels", "created", "expires", "resource_id", "kept",
        }  # fmt: skip
        assert only["id"] == two
        sandlot("destroy", one, two)

    def test_says_that_there_are_none_beside_the_results(self, sandlot: Sandlot) -> None:
        done = sandlot("list", "-b", "local")
        assert (done.code, done.out, done.err) == (0, "", "no sandboxes\n")
        assert sandlot("list", "-b", "local", "--json").json == []

    def test_a_backend_that_cannot_list_is_told_and_named_refused(self, sandlot: Sandlot) -> None:
        done = sandlot("list")
        assert done.code == 0
        assert "the plain backend can't list" in done.err
        assert sandlot("list", "-b", "plain").code == 1


class TestDestroy:
    def test_ends_several_and_reports_the_missing(self, sandlot: Sandlot) -> None:
        one, two = sandlot.kept(), sandlot.kept()
        done = sandlot("destroy", one, "local-000000000000", two)
        assert done.code == 1
        assert sorted(done.out.split()) == sorted([one, two])
        assert "local-000000000000" in done.err

    def test_all_ends_all(self, sandlot: Sandlot) -> None:
        names = {sandlot.kept(), sandlot.kept()}
        assert set(sandlot("destroy", "--all").out.split()) == names
        assert sandlot("destroy", "--all").code == 0

    @pytest.mark.parametrize("words", [[], ["x", "--all"], ["x", "-l", "a=b"]])
    def test_wants_to_know_what(self, sandlot: Sandlot, words: list[str]) -> None:
        assert sandlot("destroy", *words).code == 2


class TestCp:
    def test_files_go_both_ways(self, sandlot: Sandlot) -> None:
        name = sandlot.kept()
        data = bytes(range(256)) * 1000
        sandlot.file("data", data)
        for words in (["data", f"{name}:/new/data"], [f"{name}:/new/data", "back"]):
            done = sandlot("cp", *words)
            assert (done.code, done.out, done.err) == (0, "", "")
        assert (sandlot.home / "back").read_bytes() == data
        sandlot("destroy", name)

    def test_directories_follow_the_rules_of_cp(self, sandlot: Sandlot) -> None:
        name = sandlot.kept()
        sandlot.file("tree/leaf", "leaf")
        sandlot.file("dash:colon", "odd")
        for source, target in [
            ("tree", "/made"),          # is not there: becomes it
            ("tree", "/made"),          # is there: goes into it
            ("tree/.", "/poured"),
            ("tree/leaf", "/slash/"),
            ("./dash:colon", "/made"),
        ]:  # fmt: skip
            assert sandlot("cp", source, f"{name}:{target}").code == 0
        found = sandlot("exec", name, "find . -type f | sort").out.split()
        assert found == [
            "./made/dash:colon", "./made/leaf", "./made/tree/leaf", "./poured/leaf", "./slash/leaf",
        ]  # fmt: skip
        assert sandlot("cp", f"{name}:/made", "out").code == 0
        assert sandlot("cp", f"{name}:/made/tree", "out").code == 0
        assert sandlot("cp", f"{name}:/made/tree/.", "poured").code == 0
        assert sandlot("cp", f"{name}:/made/leaf", ".").code == 0
        out = sorted(
            str(path.relative_to(sandlot.home))
            for path in sandlot.home.rglob("*")
            if path.is_file()
        )
        assert out == [
            "dash:colon", "leaf", "out/dash:colon", "out/leaf", "out/tree/leaf", "poured/leaf",
            "tree/leaf",
        ]  # fmt: skip
        sandlot("destroy", name)

    def test_goes_from_sandbox_to_sandbox(self, sandlot: Sandlot) -> None:
        one, two = sandlot.kept(), sandlot.kept()
        sandlot(
            "exec", one, "mkdir -p tree/deep; echo leaf > tree/deep/leaf; chmod 755 tree/deep/leaf"
        )
        assert sandlot("cp", f"{one}:/tree", f"{two}:/copy").code == 0
        assert sandlot("cp", f"{one}:/tree/deep/leaf", f"{two}:/copy").code == 0
        done = sandlot("exec", two, "find copy -type f -perm 755 | sort; cat copy/leaf")
        assert done.out.split() == ["copy/deep/leaf", "copy/leaf", "leaf"]
        assert sandlot("cp", f"{one}:/tree/deep/leaf", "leaf").code == 0
        assert os.access(sandlot.home / "leaf", os.X_OK)
        sandlot("destroy", one, two)

    @pytest.mark.parametrize(
        ("words", "code", "told"),
        [
            (["a", "b"], 2, "neither side is in a sandbox"),
            (["missing", "local-000000000000:/x"], 2, "there is no missing here"),
            (["local-000000000000:", "x"], 2, "which path"),
            (["local-000000000000:/x", "no/such/place"], 2, "there is no directory no/such"),
            (["local-000000000000:/x", "x"], 1, "local-000000000000"),
        ],
    )
    def test_says_what_is_wrong(
        self, sandlot: Sandlot, words: list[str], code: int, told: str
    ) -> None:
        done = sandlot("cp", *words)
        assert done.code == code
        assert told in done.err

    def test_a_place_that_cannot_be_written_is_a_failure(self, sandlot: Sandlot) -> None:
        name = sandlot.kept()
        sandlot("exec", name, "echo x > x")
        done = sandlot("cp", f"{name}:/x", "/proc/sandlot")
        assert done.code == 1
        assert done.err.startswith("error: ")
        sandlot("destroy", name)

    def test_a_missing_source_is_a_failure(self, sandlot: Sandlot) -> None:
        name = sandlot.kept()
        done = sandlot("cp", f"{name}:/missing", "x")
        assert done.code == 1
        assert "/missing" in done.err
        assert not (sandlot.home / "x").exists()
        sandlot("destroy", name)


class TestBackends:
    def test_says_what_can_be_used(self, sandlot: Sandlot) -> None:
        rows = [line.split() for line in sandlot("backends").out.splitlines()]
        assert ["plain", "yes", "none", "-"] in rows
        assert sandlot("providers").out == sandlot("backends").out

    def test_shows_what_each_can_do(self, sandlot: Sandlot) -> None:
        rows = sandlot("backends", "--capabilities").out.splitlines()
        assert rows[0].split() == ["CAPABILITY", "local", "plain"]
        assert [row.split()[0] for row in rows[1:]] == [str(one) for one in Capability]
        assert "stream       yes    -" in rows

    def test_json_says_it_all(self, sandlot: Sandlot) -> None:
        (plain,) = sandlot("backends", "-b", "plain", "--json").json
        assert plain == {
            "name": "plain", "usable": True, "reason": None, "isolation": "none",
            "capabilities": [], "accepts": ["labels"],
        }  # fmt: skip

    def test_a_backend_that_cannot_be_loaded_says_why(
        self, sandlot: Sandlot, tmp_path: Path
    ) -> None:
        info = tmp_path / "broken-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[sandlot.backends]\nbroken = no_such_module:B\n")
        env = {"PYTHONPATH": f"{sandlot.env['PYTHONPATH']}{os.pathsep}{tmp_path}"}
        (row,) = [
            line for line in sandlot("backends", env=env).out.splitlines() if "broken" in line
        ]
        assert "no_such_module" in row
        assert sandlot("doctor", "-b", "broken", env=env).code == 1
        assert sandlot("test", "-b", "broken", env=env).code == 1
        done = sandlot("list", "-b", "broken", env=env)
        assert done.code == 1
        assert "pip install" in done.err


class TestDoctor:
    def test_tries_out_what_holds(self, sandlot: Sandlot) -> None:
        done = sandlot("doctor", "-b", "local")
        assert done.code == 0
        assert "helper:" in done.out
        assert "allow_internet" in done.out

    def test_json_says_how_far_each_holds(self, sandlot: Sandlot) -> None:
        found = sandlot("doctor", "-b", "local", "--json").json
        assert found.keys() == {"sandlot", "python", "platform", "state_dir", "helper", "backends"}
        (local,) = found["backends"]
        assert local["enforcement"]["allow_internet"]["level"] == "none"

    def test_an_unknown_backend_is_an_error(self, sandlot: Sandlot) -> None:
        assert sandlot("doctor", "-b", "locl").code == 1


class TestTest:
    def test_makes_a_round_trip_everywhere(self, sandlot: Sandlot) -> None:
        done = sandlot("test")
        assert done.code == 0
        rows = [line.split()[:2] for line in done.out.splitlines()]
        assert rows == [["BACKEND", "RESULT"], ["local", "ok"], ["plain", "ok"]]

    def test_json_gives_seconds(self, sandlot: Sandlot) -> None:
        (trip,) = sandlot("test", "-b", "local", "--json").json
        assert (trip["backend"], trip["ok"], trip["error"]) == ("local", True, None)
        assert list(trip["seconds"]) == ["create", "exec", "write", "read", "destroy"]


def test_gc_on_a_clean_machine_finds_nothing(sandlot: Sandlot) -> None:
    name = sandlot.kept()
    done = sandlot("gc")
    assert (done.code, done.out) == (0, "")
    assert sandlot.left() == [name]  # kept on purpose
    sandlot("destroy", name)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_ask_the_program(sandlot: Sandlot, shell: str) -> None:
    done = sandlot("completion", shell)
    assert done.code == 0
    assert "_SANDLOT_COMPLETE" in done.out


def test_completion_knows_verbs_options_and_backends(sandlot: Sandlot) -> None:
    def complete(words: str, index: int) -> str:
        env = {
            "_SANDLOT_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(index),
        }
        return sandlot(env=env).out

    assert "plain,destroy" in complete("sandlot de", 1)
    assert "plain,--download" in complete("sandlot run --do", 2)
    assert "plain,local" in complete("sandlot run -b lo", 3)


def test_the_installed_program_is_this_one() -> None:
    (script,) = [
        point
        for point in importlib.metadata.distribution("sandlot").entry_points
        if point.group == "console_scripts"
    ]
    assert (script.name, script.value) == ("sandlot", "sandlot.cli:main")


def test_aliases_lead_to_verbs() -> None:
    context = click.Context(root)
    for alias, verb in ALIASES.items():
        assert root.get_command(context, alias) is root.get_command(context, verb)
