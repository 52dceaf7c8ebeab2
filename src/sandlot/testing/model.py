"""A sandbox against a model: random operations, compared with a dict and a list.

    TestModel = sandbox_model(lambda: AcmeBackend()).TestCase

Hypothesis makes up sequences of operations and shrinks one that goes wrong to the shortest.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule

from sandlot.contract import Backend
from sandlot.process import AsyncProcess
from sandlot.sandbox import AsyncSandbox

T = TypeVar("T")
Outcome: TypeAlias = tuple[str, Any]

_NAMES = st.sampled_from(["a", "b c", "é\n", "-n", "$d"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map("/".join)
_DATA = st.one_of(
    st.binary(max_size=50),
    st.integers(0, 200_000).map(lambda size: (b"\x00\r\n\xff" * size)[:size]),
)
_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50)


class ModelFiles:
    """What a file system does, as a dict: a path to its bytes, or to None for a directory."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes | None] = {"": None}

    def read(self, path: str) -> bytes:
        """Return a file's content."""
        data = self._entry(path)
        if data is None:
            raise IsADirectoryError
        return data

    def write(self, path: str, data: bytes) -> None:
        """Make or replace a file and the directories above."""
        self.make_dir(_parent(path))
        if path in self.entries and self.entries[path] is None:
            raise IsADirectoryError
        self.entries[path] = data

    def make_dir(self, path: str) -> None:
        """Make a directory and those above."""
        names = path.split("/") if path else []
        above = ["/".join(names[: depth + 1]) for depth in range(len(names))]
        if any(self.entries.get(each) is not None for each in above):
            raise OSError
        self.entries.update(dict.fromkeys(above))

    def describe(self, path: str) -> tuple[bool, int]:
        """Return whether it is a directory, and a file's size."""
        data = self._entry(path)
        return (True, 0) if data is None else (False, len(data))

    def list_dir(self, path: str) -> list[tuple[str, bool]]:
        """Return names and whether they are directories."""
        if self._entry(path) is not None:
            raise NotADirectoryError
        below = [name for name in self.entries if name and _parent(name) == path]
        return sorted((name.rpartition("/")[2], self.entries[name] is None) for name in below)

    def remove(self, path: str, *, recursive: bool) -> None:
        """Remove a file, an empty directory or a tree."""
        self._entry(path)
        inside = [name for name in self.entries if name.startswith(f"{path}/")]
        if inside and not recursive:
            raise OSError
        for name in [path, *inside]:
            del self.entries[name]

    def move(self, source: str, target: str) -> None:
        """Rename."""
        if not self.exists(source) and self.entries.get(_parent(target), b"") is not None:
            raise OSError  # both are wrong, and which of them is told is left open
        data = self._entry(source)
        if self._entry(_parent(target)) is not None:
            raise NotADirectoryError
        if target in self.entries and (data is None or self.entries[target] is None):
            raise OSError
        if target.startswith(f"{source}/"):
            raise OSError
        self.entries = {
            target + name[len(source) :] if f"{name}/".startswith(f"{source}/") else name: held
            for name, held in self.entries.items()
            if name != target
        }

    def exists(self, path: str) -> bool:
        """Whether it is there."""
        return path in self.entries

    def _entry(self, path: str) -> bytes | None:
        if path and self._entry(_parent(path)) is not None:
            raise NotADirectoryError
        if path not in self.entries:
            raise FileNotFoundError
        return self.entries[path]


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def sandbox_model(make_backend: Callable[[], Backend]) -> type[RuleBasedStateMachine]:
    """Return a state machine that compares a backend's sandboxes with a model."""

    class SandboxModel(RuleBasedStateMachine):
        waiting: Bundle[tuple[AsyncProcess, int]] = Bundle("waiting")

        def __init__(self) -> None:
            super().__init__()
            self.files = ModelFiles()
            self.runner = asyncio.Runner()
            self.sandbox: AsyncSandbox = self.run(_created(make_backend()))
            # Below a directory of its own: what else a new sandbox holds is its own business.
            self.run(self.sandbox.make_dir("m"))

        def run(self, work: Coroutine[Any, Any, T]) -> T:
            return self.runner.run(_bounded(work))

        def teardown(self) -> None:
            try:
                self.run(self.sandbox.destroy())
            finally:
                self.runner.close()

        def same(self, real: Coroutine[Any, Any, Any], model: Callable[[], Any]) -> None:
            expected = _outcome_of(model)
            got = _outcome_of(lambda: self.run(real))
            if expected[0] == "error" and got[0] == "error":
                assert issubclass(got[1], expected[1]), f"{got[1]} instead of {expected[1]}"
            else:
                assert got == expected

        # ------------------------------------------------------------- files
        @rule(path=_PATHS, data=_DATA)
        def write(self, path: str, data: bytes) -> None:
            self.same(
                self.sandbox.write_file(f"m/{path}", data), lambda: self.files.write(path, data)
            )

        @rule(path=_PATHS)
        def read(self, path: str) -> None:
            self.same(self.sandbox.read_file(f"m/{path}"), lambda: self.files.read(path))

        @rule(path=_PATHS)
        def make_dir(self, path: str) -> None:
            self.same(self.sandbox.make_dir(f"m/{path}"), lambda: self.files.make_dir(path))

        @rule(path=_PATHS, recursive=st.booleans())
        def remove(self, path: str, recursive: bool) -> None:
            self.same(
                self.sandbox.remove(f"m/{path}", recursive=recursive),
                lambda: self.files.remove(path, recursive=recursive),
            )

        @rule(old=_PATHS, new=_PATHS)
        def move(self, old: str, new: str) -> None:
            assume(old != new)
            self.same(self.sandbox.move(f"m/{old}", f"m/{new}"), lambda: self.files.move(old, new))

        @rule(path=_PATHS)
        def exists(self, path: str) -> None:
            self.same(self.sandbox.exists(f"m/{path}"), lambda: self.files.exists(path))

        @rule(path=_PATHS)
        def stat(self, path: str) -> None:
            async def described() -> tuple[bool, int]:
                info = await self.sandbox.stat(f"m/{path}")
                return info.is_dir, 0 if info.is_dir else info.size

            self.same(described(), lambda: self.files.describe(path))

        @rule(path=st.one_of(st.just(""), _PATHS))
        def list_dir(self, path: str) -> None:
            async def listed() -> list[tuple[str, bool]]:
                found = await self.sandbox.list_files(f"m/{path}".rstrip("/"))
                return [(info.name, info.is_dir) for info in found]

            self.same(listed(), lambda: self.files.list_dir(path))

        # ---------------------------------------------------------- commands
        @rule(path=_PATHS)
        def commands_see_files(self, path: str) -> None:
            result = self.run(self.sandbox.execute_command(["cat", "--", f"m/{path}"]))
            kind, value = _outcome_of(lambda: self.files.read(path))
            assert result.ok == (kind == "value")
            assert result.stdout_bytes == (value if result.ok else b"")

        @rule(path=_PATHS, text=_TEXT)
        def files_see_commands(self, path: str, text: str) -> None:
            self.same(
                self.sandbox.make_dir(f"m/{_parent(path)}".rstrip("/")),
                lambda: self.files.make_dir(_parent(path)),
            )
            line = 'printf %s "$1" > "$0"'
            command = ["sh", "-c", line, f"m/{path}", text]
            result = self.run(self.sandbox.execute_command(command))
            kind, _ = _outcome_of(lambda: self.files.write(path, text.encode()))
            assert result.ok == (kind == "value")

        @rule(value=_TEXT, code=st.integers(0, 255))
        def a_command_runs(self, value: str, code: int) -> None:
            command = [
                "sh",
                "-c",
                'printf %s "$V"; printf %s "$0" >&2; exit "$1"',
                value,
                str(code),
            ]
            result = self.run(self.sandbox.execute_command(command, env={"V": value}))
            assert (result.stdout, result.stderr) == (value, value)
            assert result.exit_code == code

        # --------------------------------------------------------- processes
        @rule(target=waiting, code=st.integers(0, 255))
        def start(self, code: int) -> tuple[AsyncProcess, int]:
            line = f'read line; printf %s "$line"; exit {code}'
            return self.run(self.sandbox.start(line, stdin=True)), code

        @rule(process=waiting)
        def it_waits(self, process: tuple[AsyncProcess, int]) -> None:
            kind, error = _outcome_of(lambda: self.run(process[0].wait(timeout=0.001)))
            assert (kind, issubclass(error, TimeoutError)) == ("error", True)

        @rule(process=consumes(waiting))
        def finish(self, process: tuple[AsyncProcess, int]) -> None:
            running, code = process
            self.run(running.write("word\n"))
            result = self.run(running.wait())
            assert (result.exit_code, result.stdout, result.signal) == (code, "word", None)

        @rule(process=consumes(waiting))
        def kill(self, process: tuple[AsyncProcess, int]) -> None:
            running, _ = process
            self.run(running.kill())
            assert self.run(running.wait()).signal == signal.SIGKILL

        @rule(process=consumes(waiting))
        def interrupt(self, process: tuple[AsyncProcess, int]) -> None:
            running, _ = process
            self.run(running.signal(signal.SIGTERM))
            assert self.run(running.wait()).signal == signal.SIGTERM

    return SandboxModel


async def _created(backend: Backend) -> AsyncSandbox:
    return await AsyncSandbox.create(backend)


async def _bounded(work: Coroutine[Any, Any, T]) -> T:
    async with asyncio.timeout(30):
        return await work


def _outcome_of(call: Callable[[], Any]) -> Outcome:
    try:
        return "value", call()
    except OSError as exc:
        return "error", type(exc)
