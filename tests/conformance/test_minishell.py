"""The small shell of the simulated backend must do what this machine's sh does."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from sandlot.sandbox import AsyncSandbox
from sandlot.testing import MemoryBackend
from sandlot.testing._minishell import ShellSyntaxError, parse

LINES = [
    "echo a b  c",
    "echo 'a  b' \"c  d\" e\\ f",
    'echo "it\'s" \'say "hi"\' \\$HOME \'$HOME\' "\\$HOME \\\\ \\q"',
    "echo a; echo b",
    "true && echo yes || echo no",
    "false && echo yes || echo no",
    "false || false || echo third",
    "! true; echo $?",
    "! false && echo negated",
    "false; echo $?",
    "x=5; echo $x ${x} \"${x}\" '$x'",
    "x='a  b'; echo $x; echo \"$x\"",
    "x=$(echo inner; exit 3); echo $? $x",
    'x=$(echo a; echo b; echo); echo "[$x]"',
    "echo $(echo $(echo nested)) `echo ticks`",
    'echo ${unset:-default} "${unset:-a b}" [$unset]',
    'x=; echo "[${x:-empty}]"',
    "A=1 sh -c 'echo [$A]'; echo [$A]",
    "A=1; sh -c 'echo [$A]'; export A; sh -c 'echo [$A]'",
    "export A=2; unset A; sh -c 'echo [$A]'",
    "echo out; echo err >&2",
    "echo gone >/dev/null; echo both >&2 2>/dev/null",
    "{ echo 1; echo 2 >&2; } 2>&1 | wc -l | tr ' ' x",
    "echo a > f; echo b >> f; cat f; cat < f; wc -c < f",
    "echo x > no/such/file || echo failed; echo on",
    "(cd /tmp; exit 4); echo $? ; (echo sub)",
    "x=1; (x=2; echo $x); echo $x",
    "x=1; { x=2; }; echo $x",
    "if true; then echo t; fi",
    "if false; then echo t; elif true; then echo e; else echo f; fi",
    "if false; then echo t; else echo f; fi; if false; then :; fi; echo $?",
    "for i in 1 2 '3 4'; do echo \"<$i>\"; done",
    "for i in $(seq 3); do echo $i; done | tr '\\n' ,",
    "while [ ! -e stop ]; do echo once; touch stop; done",
    "until [ -e s ]; do touch s; echo u; done",
    "for i in a b; do if [ $i = a ]; then echo first; fi; done",
    "sh -c 'echo $0 $1 $#; shift; echo \"$1\"' name 'one 1' 'two 2'",
    "sh -c 'for a in \"$@\"; do echo \"<$a>\"; done' x 'a b' c ''",
    "sh -c 'echo \"$@\"' x",
    "sh -c 'exit 7'; echo $?",
    "sh -c 'kill -9 $$'; echo $?",
    "kill -TERM $$; echo not here",
    "exit 3; echo not here",
    "no-such-program 2>/dev/null; echo $?",
    "./no-such-file 2>/dev/null; echo $?",
    "touch f; ./f 2>/dev/null; echo $?",
    "echo 'echo ran $1' > s; chmod 755 s; ./s arg; sh s other; . ./s",
    "exec echo replaced; echo not here",
    "echo a | cat | cat | tr a b",
    "echo x | false; echo $?; false | true; echo $?",
    "yes | head -n 2",
    'echo a b | { read x y; echo "$y $x"; }',
    "printf 'x\\ny' | while read l; do echo \"<$l>\"; done",
    "printf '%s-%s\\n' a b c; printf '%%\\t|\\101\\n'",
    "echo bg & wait; echo done",
    "sleep 0.1 & p=$!; wait $p; echo $?",
    "(sleep 5) & p=$!; kill $p; wait $p; echo $?",
    "trap 'echo caught' TERM; kill -TERM $$; echo on",
    "trap '' TERM; kill -TERM $$; echo ignored",
    "trap 'echo bye; exit 5' INT; kill -INT $$; echo not here",
    "trap '' INT; sh -c 'kill -INT $$; echo inherited'",
    "sh -c 'trap \"echo inner\" TERM; kill -TERM $$'; echo $?",
    "[ a = a ] && [ a != b ] && [ 2 -gt 1 ] && [ -n x ] && [ -z '' ] && test x && echo all",
    "[ -f /dev/null ] || [ -d /tmp ] && echo dir",
    "mkdir -p a/b; ls a; rm -r a; ls; [ -e a ] || echo removed",
    "ln -s target l; readlink l; [ -L l ] && [ ! -e l ] && echo dangling",
    "command -v no-such-program; echo $?",
    "pwd > p; cd /; pwd; cd /tmp/..; pwd",
    "# a comment\necho after # another\necho a#b",
    "echo one \\\n  two",
    "echo a;\n\necho b",
    "if true\nthen\necho lines\nfi",
    'x=a; y=$x$x"$x"; echo $y',
    "echo \"a$(printf 'x\\n\\n')b\"",
    "printf '%s\\n' \"$(printf 'a  b\\nc')\" $(printf 'a  b\\nc')",
    "cat /no/such 2>/dev/null; echo $?",
    "head -c 3 /dev/zero | wc -c | tr -d ' '",
    "env -i A=1 env",
    "printf 'b\\na\\nc\\na\\n' | sort; printf 'b\\na\\na\\n' | sort -u",
    "printf '9\\n10\\nx\\n' | sort -n; printf '9\\n10\\n' | sort -r",
    "seq 5 | tail -n 2; printf abcdef | tail -c 3",
    "seq 20 | grep 1; seq 20 | grep -c 1; seq 3 | grep -v 2; seq 3 | grep -q 9; echo $?",
    "echo kept | tee f g; cat f g; echo more | tee -a f > /dev/null; cat f",
    "echo x > a; cp a b; echo y > a; cat b; mv b c; cat c; ls",
    "basename /a/b.txt; dirname a/b/c; dirname c",
    "echo 'Hello World' | tr a-z A-Z | tr -d L; echo aabb | tr ab c",
    "echo } ; echo { a; echo !",
]
"""Lines whose output and exit code are compared; each in an empty directory."""

UNKNOWN = ["f() { echo; }", "case a in a) echo;; esac", "cat <<END", "echo $((1+1))", "echo ${x%y}"]


@pytest.fixture(scope="module")
def mine() -> list[tuple[str, str, int]]:
    """Return what the simulated shell makes of each line."""

    async def run() -> list[tuple[str, str, int]]:
        found = []
        for line in LINES:
            async with AsyncSandbox.create(MemoryBackend()) as sandbox:
                result = await sandbox.execute_command(line, timeout=20)
                assert not result.timed_out, line
                found.append((line, result.stdout, result.exit_code))
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("number", range(len(LINES)), ids=LINES)
def test_a_line_does_what_sh_does(
    number: int, mine: list[tuple[str, str, int]], tmp_path: object
) -> None:
    line = LINES[number]
    real = subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=str(tmp_path),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    code = real.returncode if real.returncode >= 0 else 128 - real.returncode
    assert mine[number] == (line, real.stdout, code)


@pytest.mark.parametrize("line", UNKNOWN)
def test_what_it_does_not_know_it_says(line: str) -> None:
    with pytest.raises(ShellSyntaxError):
        parse(line)
