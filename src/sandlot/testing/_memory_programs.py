"""The programs of a simulated sandbox: what scripts commonly call, each in a few lines."""

from __future__ import annotations

import asyncio
import signal as signals

from sandlot.testing._memory_files import Fifo, File, Symlink
from sandlot.testing._memory_filters import FILTERS, operands, registering
from sandlot.testing._memory_kernel import (
    Program,
    Run,
)
from sandlot.testing._memory_terminal import Terminal
from sandlot.testing._minishell_builtins import signal_number
from sandlot.testing._minishell_run import lookup, sh
from sandlot.types import FileType

PROGRAMS: dict[str, Program] = {"sh": sh, **FILTERS}

_program = registering(PROGRAMS)


@_program("true", ":")
async def _true(run: Run) -> int:
    return 0


@_program("false")
async def _false(run: Run) -> int:
    return 1


@_program("sleep")
async def _sleep(run: Run) -> int:
    await asyncio.sleep(float(run.args[0]))
    return 0


@_program("env")
async def _env(run: Run) -> int:
    env, words = dict(run.env), list(run.args)
    while words and (words[0] == "-i" or "=" in words[0]):
        name, _, value = words.pop(0).partition("=")
        env = {} if name == "-i" else {**env, name: value}
    if not words:
        await run.print("".join(f"{name}={value}\n" for name, value in env.items()))
        return 0
    return await _call(run, words, env)


async def _call(run: Run, words: list[str], env: dict[str, str]) -> int:
    program = lookup(run.process, words[0])
    if program is None:
        await run.complain(f"{words[0]}: not found")
        return 127
    return await run.process.call(program, words[1:], env)


@_program("printenv")
async def _printenv(run: Run) -> int:
    value = run.env.get(run.args[0])
    if value is not None:
        await run.print(f"{value}\n")
    return int(value is None)


@_program("pwd")
async def _pwd(run: Run) -> int:
    await run.print(f"{run.cwd}\n")
    return 0


@_program("id", "whoami")
async def _id(run: Run) -> int:
    """``whoami``, ``id -un``, ``id -u``."""
    if run.args == ["-u"]:
        await run.print("0\n" if run.process.superuser else "1000\n")
    else:
        await run.print(f"{run.process.user}\n")
    return 0


@_program("setsid")
async def _setsid(run: Run) -> int:
    """Run a command in a session, and so a process group, of its own."""
    words = [arg for arg in run.args if arg != "-w"]
    process = run.process.spawn(
        lambda child: child.call(lambda inner: _call(inner, words, dict(run.env)), [], run.env),
        args=words,
        new_group=True,
    )
    return (await asyncio.shield(process.ended)).exit_code


@_program("kill")
async def _kill(run: Run) -> int:
    """``kill [-SIGNAL] pid ...``; a negative pid is a process group."""
    options = [arg for arg in run.args if arg.startswith("-") and arg != run.args[-1]]
    number = signal_number(options[0][1:]) if options else signals.SIGTERM
    if number is None:
        await run.complain(f"kill: {options[0]}: no such signal")
        return 1
    kernel, status = run.process.kernel, 0
    for target in run.args[len(options) :]:
        pid = int(target)
        found = [p for p in kernel.processes.values() if (p.pid == pid or p.group == -pid)]
        if not found:
            await run.complain(f"kill: ({target}) - No such process")
            status = 1
        for process in found if number else []:
            kernel.signal(process, number)
    await asyncio.sleep(0)
    return status


@_program("test", "[")
async def _test(run: Run) -> int:
    args = run.args[:-1] if run.args[-1:] == ["]"] else run.args
    if args[:1] == ["!"]:
        return int(_holds(run, args[1:]))
    return int(not _holds(run, args))


def _holds(run: Run, args: list[str]) -> bool:
    if len(args) == 3:
        left, operator, right = args
        if operator in ("=", "!="):
            return (left == right) == (operator == "=")
        comparisons = {"-eq": int.__eq__, "-ne": int.__ne__, "-lt": int.__lt__,
                       "-le": int.__le__, "-gt": int.__gt__, "-ge": int.__ge__}  # fmt: skip
        return comparisons[operator](int(left), int(right))
    if len(args) == 2:
        return _is(run, *args)
    return bool(args and args[0])


