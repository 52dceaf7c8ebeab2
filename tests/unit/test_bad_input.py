"""What makes no sense is refused before anything happens, and the error names it."""

from __future__ import annotations

from typing import Any

import pytest

from sandlot import AsyncSandbox, PtySize, SandboxConfigurationError, SandboxSessionState
from sandlot.testing import MemoryBackend

CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "command: must not be empty": ("execute_command", ("",), {}),
    "command: must not contain a NUL": ("execute_command", ("a\0b",), {}),
    "command: expected a str or a list of str, got bytes": ("execute_command", (b"ls",), {}),
    "command: expected a str or a list of str, got int": ("execute_command", (3,), {}),
    "command: expected words of type str, got int": ("execute_command", (["ls", 3],), {}),
    "args: expected a list of str": ("execute_command", ("ls", "-l"), {}),
    "timeout: must be above 0, is -1": ("execute_command", ("ls",), {"timeout": -1}),
    "timeout: must be above 0, is nan": ("execute_command", ("ls",), {"timeout": float("nan")}),
    "timeout: expected a number, got True": ("execute_command", ("ls",), {"timeout": True}),
    "env: 'A B' can't be the name": ("execute_command", ("ls",), {"env": {"A B": "c"}}),
    "env: '' can't be the name": ("execute_command", ("ls",), {"env": {"": "c"}}),
    "env: the value of A is not a str": ("execute_command", ("ls",), {"env": {"A": 3}}),
    "stdin: expected bytes or str, got int": ("execute_command", ("ls",), {"stdin": 3}),
    "cwd: must not be empty": ("execute_command", ("ls",), {"cwd": ""}),
    "inject_schema: needs return_type": ("execute_command", ("ls",), {"inject_schema": True}),
    "language: 'pyhton' is not known": ("execute_code", ("1", "pyhton"), {}),
    "code: must not contain a NUL": ("execute_code", ("a\0b",), {}),
    "code: expected a str, got bytes": ("execute_code", (b"1",), {}),
    "path: must not be empty": ("read_file", ("",), {}),
    "path: must not contain a NUL": ("read_file", ("a\0b",), {}),
    "path: expected a str, got bytes": ("read_file", (b"a",), {}),
    "mode: -1 is not permission bits": ("write_file", ("f", b""), {"mode": -1}),
    "mode: '755' is not permission bits": ("write_file", ("f", b""), {"mode": "755"}),
    "method: 'zip' is not known": ("upload_dir", (".", "x"), {"method": "zip"}),
    "timeout_secs: must be above 0": ("extend", (0,), {}),
    "port: 70000 is not a port's number": ("expose_port", (70000,), {}),
}


@pytest.mark.parametrize("message", CALLS)
async def test_a_call_that_makes_no_sense_is_refused(message: str) -> None:
    name, args, keywords = CALLS[message]
    async with AsyncSandbox.create(MemoryBackend()) as sandbox:
        with pytest.raises(SandboxConfigurationError) as caught:
            await getattr(sandbox, name)(*args, **keywords)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memroy_mb": 3}, "did you mean 'memory_mb'?"),
        ({"cpu": 0}, "cpu: must be above 0"),
        ({"memory_mb": "3"}, "memory_mb: expected a number, got '3'"),
        ({"env_vars": "A=b"}, "env_vars: expected a mapping"),
        ({"env_vars": {"A": "s3cret\0"}}, "env_vars: the value of A has a NUL character"),
        ({"labels": {"a": 1}}, "labels: the value of 'a' is not a plain str"),
        ({"files": {"f": 3}}, "files: 'f' must be bytes or str"),
        ({"inherit_env": "PATH"}, "inherit_env: expected True, False or a list of names"),
        ({"keep": 1}, "keep: expected True or False"),
        ({"allow_internet": "no"}, "allow_internet: expected True, False or None"),
        ({"image": ""}, "image: must not be empty"),
    ],
)
async def test_an_option_that_makes_no_sense_is_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SandboxConfigurationError) as caught:
        await AsyncSandbox.create(MemoryBackend(), **options)
    assert message in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_terminal_without_a_size_is_refused() -> None:
    with pytest.raises(SandboxConfigurationError):
        PtySize(0, 24)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"backend": 1, "data": {}}', "\0"])
def test_what_is_not_a_session_state_is_refused(text: str) -> None:
    with pytest.raises(SandboxConfigurationError, match="not a session state"):
        SandboxSessionState.from_json(text)
