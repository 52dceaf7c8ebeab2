"""Variables, the working directory, users."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from sandlot.capabilities import Capability
from sandlot.errors import SandboxExecutionError
from sandlot.sandbox import AsyncSandbox
from sandlot.testing.conformance.base import Behaviours, accepts, requires

AWKWARD = {
    "LINES_": "l1\nl2\n",
    "QUOTES": "\"double\" 'single' `id` $(id) $HOME ${HOME}",
    "SLASHES": "back\\slash \\n \\\\",
    "SPACES": "  two  spaces\t",
    "UNICODE": "é ☕ 漢字",
    "SHELL_": "; exit 9 & | > f < g * ? [a] ~ ! #",
    "EMPTY_": "",
    "EQUALS": "a=b=c",
}
"""Values that a shell line made by joining would break."""


class Environment(Behaviours):
    """Variables, the working directory, users."""

    async def test_variables_arrive_byte_for_byte(self, sb: AsyncSandbox) -> None:
        """Whatever a value holds, the command gets it as it is."""
        for name, value in AWKWARD.items():
            result = await sb.execute_command(["printenv", name], env=AWKWARD)
            assert (name, result.stdout) == (name, f"{value}\n")

    async def test_variables_of_one_call_are_of_that_call(self, sb: AsyncSandbox) -> None:
        """The next call does not see them."""
        assert (await sb.execute_command("echo $ONCE", env={"ONCE": "x"})).stdout == "x\n"
        assert (await sb.execute_command('echo "[$ONCE]"')).stdout == "[]\n"

    @accepts("env_vars")
    async def test_variables_of_the_sandbox_are_of_every_call(self) -> None:
        """``env_vars`` are seen by commands and code; a call's own outrank them."""
        async with self.sandbox(env_vars={**AWKWARD, "BOTH": "sandbox"}) as sandbox:
            for name, value in AWKWARD.items():
                assert (await sandbox.execute_command(["printenv", name])).stdout == f"{value}\n"
            code = await sandbox.execute_code('echo "$BOTH"', "sh")
            assert code.stdout == "sandbox\n"
            own = await sandbox.execute_command("echo $BOTH", env={"BOTH": "call"})
            assert own.stdout == "call\n"

    async def test_the_callers_variables_stay_outside(self) -> None:
        """What the environment of this program holds is not seen inside."""
        name, secret = "SANDLOT_TEST_SECRET", secrets.token_hex(16)
        os.environ[name] = secret
        try:
            async with self.sandbox() as sandbox:
                result = await sandbox.execute_command("env")
        finally:
            del os.environ[name]
        assert "PATH=" in result.stdout
        assert name not in result.stdout
        assert secret not in result.stdout

    @accepts("inherit_env")
    async def test_inherited_variables_are_those_that_were_named(self) -> None:
        """``inherit_env`` passes on what it names and nothing else."""
        os.environ.update(SANDLOT_TEST_A="a", SANDLOT_TEST_B="b")
        try:
            async with self.sandbox(inherit_env=["SANDLOT_TEST_A"]) as sandbox:
                result = await sandbox.execute_command("env")
        finally:
            del os.environ["SANDLOT_TEST_A"], os.environ["SANDLOT_TEST_B"]
        assert "SANDLOT_TEST_A=a\n" in result.stdout
        assert "SANDLOT_TEST_B" not in result.stdout

    async def test_programs_are_found_and_there_is_a_home(self, sb: AsyncSandbox) -> None:
        """PATH and HOME are set, and HOME is a directory."""
        result = await sb.execute_command('[ -n "$PATH" ] && [ -d "$HOME" ] && echo both')
        assert result.stdout == "both\n"

    async def test_a_relative_cwd_starts_at_the_working_directory(self, sb: AsyncSandbox) -> None:
        """``cwd="a/b"`` is below where commands start."""
        here = (await sb.execute_command("pwd")).stdout.strip()
        await sb.make_dir("a/b c")
        result = await sb.execute_command("pwd", cwd="a/b c")
        assert result.stdout == f"{here}/a/b c\n"

    async def test_an_absolute_cwd_is_where_the_command_starts(self, sb: AsyncSandbox) -> None:
        """``cwd="/..."`` is taken as it is, for commands and code."""
        await sb.make_dir("deep/er")
        there = (await sb.execute_command("cd deep/er && pwd")).stdout
        assert (await sb.execute_command("pwd", cwd=there.strip())).stdout == there
        assert (await sb.execute_code("pwd", "sh", cwd=there.strip())).stdout == there

    async def test_a_missing_cwd_is_an_error(self, sb: AsyncSandbox) -> None:
        """A command that can't start where it should does not start elsewhere."""
        with pytest.raises(SandboxExecutionError):
            await sb.execute_command("echo x > stray", cwd="no/such/directory")
        assert not await sb.exists("stray")

    async def test_relative_paths_are_the_same_to_files_and_commands(
        self, sb: AsyncSandbox
    ) -> None:
        """What the file methods write commands see, and the other way round."""
        await sb.write_file("by/api.txt", "api")
        assert (await sb.execute_command("cat by/api.txt")).stdout == "api"
        await sb.execute_command("printf command > by/command.txt")
        assert await sb.read_file("by/command.txt") == b"command"

    async def test_a_path_that_a_command_prints_is_one_for_files(self, sb: AsyncSandbox) -> None:
        """A path that a command prints is one that the file methods take."""
        await sb.write_file("here/file", "content")
        path = (await sb.execute_command("cd here && pwd")).stdout.strip() + "/file"
        assert await sb.read_file(path) == b"content"

    async def test_commands_find_a_file_by_its_absolute_path(self, sb: AsyncSandbox) -> None:
        """A path that the file methods write to is one that a command can read."""
        path = f"/tmp/sandlot-{secrets.token_hex(8)}/file"
        await sb.write_file(path, "content")
        assert (await sb.execute_command(["cat", path])).stdout == "content"

    async def test_commands_find_a_file_by_its_command_path(self, sb: AsyncSandbox) -> None:
        """``command_path`` says where commands find a file, whatever they see of the rest."""
        path = f"/tmp/sandlot-{secrets.token_hex(8)}/file"
        await sb.write_file(path, "content")
        assert (await sb.execute_command(["cat", sb.command_path(path)])).stdout == "content"

    @accepts("workdir")
    async def test_commands_start_in_the_workdir(self, tmp: Path) -> None:
        """``workdir`` is where commands start and relative paths begin."""
        where = str(tmp)
        async with self.sandbox(workdir=where) as sandbox:
            assert (await sandbox.execute_command("pwd")).stdout == f"{where}\n"
            await sandbox.write_file("f", "x")
            assert (await sandbox.execute_command("cat f")).stdout == "x"

    @requires(Capability.USERS)
    async def test_a_command_can_run_as_another_user(self, sb: AsyncSandbox) -> None:
        """``user=`` is who it runs as; the next call is as before."""
        before = (await sb.execute_command("id -un")).stdout
        assert (await sb.execute_command("id -un", user="root")).stdout == "root\n"
        assert (await sb.execute_command("id -un")).stdout == before

    @requires(Capability.USERS)
    async def test_an_unknown_user_is_an_error(self, sb: AsyncSandbox) -> None:
        """Nothing runs as somebody else than was asked for."""
        with pytest.raises(SandboxExecutionError):
            await sb.execute_command("true", user="no-such-user")
