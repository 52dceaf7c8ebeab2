from __future__ import annotations

import os
import subprocess
import sys

import pytest
from cli_program import HUNG, SOURCES, Sandlot


def test_one_word_is_a_line_for_the_shell(sandlot: Sandlot) -> None:
    done = sandlot("run", "-b", "local", "echo hi | tr a-z A-Z; exit 3")
    assert (done.code, done.out, done.err) == (3, "HI\n", "")


def test_several_words_reach_the_program_exactly(sandlot: Sandlot) -> None:
    words = ["a  b", "", "it's", "$HOME", "*", 'say "hi"', "new\nline", "-b"]
    code = "import sys; print(sys.argv[1:])"
    done = sandlot("run", "-b", "local", "--", "python3", "-c", code, *words)
    assert (done.code, done.out) == (0, f"{words}\n")


def test_options_may_stand_after_the_command(sandlot: Sandlot) -> None:
    assert sandlot("run", "echo $X", "--provider", "local", "-e", "X=1").out == "1\n"


def test_both_streams_keep_apart_and_keep_every_byte(sandlot: Sandlot) -> None:
    line = r"printf '\000\377\r\n\303'; printf '\376err' >&2"
    done = sandlot("run", "-b", "local", line)
    assert (done.stdout, done.stderr) == (b"\x00\xff\r\n\xc3", b"\xfeerr")


