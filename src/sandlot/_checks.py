"""Checks of what users pass in, made once, before any I/O."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from sandlot.errors import FeatureNotSupportedError, SandboxConfigurationError
from sandlot.types import SandboxSpec, Stdin

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_DEFAULTS: dict[str, Any] = {
    item.name: getattr(SandboxSpec(), item.name) for item in dataclasses.fields(SandboxSpec)
}
_POSITIVE = ("cpu", "memory_mb", "disk_mb", "pids_limit", "timeout_secs")
_TEXT = ("image", "template", "snapshot_id", "gpu", "workdir", "user", "app_name")
_MAPPINGS = ("env_vars", "labels", "files", "backend_options")
_FLAGS = ("keep", "best_effort")

HONOURED_BY_ALL = frozenset({"files", "keep", "best_effort"})
"""The fields that Sandlot itself takes care of, whatever the backend."""


def make_spec(options: Mapping[str, Any]) -> SandboxSpec:
    """Return the spec that these options describe.

    Raises:
        SandboxConfigurationError: Naming the option that is unknown or makes no sense.
    """
    for name in options:
        if name not in _DEFAULTS:
            close = difflib.get_close_matches(name, _DEFAULTS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(_DEFAULTS)}"
            raise SandboxConfigurationError(f"there is no option {name!r}", hint=hint)
    given: dict[str, Any] = {
        name: _DEFAULTS[name] if value is None and name in (*_MAPPINGS, *_FLAGS) else value
        for name, value in options.items()
    }
    for name in _POSITIVE:
        check_positive(name, given.get(name))
    for name in _TEXT:
        if name in given and given[name] is not None:
            check_text(name, given[name])
    for name in _FLAGS:
        if not isinstance(given.get(name, False), bool):
            raise SandboxConfigurationError(f"{name}: expected True or False")
    for name in _MAPPINGS:
        if not isinstance(given.get(name, {}), Mapping):
            raise SandboxConfigurationError(f"{name}: expected a mapping")
    if not isinstance(given.get("allow_internet"), bool | None):
        raise SandboxConfigurationError("allow_internet: expected True, False or None")
    _check_inherit(given)
    if "env_vars" in given:
        given["env_vars"] = checked_env("env_vars", given["env_vars"])
    if "labels" in given:
        given["labels"] = checked_labels(given["labels"])
    files: Mapping[str, object] = given.get("files", {})
    for path, content in files.items():
        check_path(path)
        if not isinstance(content, bytes | str):
            raise SandboxConfigurationError(f"files: {path!r} must be bytes or str")
    return SandboxSpec(**given)


def asked_for(spec: SandboxSpec) -> set[str]:
    """Return the names of the fields that differ from their default."""
    return {name for name, default in _DEFAULTS.items() if getattr(spec, name) != default}


def without(spec: SandboxSpec, fields: set[str]) -> SandboxSpec:
    """Return the spec with these fields set back to their defaults."""
    return dataclasses.replace(spec, **{name: _DEFAULTS[name] for name in fields})


def unsupported_field(field: str, backend: str, honoured_by: list[str]) -> FeatureNotSupportedError:
    """Return the error for a field that a backend does not honour."""
    where = f"honoured by: {', '.join(honoured_by)}" if honoured_by else "no installed backend does"
    return FeatureNotSupportedError(
        f"the {backend} backend does not honour {field}",
        field=field,
        backend=backend,
        op="create",
        hint=f"{where}; best_effort=True goes on without it",
    )


def check_positive(name: str, value: Any) -> None:
    """Refuse what is not a finite number above 0; ``None`` is fine."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SandboxConfigurationError(f"{name}: expected a number, got {value!r}")
    if not 0 < value < float("inf"):
        raise SandboxConfigurationError(f"{name}: must be above 0, is {value}")


