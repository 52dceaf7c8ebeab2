from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli_program import Sandlot

from sandlot._languages import LANGUAGES, Language

QUOTES = """it's "quoted" `back` $HOME \\n ''' EOF"""


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.needs_program(program)


PROGRAMS = [
    ("python", "main.py", 'import sys\nprint(TEXT, sys.argv[1:])\nsys.exit(7)\n', "python3"),
    ("js", "main.js", "console.log(TEXT, process.argv.slice(2)); process.exit(7)\n", "node"),
    ("sh", "main.sh", "printf '%s\\n' TEXT \"$@\"; exit 7\n", "sh"),
    ("bash", "main.bash", "[[ 1 ]] && printf '%s\\n' TEXT \"$@\"; exit 7\n", "bash"),
    (
        "rust",
        "main.rs",
        'fn main() { println!("{} {:?}", TEXT, std::env::args().skip(1).collect::<Vec<_>>()); '
        "std::process::exit(7) }\n",
        "rustc",
    ),
    (
        "go",
        "main.go",
        'package main\nimport ("fmt"; "os")\nfunc main() { fmt.Println(TEXT, os.Args[1:]); '
        "os.Exit(7) }\n",
        "go",
    ),
    ("ts", "main.ts", "const s: string = TEXT; console.log(s, process.argv.slice(2)); "
     "process.exit(7)\n", "tsx"),
]  # fmt: skip
# What rustup puts on the PATH finds its toolchain by the home directory.
RUST = {"CARGO_HOME": str(Path.home() / ".cargo"), "RUSTUP_HOME": str(Path.home() / ".rustup")}
PASSED_ON = ("-e", "CARGO_HOME", "-e", "RUSTUP_HOME", "-e", "CARGO_NET_OFFLINE=1")
LITERALS = {
    "sh": "'" + QUOTES.replace("'", "'\\''") + "'",
    "bash": "'" + QUOTES.replace("'", "'\\''") + "'",
    "rust": 'r##"' + QUOTES + '"##',
}


def code_of(language: str, template: str) -> str:
    quoted = '"' + QUOTES.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return template.replace("TEXT", LITERALS.get(language, quoted))


@pytest.mark.parametrize(
    ("language", "name", "template"),
    [pytest.param(*rest, marks=needs(program)) for *rest, program in PROGRAMS],
)
class TestLanguages:
    def test_a_file_runs_with_its_arguments(
        self, sandlot: Sandlot, language: str, name: str, template: str
    ) -> None:
        sandlot.file(name, code_of(language, template))
        done = sandlot(
            "run", "-b", "local", *PASSED_ON, "--file", name, "--", "a b", "-x", env=RUST
        )
        assert done.code == (7 if language != "go" else 1)
        assert QUOTES in done.out
        assert "a b" in done.out
        assert "-x" in done.out

    def test_code_on_standard_input_runs(
        self, sandlot: Sandlot, language: str, name: str, template: str
    ) -> None:
        code = code_of(language, template).encode()
        done = sandlot("run", "-b", "local", *PASSED_ON, "--lang", language, stdin=code, env=RUST)
        assert done.code == (7 if language != "go" else 1)
        assert QUOTES in done.out


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
def test_every_way_to_run_a_file_hands_the_arguments_on(language: Language) -> None:
    script = language.script(from_file=True)
    starts = [part for part in script.split(";") if "exec " in part]
    assert starts
    assert all('"$@"' in part for part in starts), script


def test_a_program_in_a_file_reads_standard_input(sandlot: Sandlot) -> None:
    sandlot.file("up.py", "import sys; print(sys.stdin.read().upper())")
    assert sandlot("run", "-b", "local", "--file", "up.py", stdin=b"abc").out == "ABC\n"


def test_code_from_standard_input_sees_no_input(sandlot: Sandlot) -> None:
    code = b"import sys; print(repr(sys.stdin.read()))"
    assert sandlot("run", "-b", "local", "--lang", "python", stdin=code).out == "''\n"


def test_the_first_line_tells_the_language_before_the_name(sandlot: Sandlot) -> None:
    sandlot.file("odd.sh", "#!/usr/bin/env python3\nprint('python')\n")
    sandlot.file("bare", "#!/bin/sh\necho shell\n")
    assert sandlot("run", "-b", "local", "--file", "odd.sh").out == "python\n"
    assert sandlot("run", "-b", "local", "--file", "bare").out == "shell\n"


def test_the_language_said_outranks_both(sandlot: Sandlot) -> None:
    sandlot.file("odd.sh", "#!/bin/sh\nprint('python')\n")
    assert sandlot("run", "-b", "local", "--file", "odd.sh", "--lang", "py").out == "python\n"


def test_a_dash_is_standard_input_whose_language_its_first_line_tells(sandlot: Sandlot) -> None:
    done = sandlot("run", "-b", "local", "--file", "-", stdin=b"#!/bin/sh\necho hi")
    assert done.out == "hi\n"