def test_output_comes_while_the_program_runs(sandlot: Sandlot) -> None:
    process = sandlot.start("run", "-b", "local", "echo ready; read word; echo got $word")
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdin.write(b"this\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"got this\n"
    assert process.wait(HUNG) == 0


def test_input_and_output_larger_than_any_buffer_pass_through(sandlot: Sandlot) -> None:
    data = bytes(range(256)) * 40_000
    done = sandlot("run", "-b", "local", "cat", stdin=data)
    assert done.code == 0
    assert done.stdout == data


def test_a_regular_file_can_be_the_input(sandlot: Sandlot) -> None:
    path = sandlot.file("input", "from a file\n" * 50_000)
    with path.open("rb") as file:
        process = sandlot.start("run", "-b", "local", "wc -l", stdin=file)
        out, _ = process.communicate(timeout=HUNG)
    assert out.split() == [b"50000"]


def test_input_that_never_ends_does_not_hold_the_end_up(sandlot: Sandlot) -> None:
    process = sandlot.start("run", "-b", "local", "echo done")
    assert process.wait(HUNG) == 0  # while its stdin is open


def test_a_program_that_takes_no_more_input_is_no_failure(sandlot: Sandlot) -> None:
    done = sandlot("run", "-b", "local", "head -c 3", stdin=b"abc" * 1_000_000)
    assert (done.code, done.out, done.err) == (0, "abc", "")


def test_closed_standard_streams_are_survived(sandlot: Sandlot) -> None:
    target = sandlot.home / "proof"
    line = " ".join(sandlot.command("run", "-b", "local", f"'cat; echo x; echo y > {target}'"))
    subprocess.run(
        ["sh", "-c", f"{line} <&- >&-"], env=sandlot.env, timeout=HUNG, check=True, cwd=sandlot.home
    )
    assert target.read_text() == "y\n"


@pytest.mark.parametrize(("number", "code"), [(9, 137), (15, 143), (11, 139)])
def test_a_signal_that_ends_the_program_becomes_128_and_its_number(
    sandlot: Sandlot, number: int, code: int
) -> None:
    assert sandlot("run", "-b", "local", f"kill -{number} $$").code == code


def test_a_timeout_kills_the_program_and_exits_with_124(sandlot: Sandlot) -> None:
    done = sandlot("run", "-b", "local", "-t", "0.5s", "echo before; sleep 600 & sleep 600")
    assert (done.code, done.out) == (124, "before\n")
    assert "killed after 0.5 s" in done.err


def test_variables_are_set_passed_on_or_refused(sandlot: Sandlot) -> None:
    line = "echo $A-$B-$C"
    env = {"B": "here", "C": "not passed on"}
    done = sandlot("run", "-b", "local", "-e", "A=x=y", "-e", "B", line, env=env)
    assert done.out == "x=y-here-\n"
    refused = sandlot("run", "-b", "local", "-e", "NOT_SET_HERE", line)
    assert refused.code == 125
    assert "NOT_SET_HERE is not set" in refused.err


def test_the_working_directory_is_the_one_asked_for(sandlot: Sandlot) -> None:
    directory = sandlot.home / "work dir"
    directory.mkdir()
    done = sandlot("run", "-b", "local", "-w", str(directory), "pwd; echo kept > f")
    assert done.out == f"{directory}\n"
    assert (directory / "f").read_text() == "kept\n"


def test_files_and_directories_are_copied_in_and_out(sandlot: Sandlot) -> None:
    sandlot.file("data.txt", "some data\n")
    sandlot.file("tree/deep/leaf", "leaf\n")
    done = sandlot(
        "run", "-b", "local",
        "--upload", "data.txt", "--upload", "data.txt:/in/other.txt", "--upload", "tree",
        "--download", "out.txt", "--download", "/made:copied",
        "mkdir made; cat data.txt in/other.txt tree/deep/leaf | tee out.txt made/inner; exit 4",
    )  # fmt: skip
    assert (done.code, done.err) == (4, "")
    text = "some data\nsome data\nleaf\n"
    assert done.out == text
    assert (sandlot.home / "out.txt").read_text() == text
    assert (sandlot.home / "copied/inner").read_text() == text


def test_what_cannot_be_downloaded_is_a_failure(sandlot: Sandlot) -> None:
    done = sandlot("run", "-b", "local", "--download", "/not-made", "echo ran")
    assert (done.code, done.out) == (125, "ran\n")
    assert "/not-made" in done.err


def test_json_is_one_object_with_stable_keys(sandlot: Sandlot) -> None:
    done = sandlot(
        "run", "-b", "local", "--json", "echo out; echo err >&2; cat; exit 5", stdin=b"in"
    )
    assert done.code == 5
    assert done.json.keys() == {
        "exit_code", "stdout", "stderr", "duration", "timed_out", "truncated", "sandbox_id",
        "backend",
    }  # fmt: skip
    assert (done.json["exit_code"], done.json["stdout"]) == (5, "out\nin")
    assert (done.json["stderr"], done.json["backend"]) == ("err\n", "local")


def test_a_kept_sandbox_is_used_again_and_destroyed(sandlot: Sandlot) -> None:
    done = sandlot("run", "-b", "local", "--keep", "-e", "COLOUR=red", "echo 1 > state")
    name = done.err.split()[2]
    assert f"sandlot destroy {name} -b local" in done.err
    found = sandlot("exec", name, "cat state; echo $COLOUR; exit 6")
    assert (found.code, found.out) == (6, "1\nred\n")
    assert sandlot("destroy", name).out == f"{name}\n"
    assert sandlot("exec", name, "-b", "local", "true").code == 125


def test_reuse_finds_by_labels_and_keeps_what_it_found(sandlot: Sandlot) -> None:
    words = ("run", "-b", "local", "-l", "project=web", "--reuse")
    first = sandlot(*words, "echo once >> log; wc -l < log")
    second = sandlot(*words, "echo twice >> log; wc -l < log")
    assert (first.out.strip(), second.out.strip()) == ("1", "2")
    assert "is kept" in first.err
    assert second.err == ""
    (left,) = sandlot("list", "-b", "local", "-l", "project=web", "--json").json
    told = sandlot(*words, "-w", str(sandlot.home), "true")
    assert "no effect of --workdir" in told.err
    assert sandlot("destroy", "-l", "project=web").out == f"{left['id']}\n"


def test_reuse_leaves_no_program_files_behind(sandlot: Sandlot) -> None:
    sandlot.file("x.py", "print('ran')")
    words = ("run", "-b", "local", "-l", "a=b", "--reuse")
    assert sandlot(*words, "--file", "x.py").out == "ran\n"
    assert sandlot(*words, "ls -A $TMPDIR").out == ""
    sandlot("destroy", "-l", "a=b")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "-b", "locl", "true"], "did you mean 'local'?"),
        (["run", "-b", "local", "--lable", "a=b", "true"], "did you mean --label?"),
        (["run", "-b", "local", "ls", "-la"], "put -- before"),
        (["run", "-b", "local", "python3", "-c", "1"], "put -- before"),
        (["run", "-b", "local"], "name a command, --file or --lang"),
        (["run", "-b", "local", ""], "nothing to run"),
        (["run", "true"], "SANDLOT_BACKEND"),
        (["run", "-b", "local", "--file", "missing.py"], "missing.py: No such file"),
        (["run", "-b", "local", "--upload", "missing", "true"], "there is no missing here"),
        (["run", "-b", "local", "--download", "/f:no/such/f", "true"], "there is no directory"),
        (["run", "-b", "local", "-t", "soon", "true"], "not a duration"),
        (["run", "-b", "local", "-t", "-1", "true"], "must be above 0"),
        (["run", "-b", "local", "--reuse", "true"], "name one with -l"),
        (["run", "-b", "local", "-l", "novalue", "true"], "expected KEY=VALUE"),
        (["run", "-b", "local", "--gpu", "H100", "true"], "does not honour gpu"),
        (["run", "-b", "local", "--no-internet", "true"], "--best-effort goes on without it"),
        (["run", "-b", "local", "-T", "true"], "not a terminal"),
        (["run", "-b", "local", "--", "no-such-program", "x"], "no-such-program"),
        (["run", "-b", "plain", "--keep", "true"], "reconnect"),
        (["exec", "local-000000000000", "true"], "sandlot list"),
    ],
)
def test_what_makes_no_sense_is_told_with_a_hint(
    sandlot: Sandlot, words: list[str], told: str
) -> None:
    done = sandlot(*words)
    assert (done.code, done.out) == (125, "")
    assert done.err.startswith("error: ")
    assert told in done.err