def check_text(name: str, value: Any) -> str:
    """Refuse what is not a str, is empty, or holds a NUL."""
    if not isinstance(value, str):
        raise SandboxConfigurationError(f"{name}: expected a str, got {type(value).__name__}")
    if not value:
        raise SandboxConfigurationError(f"{name}: must not be empty")
    if "\0" in value:
        raise SandboxConfigurationError(f"{name}: must not contain a NUL character")
    return value


def check_mode(mode: Any) -> None:
    """Refuse what can't be permission bits; ``None`` is fine."""
    if mode is not None and (
        isinstance(mode, bool) or not isinstance(mode, int) or not 0 <= mode <= 0o7777
    ):
        raise SandboxConfigurationError(f"mode: {mode!r} is not permission bits, such as 0o755")


def check_path(path: Any) -> str:
    """Refuse what can't be a path inside a sandbox."""
    return check_text("path", path)


def checked_env(name: str, env: object) -> dict[str, str]:
    """Return a copy of environment variables; refuse names and values that can't be."""
    if not isinstance(env, Mapping):
        raise SandboxConfigurationError(f"{name}: expected a mapping of str to str")
    checked: dict[str, str] = {}
    for key, value in cast("Mapping[object, object]", env).items():
        if not isinstance(key, str) or not _ENV_NAME.match(key):
            raise SandboxConfigurationError(
                f"{name}: {key!r} can't be the name of a variable",
                hint="letters, digits and underscores, not beginning with a digit",
            )
        # Values may be secrets: they never stand in a message.
        if not isinstance(value, str):
            raise SandboxConfigurationError(f"{name}: the value of {key} is not a str")
        if "\0" in value:
            raise SandboxConfigurationError(f"{name}: the value of {key} has a NUL character")
        checked[key] = value
    return checked


def checked_labels(labels: object) -> dict[str, str]:
    """Return a copy of labels; refuse what is not str to str."""
    if not isinstance(labels, Mapping):
        raise SandboxConfigurationError("labels: expected a mapping of str to str")
    checked: dict[str, str] = {}
    for key, value in cast("Mapping[object, object]", labels).items():
        name = check_text("labels", key)
        if not isinstance(value, str) or "\0" in value:
            raise SandboxConfigurationError(f"labels: the value of {name!r} is not a plain str")
        checked[name] = value
    return checked


def checked_argv(command: Any, args: Sequence[str] | None) -> tuple[str, ...]:
    """Return program and arguments of a command that is not a shell line."""
    if isinstance(command, bytes) or not isinstance(command, Sequence):
        raise SandboxConfigurationError(
            f"command: expected a str or a list of str, got {type(command).__name__}"
        )
    if isinstance(args, str | bytes):
        raise SandboxConfigurationError("args: expected a list of str, got one str")
    first: Sequence[object] = (
        (command,) if isinstance(command, str) else cast("Sequence[object]", command)
    )
    words = tuple(_checked_word(word) for word in (*first, *(args or ())))
    if not words or not words[0]:
        raise SandboxConfigurationError("command: must not be empty")
    return words


def _checked_word(word: object) -> str:
    if not isinstance(word, str):
        raise SandboxConfigurationError(
            f"command: expected words of type str, got {type(word).__name__}"
        )
    if "\0" in word:
        raise SandboxConfigurationError("command: must not contain a NUL character")
    return word


def stdin_bytes(stdin: Stdin) -> bytes | None:
    """Return the input as bytes; ``None`` where there is none or it comes later."""
    if stdin is None or isinstance(stdin, bool):
        return None
    if isinstance(stdin, str):
        return stdin.encode("utf-8", "surrogateescape")
    if isinstance(stdin, bytes | bytearray | memoryview):
        return bytes(stdin)
    raise SandboxConfigurationError(f"stdin: expected bytes or str, got {type(stdin).__name__}")


def _check_inherit(given: Mapping[str, Any]) -> None:
    value = given.get("inherit_env", False)
    if isinstance(value, str) or not (
        isinstance(value, bool) or all(isinstance(name, str) for name in value)
    ):
        raise SandboxConfigurationError("inherit_env: expected True, False or a list of names")
