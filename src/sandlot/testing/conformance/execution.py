"""Running commands and code."""

from __future__ import annotations

import time

import pytest

from sandlot.errors import CommandFailedError, SandboxExecutionError
from sandlot.sandbox import AsyncSandbox
from sandlot.testing.conformance.base import Behaviours

AWKWARD = [
    "a b",
    "",
    "$HOME",
    "`id`",
    "$(id)",
    "it's",
    'say "hi"',
    "back\\slash\\n",
    "*",
    "~",
    "new\nline",
    "tab\there",
    "é ☕",
    "-n",
    "--",
    ";",
    "&&",
    "| cat",
    "> f",
    "# no comment",
    "{a,b}",
    "%s",
    "!!",
    " ",
]
"""Words that a shell, a printf or a careless join would change."""


class Execution(Behaviours):
    """Running commands and code."""

    async def test_a_result_tells_the_exit_code(self, sb: AsyncSandbox) -> None:
        """Every exit code is a result."""
        for code in (0, 1, 3, 126, 127, 128, 200, 255):
            result = await sb.execute_command(f"exit {code}")
            assert (result.exit_code, result.signal, result.timed_out) == (code, None, False)
            assert result.ok == (code == 0)

    async def test_check_raises_what_failed_with_its_result(self, sb: AsyncSandbox) -> None:
        """``check=True`` turns another exit code than 0 into an error that holds the result."""
        with pytest.raises(CommandFailedError) as caught:
            await sb.execute_command("echo out; echo why >&2; exit 3", check=True)
        error = caught.value
        assert (error.exit_code, error.stdout, error.stderr) == (3, "out\n", "why\n")
        assert (await sb.execute_command("echo fine", check=True)).stdout == "fine\n"

    async def test_stdout_and_stderr_stay_apart(self, sb: AsyncSandbox) -> None:
        """Each stream has its own bytes, in their order."""
        result = await sb.execute_command("echo 1; echo a >&2; echo 2; echo b >&2")
        assert (result.stdout, result.stderr) == ("1\n2\n", "a\nb\n")

    async def test_output_keeps_its_order(self, sb: AsyncSandbox) -> None:
        """Two thousand lines come as they were printed."""
        result = await sb.execute_command("seq 2000")
        assert result.stdout == "".join(f"{number}\n" for number in range(1, 2001))

    async def test_the_duration_is_the_commands(self, sb: AsyncSandbox) -> None:
        """It covers what the command took, and not more than the call took."""
        before = time.perf_counter()
        result = await sb.execute_command("sleep 0.2")
        assert 0.2 <= result.duration <= time.perf_counter() - before

    async def test_a_list_is_run_without_a_shell(self, sb: AsyncSandbox) -> None:
        """Each word arrives as it was given, whatever it holds."""
        result = await sb.execute_command(["printf", "%s\\0", *AWKWARD])
        assert result.stdout == "".join(f"{word}\0" for word in AWKWARD)

    async def test_arguments_are_not_for_a_shell(self, sb: AsyncSandbox) -> None:
        """A program with ``args`` is run as a list is."""
        result = await sb.execute_command("printf", ["%s\\0", *AWKWARD])
        assert result.stdout == "".join(f"{word}\0" for word in AWKWARD)

    async def test_a_str_is_run_by_a_shell(self, sb: AsyncSandbox) -> None:
        """Variables, quotes, pipes and lists mean what they mean to a shell."""
        result = await sb.execute_command("X='a  b'; echo \"$X\" | cat && echo $X || echo no")
        assert result.stdout == "a  b\na b\n"

    async def test_a_shell_that_misses_a_program_exits_with_127(self, sb: AsyncSandbox) -> None:
        """As every shell does."""
        result = await sb.execute_command("no-such-program-here")
        assert result.exit_code == 127
        assert "no-such-program-here" in result.stderr

    async def test_a_program_that_is_missing_cant_be_started(self, sb: AsyncSandbox) -> None:
        """Without a shell there is nobody to exit with 127: it is an error."""
        with pytest.raises(SandboxExecutionError):
            await sb.execute_command(["no-such-program-here", "x"])
        assert (await sb.execute_command(["echo", "still"])).stdout == "still\n"

    async def test_many_arguments_arrive(self, sb: AsyncSandbox) -> None:
        """Two thousand words of forty bytes."""
        words = [f"{number:040}" for number in range(2000)]
        assert (await sb.execute_command(["printf", "%s", *words])).stdout == "".join(words)

    async def test_a_command_may_be_longer_than_an_argument_may(self, sb: AsyncSandbox) -> None:
        """A shell line of more than a megabyte runs."""
        line = f"X='{'x' * 1_200_000}'; printf %s \"$X\" | wc -c; exit 4"
        result = await sb.execute_command(line)
        assert (result.stdout.strip(), result.exit_code) == ("1200000", 4)

    async def test_code_may_be_longer_than_an_argument_may(self, sb: AsyncSandbox) -> None:
        """Code of more than a megabyte runs, with its input and its exit code."""
        code = f"X='{'é' * 600_000}'\nprintf %s \"$X\" | wc -c\nexit 5\n"
        result = await sb.execute_code(code, "sh")
        assert (result.stdout.strip(), result.exit_code) == ("1200000", 5)

    async def test_long_code_leaves_no_file_behind(self, sb: AsyncSandbox) -> None:
        """What was needed to run it is gone afterwards."""
        code = f"echo \"$0\"; : '{'x' * 200_000}'; exit 1"
        path = (await sb.execute_code(code, "sh")).stdout.strip()
        assert path.startswith("/")
        assert (await sb.execute_command(["test", "-e", path])).exit_code == 1

    async def test_code_runs_where_commands_run(self, sb: AsyncSandbox) -> None:
        """Short or long, code starts in the same directory as a command."""
        here = (await sb.execute_command("pwd")).stdout
        long_code = f"pwd # {'x' * 200_000}"
        assert (await sb.execute_code("pwd", "sh")).stdout == here
        assert (await sb.execute_code(long_code, "sh")).stdout == here

    async def test_code_may_hold_anything_but_nul(self, sb: AsyncSandbox) -> None:
        """Quotes, dollars and newlines reach the interpreter as they are."""
        code = 'X="it\'s"\necho "$X" \'$X\' \\$X\n'
        assert (await sb.execute_code(code, "sh")).stdout == "it's $X $X\n"

    async def test_python_runs_or_is_said_to_be_missing(self, sb: AsyncSandbox) -> None:
        """Where there is a Python the code runs; where there is none, that is what is said."""
        there = await sb.execute_command("command -v python3 || command -v python")
        result = await sb.execute_code("import sys; print(6 * 7); sys.exit(2)")
        if there.ok:
            assert (result.stdout, result.exit_code) == ("42\n", 2)
        else:
            assert result.exit_code == 127
            assert "python" in result.stderr

    async def test_output_becomes_a_value(self, sb: AsyncSandbox) -> None:
        """``return_type`` parses what was printed."""
        value = await sb.execute_command("echo noise; echo '[1, 2]'", return_type=list[int])
        assert value == [1, 2]

    async def test_no_state_stays_between_commands(self, sb: AsyncSandbox) -> None:
        """Directory and variables are each command's own."""
        here = (await sb.execute_command("pwd")).stdout
        await sb.execute_command("cd /tmp; export LEFT=over; LEFT2=over")
        result = await sb.execute_command('pwd; echo "[$LEFT$LEFT2]"')
        assert result.stdout == f"{here}[]\n"

    async def test_files_stay_between_commands(self, sb: AsyncSandbox) -> None:
        """What one command writes the next one reads."""
        await sb.execute_command("echo kept > file")
        assert (await sb.execute_command("cat file")).stdout == "kept\n"