def test_code_may_be_long_and_be_no_text(sandlot: Sandlot) -> None:
    code = b"# \xff\xfe\n" + b"x = 1\n" * 100_000 + b"print(x)\n"
    sandlot.file("long.py", b"# -*- coding: latin-1 -*-\n" + code)
    assert sandlot("run", "-b", "local", "--file", "long.py").out == "1\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--file", "notes.txt"], "say it with --lang"),
        (["--file", "notes.txt", "--lang", "pyhton"], "did you mean 'python'?"),
        (["--file", "app.rb", "--deps"], "not for ruby"),
        (["--file", "app.py", "--deps"], "there is no requirements.txt beside app.py"),
        (["--lang", "python", "--deps"], "--deps needs --file"),
        (["--deps", "true"], "name its --file"),
    ],
)
def test_what_cannot_be_told_is_asked_for(sandlot: Sandlot, words: list[str], told: str) -> None:
    for name in ("notes.txt", "app.rb", "app.py"):
        sandlot.file(name, "1")
    done = sandlot("run", "-b", "local", *words)
    assert (done.code, done.out) == (125, "")
    assert told in done.err


class TestDeps:
    @needs("python3")
    def test_python_installs_requirements(self, sandlot: Sandlot) -> None:
        package = sandlot.home / "greeting"
        sandlot.file("greeting/greeting.py", "def hello(): return 'hello from afar'")
        sandlot.file(
            "greeting/pyproject.toml",
            "[project]\nname = 'greeting'\nversion = '1'\n"
            "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n",
        )
        sandlot.file("greeting/backend.py", WHEEL_BACKEND)
        sandlot.file("requirements.txt", f"greeting @ file://{package}\n")
        sandlot.file("app.py", "import greeting, sys; print(greeting.hello(), sys.argv[1])")
        done = sandlot("run", "-b", "local", "--file", "app.py", "--deps", "x")
        assert (done.code, done.out) == (0, "hello from afar x\n"), done.err

    @needs("npm")
    def test_node_installs_the_package(self, sandlot: Sandlot) -> None:
        greeting = sandlot.file("greeting/index.js", "module.exports = 'hello from afar'")
        sandlot.file("greeting/package.json", '{"name": "greeting", "version": "1.0.0"}')
        sandlot.file(
            "package.json", json.dumps({"dependencies": {"greeting": f"file:{greeting.parent}"}})
        )
        sandlot.file("app.js", "console.log(require('greeting'), process.argv[2])")
        done = sandlot("run", "-b", "local", "--file", "app.js", "--deps", "x")
        assert (done.code, done.out) == (0, "hello from afar x\n"), done.err

    @needs("cargo")
    @pytest.mark.parametrize("name", ["app.rs", "src/main.rs"])
    def test_cargo_builds_the_project(self, sandlot: Sandlot, name: str) -> None:
        sandlot.file("Cargo.toml", "[package]\nname = 'app'\nversion = '1.0.0'\nedition = '2021'\n")
        sandlot.file("src/other.rs", 'pub fn word() -> &\'static str { "other" }')
        sandlot.file(
            name,
            'mod other; fn main() { println!("{} {}", other::word(), '
            "std::env::args().nth(1).unwrap()) }",
        )
        done = sandlot("run", "-b", "local", *PASSED_ON, "--file", name, "--deps", "x", env=RUST)
        assert (done.code, done.out) == (0, "other x\n"), done.err

    def test_go_downloads_modules_before_it_builds(self, sandlot: Sandlot) -> None:
        """With a stand-in for go, that shows which files it finds and in which order it is called.

        The program starts where others start, not among its modules.
        """
        sandlot.file("go.mod", "module app\n")
        sandlot.file("go.sum", "sums\n")
        sandlot.file("main.go", "package main\n")
        sandlot.file("bin/go", STAND_IN_FOR_GO).chmod(0o755)
        path = f"PATH={sandlot.home / 'bin'}:{os.environ['PATH']}"
        done = sandlot(
            "run", "-b", "local", "-e", path, "--file", "main.go", "--deps", "--", "a b", "-c"
        )
        assert (done.code, done.out) == (7, "ran: a b -c\n")
        assert done.err == "module app\nsums\n"

    def test_what_cannot_be_installed_is_a_failure(self, sandlot: Sandlot) -> None:
        sandlot.file("requirements.txt", "no-such @ file:///no/such/place\n")
        sandlot.file("app.py", "print('ran')")
        done = sandlot("run", "-b", "local", "--file", "app.py", "--deps")
        assert (done.code, done.out) == (125, "")
        assert "what requirements.txt asks for could not be installed" in done.err


STAND_IN_FOR_GO = r"""#!/bin/sh
case "$1 $2" in
"mod download") cat go.mod go.sum && touch downloaded ;;
"build -o") [ -f downloaded ] && [ "$(cat "$4")" = "package main" ] &&
  printf '#!/bin/sh\n[ ! -f go.mod ] && echo ran: "$@"; exit 7\n' > "$3" && chmod +x "$3" ;;
*) exit 99 ;;
esac
"""

WHEEL_BACKEND = """
import zipfile

FILES = {
    "METADATA": "Metadata-Version: 2.1\\nName: greeting\\nVersion: 1\\n",
    "WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    "RECORD": "",
}


def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "greeting-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{directory}/{name}", "w") as wheel:
        wheel.write("greeting.py")
        for file, text in FILES.items():
            wheel.writestr(f"greeting-1.dist-info/{file}", text)
    return name
"""
