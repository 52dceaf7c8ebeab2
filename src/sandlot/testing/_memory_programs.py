"""The programs of a simulated sandbox: what scripts commonly call, each in a few lines."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import re
import signal as signals
from collections.abc import Callable

from sandlot.testing._memory_files import Fifo, File, Symlink
from sandlot.testing._memory_kernel import (
    Channel,
    DevNull,
    DevZero,
    OpenFile,
    Program,
    Run,
)
from sandlot.testing._minishell_run import lookup, sh, signal_number
from sandlot.testing._memory_terminal import Terminal
from sandlot.types import FileType

PROGRAMS: dict[str, Program] = {"sh": sh}


def _program(*names: str) -> Callable[[Program], Program]:
    def register(function: Program) -> Program:
        PROGRAMS.update(dict.fromkeys(names, function))
        return function

    return register


@_program("true", ":")
async def _true(run: Run) -> int:
    return 0


@_program("false")
async def _false(run: Run) -> int:
    return 1


@_program("echo")
async def _echo(run: Run) -> int:
    newline = "" if run.args[:1] == ["-n"] else "\n"
    await run.print(" ".join(run.args[not newline :]) + newline)
    return 0


@_program("printf")
async def _printf(run: Run) -> int:
    """``printf format [value ...]`` with ``%s``, ``%%`` and escapes in the format."""
    form, *values = run.args[1:] if run.args[:1] == ["--"] else run.args
    pieces = re.split(r"(%[s%])", form)
    while True:
        for piece in pieces:
            if piece == "%s":
                await run.print(values.pop(0) if values else "")
            else:
                await run.stdout.write(b"%" if piece == "%%" else _unescaped(piece))
        if not values or "%s" not in pieces:
            return 0


def _unescaped(text: str) -> bytes:
    """Replace ``\\n``, ``\\t``, ``\\\\`` and octal escapes."""
    raw = text.encode("utf-8", "surrogateescape")
    return re.sub(rb"\\([0-7]{1,3}|[abfnrtv\\])", _escape, raw)


def _escape(match: re.Match[bytes]) -> bytes:
    code = match[1]
    if code[:1].isdigit():
        return bytes([int(code, 8) & 0xFF])
    return codecs.escape_decode(b"\\" + code)[0]  # type: ignore[attr-defined,no-any-return]


@_program("cat")
async def _cat(run: Run) -> int:
    for source in [_open(run, name) for name in run.args or ["-"]]:
        while data := await source.read():
            await run.stdout.write(data)
    return 0


def _open(run: Run, name: str) -> Channel:
    if name == "-":
        return run.stdin
    if name in ("/dev/zero", "/dev/null"):
        return DevZero() if name == "/dev/zero" else DevNull()
    return OpenFile(run.files.file(run.path(name), superuser=run.process.superuser))


@_program("head")
async def _head(run: Run) -> int:
    """``head -c N [file]``, ``head -n N [file]``."""
    option, count, *names = run.args
    source, left = _open(run, names[0] if names else "-"), int(count)
    while left and (data := await source.read(left if option == "-c" else 1)):
        await run.stdout.write(data)
        left -= len(data) if option == "-c" else data.count(b"\n")
    return 0


@_program("wc")
async def _wc(run: Run) -> int:
    """``wc -c``, ``wc -l``, with one file or none."""
    option, *names = run.args
    source, count = _open(run, names[0] if names else "-"), 0
    while data := await source.read():
        count += len(data) if option == "-c" else data.count(b"\n")
    await run.print(f"{count} {names[0]}\n" if names else f"{count}\n")
    return 0


@_program("tr")
async def _tr(run: Run) -> int:
    """``tr A B`` for one character, and ``tr a-z A-Z``."""
    if run.args == ["a-z", "A-Z"]:
        table = bytes(range(256)).upper()
    else:
        old, new = (_unescaped(arg) for arg in run.args)
        table = bytes.maketrans(old, new)
    while data := await run.stdin.read():
        await run.stdout.write(data.translate(table))
    return 0


@_program("yes")
async def _yes(run: Run) -> int:
    while True:
        await run.stdout.write(b"y\n" * 4096)


@_program("seq")
async def _seq(run: Run) -> int:
    for number in range(1, int(run.args[0]) + 1):
        await run.print(f"{number}\n")
    return 0


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
    for name in _operands(run):
        run.files.make_dirs(run.path(name), superuser=run.process.superuser)
    return 0


@_program("mkfifo")
async def _mkfifo(run: Run) -> int:
    for name in _operands(run):
        run.files.add(run.path(name), Fifo(), superuser=run.process.superuser)
    return 0


@_program("touch")
async def _touch(run: Run) -> int:
    for name in _operands(run):
        run.files.open_for_writing(
            run.path(name), append=True, superuser=run.process.superuser
        )
    return 0


@_program("rm")
async def _rm(run: Run) -> int:
    options = "".join(arg for arg in run.args if arg.startswith("-"))
    for name in _operands(run):
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
    target, name = _operands(run)
    run.files.add(run.path(name), Symlink(target=target), superuser=run.process.superuser)
    return 0


async def link(run: Run) -> int:
    """Stand for the one script of Sandlot's own that a backend can't override."""
    path, target = run.args[-2:]
    superuser = run.process.superuser
    with contextlib.suppress(FileNotFoundError):
        run.files.remove(run.path(path), superuser=superuser)
    run.files.add(run.path(path), Symlink(target=target), superuser=superuser)
    return 0


@_program("mv")
async def _mv(run: Run) -> int:
    source, target = (run.path(name) for name in _operands(run))
    run.files.move(source, target, superuser=run.process.superuser)
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
    path = run.path((_operands(run) or ["."])[0])
    for info in run.files.list_dir(path, superuser=run.process.superuser):
        await run.print(f"{info.name}\n")
    return 0


@_program("readlink")
async def _readlink(run: Run) -> int:
    info = run.files.describe(run.path(_operands(run)[0]), superuser=run.process.superuser)
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


def _operands(run: Run) -> list[str]:
    return [arg for arg in run.args if not arg.startswith("-") or arg == "-"]
