"""The commands that a shell must run itself, since they change it."""

from __future__ import annotations

import asyncio
import signal as signals
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from sandlot.testing._memory_kernel import DevNull

if TYPE_CHECKING:
    from sandlot.testing._minishell_run import Shell

NOT_FOUND, NOT_EXECUTABLE = 127, 126

Builtin: TypeAlias = Callable[["Shell", list[str]], Awaitable[int]]
BUILTINS: dict[str, Builtin] = {}


class ShellExit(Exception):
    """The shell ends."""

    def __init__(self, code: int) -> None:
        self.code = code


def _builtin(name: str) -> Callable[[Builtin], Builtin]:
    def register(function: Builtin) -> Builtin:
        BUILTINS[name] = function
        return function

    return register


@_builtin("exit")
async def _exit(shell: Shell, args: list[str]) -> int:
    raise ShellExit(int(args[0]) if args else shell.status)


@_builtin("cd")
async def _cd(shell: Shell, args: list[str]) -> int:
    target = args[0] if args else shell.variables.get("HOME", "/")
    path = shell.path(target)
    try:
        shell.process.kernel.files.directory(path, superuser=shell.process.superuser)
    except OSError as exc:
        await shell.complain(f"cd: {target}: {exc.strerror}")
        return 1
    shell.process.cwd = normal(path)
    return 0


@_builtin("export")
async def _export(shell: Shell, args: list[str]) -> int:
    for arg in args:
        name, given, value = arg.partition("=")
        shell.exported.add(name)
        if given:
            shell.variables[name] = value
    return 0


@_builtin("unset")
async def _unset(shell: Shell, args: list[str]) -> int:
    for name in args:
        shell.variables.pop(name, None)
    return 0


@_builtin("shift")
async def _shift(shell: Shell, args: list[str]) -> int:
    del shell.positional[1 : 1 + int(args[0] if args else 1)]
    return 0


@_builtin("read")
async def _read(shell: Shell, args: list[str]) -> int:
    names = [arg for arg in args if arg != "-r"]
    stdin, line = shell.process.fds.get(0, DevNull()), bytearray()
    while (char := await stdin.read(1)) and char != b"\n":
        line += char
    words = line.decode("utf-8", "surrogateescape").split(None, len(names) - 1)
    shell.variables.update(zip(names, words + [""] * len(names), strict=False))
    return 0 if char else 1


@_builtin("trap")
async def _trap(shell: Shell, args: list[str]) -> int:
    action, *names = args
    process = shell.process
    for name in names:
        number = signal_number(name)
        if number is None:
            await shell.complain(f"trap: {name} is not known here")
            return 1
        process.ignored.discard(number)
        process.traps.pop(number, None)
        if action == "":
            process.ignored.add(number)
        elif action != "-":
            process.traps[number] = action
    return 0


@_builtin("wait")
async def _wait(shell: Shell, args: list[str]) -> int:
    code = 0
    for child in shell.children:
        if args and str(child.pid) not in args:
            continue
        while not child.ended.done() and not shell.process.caught:
            await asyncio.wait({child.ended}, timeout=0.02)
        if child.ended.done():
            code = child.ended.result().exit_code
    return code if args else 0


@_builtin(".")
async def _source(shell: Shell, args: list[str]) -> int:
    try:
        file = shell.process.kernel.files.file(
            shell.path(args[0]), superuser=shell.process.superuser
        )
    except OSError as exc:
        await shell.complain(f".: {args[0]}: {exc.strerror}")
        raise ShellExit(2) from None
    await shell.source(file.data.decode("utf-8", "surrogateescape"))
    return shell.status


@_builtin("command")
async def _command(shell: Shell, args: list[str]) -> int:
    if args[:1] != ["-v"]:
        await shell.run_program(args, {})
        return shell.status
    name = args[1]
    if not shell.knows(name):
        return NOT_FOUND
    shown = name if "/" in name or name in BUILTINS else f"/bin/{name}"
    await shell.process.fds.get(1, DevNull()).write(f"{shown}\n".encode())
    return 0


def signal_number(name: str) -> int | None:
    """Return the number of a signal by its name or number."""
    if name.isdigit():
        return int(name)
    full = name if name.startswith("SIG") else f"SIG{name}"
    return signals.Signals[full] if full in signals.Signals.__members__ else None


def normal(path: str) -> str:
    """Return an absolute path without ``.``, ``..`` and doubled slashes."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)