def _is(run: Run, operator: str, operand: str) -> bool:
    if operator in ("-n", "-z"):
        return bool(operand) == (operator == "-n")
    if operator == "-t":
        channel = run.process.fds.get(int(operand))
        return isinstance(channel, Terminal) or isinstance(
            getattr(channel, "terminal", None), Terminal
        )
    path, superuser = run.path(operand), run.process.superuser
    try:
        if operator in ("-L", "-h"):
            return run.files.describe(path, superuser=superuser).type is FileType.SYMLINK
        node = run.files.find(path, superuser=superuser)
    except OSError:
        return False
    bits = {"-r": 0o400, "-w": 0o200, "-x": 0o100}
    if operator in bits:
        return bool(node.mode & bits[operator]) or superuser
    if operator == "-s":
        return isinstance(node, File) and bool(node.data)
    kinds = {"-f": "File", "-d": "Directory", "-p": "Fifo"}
    return operator == "-e" or type(node).__name__ == kinds[operator]


@_program("mkdir")
async def _mkdir(run: Run) -> int:
    for name in operands(run):
        run.files.make_dirs(run.path(name), superuser=run.process.superuser)
    return 0


@_program("mkfifo")
async def _mkfifo(run: Run) -> int:
    for name in operands(run):
        run.files.add(run.path(name), Fifo(), superuser=run.process.superuser)
    return 0


@_program("touch")
async def _touch(run: Run) -> int:
    for name in operands(run):
        run.files.open_for_writing(run.path(name), append=True, superuser=run.process.superuser)
    return 0


@_program("rm")
async def _rm(run: Run) -> int:
    options = "".join(arg for arg in run.args if arg.startswith("-"))
    for name in operands(run):
        try:
            run.files.remove(
                run.path(name), recursive="r" in options, superuser=run.process.superuser
            )
        except FileNotFoundError:
            if "f" not in options:
                raise
    return 0


@_program("ln")
async def _ln(run: Run) -> int:
    """``ln -s target name``."""
    target, name = operands(run)
    run.files.add(run.path(name), Symlink(target=target), superuser=run.process.superuser)
    return 0


@_program("mv")
async def _mv(run: Run) -> int:
    source, target = (run.path(name) for name in operands(run))
    run.files.move(source, target, superuser=run.process.superuser)
    return 0


@_program("cp")
async def _cp(run: Run) -> int:
    """``cp source target`` for files."""
    source, target = (run.path(name) for name in operands(run))
    superuser = run.process.superuser
    original = run.files.file(source, superuser=superuser)
    copy = run.files.open_for_writing(target, superuser=superuser)
    copy.data[:] = original.data
    return 0


@_program("basename")
async def _basename(run: Run) -> int:
    await run.print(f"{run.args[0].rstrip('/').rpartition('/')[2]}\n")
    return 0


@_program("dirname")
async def _dirname(run: Run) -> int:
    await run.print(f"{run.args[0].rstrip('/').rpartition('/')[0] or '.'}\n")
    return 0


@_program("chmod")
async def _chmod(run: Run) -> int:
    """``chmod MODE file ...`` with the mode in octal, or ``+x``."""
    mode, *names = run.args
    for name in names:
        node = run.files.find(run.path(name), superuser=run.process.superuser)
        node.mode = node.mode | 0o111 if mode == "+x" else int(mode, 8)
    return 0


@_program("ls")
async def _ls(run: Run) -> int:
    """``ls [directory]``, one name a line."""
    path = run.path((operands(run) or ["."])[0])
    for info in run.files.list_dir(path, superuser=run.process.superuser):
        await run.print(f"{info.name}\n")
    return 0


@_program("readlink")
async def _readlink(run: Run) -> int:
    info = run.files.describe(run.path(operands(run)[0]), superuser=run.process.superuser)
    if info.target is not None:
        await run.print(f"{info.target}\n")
    return int(info.target is None)


@_program("stty")
async def _stty(run: Run) -> int:
    """``stty size``, ``stty -echo``, ``stty echo``."""
    terminal = run.stdin
    if not isinstance(terminal, Terminal):
        await run.complain("stty: standard input: Inappropriate ioctl for device")
        return 1
    if run.args == ["size"]:
        await run.print(f"{terminal.rows} {terminal.cols}\n")
    else:
        terminal.echo = run.args != ["-echo"]
    return 0