def test_best_effort_says_what_it_goes_on_without(sandlot: Sandlot) -> None:
    done = sandlot("run", "-b", "local", "--best-effort", "--no-internet", "--gpu", "x", "echo on")
    assert (done.code, done.out) == (0, "on\n")
    assert "allow_internet" in done.err
    assert "gpu" in done.err


def test_the_variable_names_the_backend(sandlot: Sandlot) -> None:
    assert sandlot("run", "echo hi", env={"SANDLOT_BACKEND": "local"}).out == "hi\n"


def test_debugging_shows_where_an_error_arose(sandlot: Sandlot) -> None:
    done = subprocess.run(
        sandlot.command("run", "-b", "locl", "true"),
        env=sandlot.env | {"SANDLOT_DEBUG": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" in done.stderr
    assert "error: there is no backend 'locl'" in done.stderr


class TestWithoutCapabilities:
    """On a backend that can do no more than it must."""

    def test_output_is_shown_at_the_end(self, sandlot: Sandlot) -> None:
        done = sandlot("run", "-b", "plain", "echo hi; echo err >&2; exit 3")
        assert (done.code, done.out, done.err) == (3, "hi\n", "err\n")

    def test_code_runs(self, sandlot: Sandlot) -> None:
        done = sandlot(
            "run", "-b", "plain", "--lang", "python", "a", stdin=b"import sys;print(sys.argv[1])"
        )
        assert done.out == "a\n"

    def test_input_is_refused_before_anything_starts(self, sandlot: Sandlot) -> None:
        log = sandlot.home / "log"
        done = sandlot("run", "-b", "plain", "cat", stdin=b"lost?", env={"PLAIN_LOG": str(log)})
        assert done.code == 125
        assert "the plain backend can't pass input on" in done.err
        assert "local" in done.err
        assert not log.exists()


def test_the_help_loads_neither_event_loop_nor_tables_nor_backends() -> None:
    code = (
        "import sys; from sandlot.cli import main; main(['--help']); "
        "print(sorted({'asyncio', 'rich', 'sqlite3', 'sandlot.client'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
