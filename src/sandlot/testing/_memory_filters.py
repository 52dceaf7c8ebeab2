"""The programs of a simulated sandbox that make, pass on and change text."""

from __future__ import annotations

import codecs
import re
from collections.abc import AsyncIterator, Callable

from sandlot.testing._memory_kernel import Channel, DevNull, DevZero, OpenFile, Program, Run

FILTERS: dict[str, Program] = {}


def registering(programs: dict[str, Program]) -> Callable[..., Callable[[Program], Program]]:
    """Return a decorator that adds a program to a table under its names."""

    def named(*names: str) -> Callable[[Program], Program]:
        def register(function: Program) -> Program:
            programs.update(dict.fromkeys(names, function))
            return function

        return register

    return named


def operands(run: Run) -> list[str]:
    """Return the words that are not options."""
    return [arg for arg in run.args if not arg.startswith("-") or arg == "-"]


_program = registering(FILTERS)


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
    r"""Replace ``\n``, ``\t``, ``\\`` and octal escapes."""
    raw = text.encode("utf-8", "surrogateescape")
    return re.sub(rb"\\([0-7]{1,3}|[abfnrtv\\])", _escape, raw)


def _escape(match: re.Match[bytes]) -> bytes:
    code = match[1]
    if code[:1].isdigit():
        return bytes([int(code, 8) & 0xFF])
    return codecs.escape_decode(b"\\" + code)[0]


@_program("cat")
async def _cat(run: Run) -> int:
    async for piece in _pieces(run, operands(run)):
        await run.stdout.write(piece)
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
    """``tr A B`` and ``tr -d A``; with ranges, and B repeating its last character."""
    delete = run.args[0] == "-d"
    old = _characters(run.args[-1] if delete else run.args[0])
    new = b"" if delete else _characters(run.args[1])
    table = None if delete else bytes.maketrans(old, (new + new[-1:] * len(old))[: len(old)])
    while data := await run.stdin.read():
        await run.stdout.write(data.translate(table, old if delete else b""))
    return 0


def _characters(text: str) -> bytes:
    """Return the characters that ``a-z`` and escapes stand for."""
    return re.sub(
        rb"(.)-(.)",
        lambda match: bytes(range(match[1][0], match[2][0] + 1)),
        _unescaped(text),
        flags=re.DOTALL,
    )


@_program("yes")
async def _yes(run: Run) -> int:
    while True:
        await run.stdout.write(b"y\n" * 4096)


@_program("seq")
async def _seq(run: Run) -> int:
    for number in range(1, int(run.args[0]) + 1):
        await run.print(f"{number}\n")
    return 0


@_program("tail")
async def _tail(run: Run) -> int:
    """``tail -c N [file]``, ``tail -n N [file]``."""
    option, count, *names = run.args
    content = await _all(run, names)
    pieces = [content[at : at + 1] for at in range(len(content))]
    kept = pieces if option == "-c" else content.splitlines(keepends=True)
    await run.stdout.write(b"".join(kept[max(0, len(kept) - int(count)) :]))
    return 0


@_program("sort")
async def _sort(run: Run) -> int:
    """``sort [-r] [-n] [-u] [file ...]``."""
    options = "".join(arg for arg in run.args if arg.startswith("-"))
    lines = (await _all(run, operands(run))).splitlines()
    if "u" in options:
        lines = list(set(lines))
    lines.sort(key=_number if "n" in options else None, reverse="r" in options)
    await run.stdout.write(b"".join(line + b"\n" for line in lines))
    return 0


def _number(line: bytes) -> tuple[float, bytes]:
    match = re.match(rb"\s*(-?\d+(?:\.\d+)?)", line)
    return (float(match[1]) if match else 0.0), line


@_program("grep")
async def _grep(run: Run) -> int:
    """``grep [-v] [-c] [-q] PATTERN [file ...]``."""
    options = "".join(arg for arg in run.args if arg.startswith("-"))
    pattern, *names = operands(run)
    expression = re.compile(pattern.encode("utf-8", "surrogateescape"))
    lines = (await _all(run, names)).splitlines()
    found = [line for line in lines if bool(expression.search(line)) != ("v" in options)]
    if "c" in options:
        await run.print(f"{len(found)}\n")
    elif "q" not in options:
        await run.stdout.write(b"".join(line + b"\n" for line in found))
    return int(not found)


@_program("tee")
async def _tee(run: Run) -> int:
    superuser = run.process.superuser
    outputs: list[Channel] = [run.stdout]
    for name in operands(run):
        file = run.files.open_for_writing(
            run.path(name), append="-a" in run.args, superuser=superuser
        )
        outputs.append(OpenFile(file, append=True))
    while data := await run.stdin.read():
        for output in outputs:
            await output.write(data)
    return 0


async def _all(run: Run, names: list[str]) -> bytes:
    return b"".join([piece async for piece in _pieces(run, names)])


async def _pieces(run: Run, names: list[str]) -> AsyncIterator[bytes]:
    for source in [_open(run, name) for name in names or ["-"]]:
        while data := await source.read():
            yield data
