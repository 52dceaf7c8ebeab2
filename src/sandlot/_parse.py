"""A program's output as a typed value: find the JSON in the text, build the type from it.

The text comes from inside the sandbox and may be hostile: the search reads it once, from front
to back, a bounded number of values is tried, and no error quotes more than an excerpt.
"""

from __future__ import annotations

import json
import re
from collections import abc, deque
from itertools import accumulate
from typing import Any, NoReturn, TypeVar, get_args, overload

from sandlot._typed import CUT, MALFORMED, NOTHING, Builder, Miss, SchemaWriter
from sandlot.errors import OutputParseError, SandboxConfigurationError

T = TypeVar("T")

_MAX_ATTEMPTS = 64
_MAX_DEPTH = 100
_MAX_QUOTED = 200


@overload
def parse_as(text: str, type_: type[T]) -> T: ...
@overload
def parse_as(text: str, type_: Any) -> Any: ...
def parse_as(text: str, type_: Any) -> Any:
    """Find the JSON in a program's output and build a value of ``type_`` from it.

    Tried in turn, the first that fits is returned: the whole text; what stands between Markdown
    fences, the last first; the last line; objects and arrays anywhere, the last first. A part
    of a larger value is not taken for the answer, not even where the larger one is cut off.

    Neither ``"3"`` nor ``true`` is an int; an int may stand for a float. ``NaN`` and
    ``Infinity`` are not JSON. Models of pydantic follow their own rules.

    ``type_`` is a pydantic model, dataclass, TypedDict, NamedTuple, Enum, a class that takes the
    object's keys as keyword arguments, or a type such as ``list[int]``, ``dict[str, Stats]``,
    ``int | None`` or ``Any``.

    Raises:
        OutputParseError: Nothing fits; the message tells what came nearest and why it failed.
        SandboxConfigurationError: ``type_`` is nothing that can be built from JSON.
    """
    text = text.lstrip("\ufeff")
    nearest, source = Miss("no JSON was found", NOTHING, at=len(text)), text
    for candidate in _candidates(text):
        try:
            return Builder().build(type_, _decode(candidate))
        except Miss as miss:
            found = miss
        except RecursionError:
            found = Miss("it is nested too deeply", MALFORMED)
        if found.rank > nearest.rank:
            nearest, source = found, candidate
    raise _parse_error(type_, nearest, source)


def json_schema(cls: Any) -> str:
    """Return an instruction for a prompt: answer with JSON that `parse_as` reads as ``cls``."""
    schema = SchemaWriter().document(cls)
    top = schema.get("$defs", {}).get(schema.get("$ref", "").rpartition("/")[2], schema)
    kind = "object" if top.get("type") == "object" else "value"
    return (
        f"Answer with one JSON {kind} and nothing else. "
        f"It must be valid against this JSON schema:\n{json.dumps(schema)}"
    )


def with_schema(argv: abc.Sequence[str], type_: Any) -> list[str]:
    """Return ``argv`` with the instruction of `json_schema` added to its last argument."""
    if not argv:
        raise SandboxConfigurationError("there is no argument to add the schema to")
    return [*argv[:-1], f"{argv[-1]}\n\n{json_schema(type_)}"]


# Finding: which parts of the text may be the answer, the likeliest first.

_SPACE = r"[ \t\r\n]*+"
_CHARS = r'[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+'
_KEY = rf'{_SPACE}"{_CHARS}"{_SPACE}:'
_FENCE = re.compile(r"^[ \t]*(?:```|~~~).*$", re.MULTILINE)
_OPENING = re.compile(
    rf'\{{(?={_SPACE}["}}])|\[(?={_SPACE}(?:[]["{{\d-]|true|false|null|NaN|Infinity))'
)
_VALUE = re.compile(rf'{_SPACE}(?:([{{[])|"{_CHARS}"|[-+.\w]++)')
# In an array and in an object: what follows the bracket, and what follows a value.
_FIRST = re.compile(rf"{_SPACE}(\])?"), re.compile(rf"{_SPACE}(?:(\}})|{_KEY})")
_NEXT = re.compile(rf"{_SPACE}(?:(\])|,)"), re.compile(rf"{_SPACE}(?:(\}})|,{_KEY})")
_NOT_BRACKETS = re.compile(rf'[^][{{}}"]++|"{_CHARS}"?')
_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}


def _candidates(text: str) -> abc.Iterator[str]:
    yield text
    end = len(text)
    for fence in reversed(deque(_FENCE.finditer(text), _MAX_ATTEMPTS)):
        yield text[fence.end() : end]
        end = fence.start()
    whole: deque[tuple[int, int]] = deque(maxlen=_MAX_ATTEMPTS)
    longest = cut = 0, 0
    for start, end, closed in _values(text):
        if closed:
            whole.append((start, end))
        else:
            cut = start, end
            longest = max(longest, cut, key=lambda span: span[1] - span[0])
    if not cut[1] or text[cut[1] :].strip():
        yield text.rstrip().rpartition("\n")[2]
    for start, end in reversed(whole):
        yield text[start:end]
    for start, end in longest, cut:
        if end:
            yield text[start:]  # not the answer, but the decoder says what is wrong with it


def _values(text: str) -> abc.Iterator[tuple[int, int, bool]]:
    """Yield where each outermost object or array starts and ends, and whether it is closed.

    One that breaks the grammar is given up, and the search goes on from where it broke, never
    from further back: this is what keeps the time proportional to the length of the text.
    """
    end = 0
    while opening := _OPENING.search(text, end):
        start = opening.start()
        end, closed = _end_of_value(text, start)
        yield start, end, closed


def _end_of_value(text: str, at: int) -> tuple[int, bool]:
    nesting = bytearray()  # a byte for each open bracket: 0 for an array, 1 for an object
    while value := _VALUE.match(text, at):
        at = value.end()
        if value[1]:
            nesting.append(value[1] == "{")
        step = (_FIRST if value[1] else _NEXT)[nesting[-1]].match(text, at)
        while step and step[1]:
            at = step.end()
            nesting.pop()
            if not nesting:
                return at, True
            step = _NEXT[nesting[-1]].match(text, at)
        if not step:
            break
        at = step.end()
    return at, False


def _decode(text: str) -> Any:
    if _depth(text) > _MAX_DEPTH:
        raise Miss(f"it is nested more than {_MAX_DEPTH} levels deep", MALFORMED)
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as exc:
        if exc.pos == len(text) - len(text.lstrip()) or exc.msg == "Extra data":
            raise Miss("no JSON was found", NOTHING) from None
        cut = exc.pos >= len(text.rstrip()) or exc.msg.startswith("Unterminated")
        reason = "the output ends in the middle of it" if cut else f"not JSON: {exc.msg}"
        raise Miss(reason, CUT if cut else MALFORMED, at=exc.pos) from None
    except ValueError as exc:  # of _refuse, or an integer of more digits than Python reads
        raise Miss(str(exc), MALFORMED) from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _depth(text: str) -> int:
    """Return how deep the text nests, at least as far as a JSON parser would follow it."""
    if text.count("{") + text.count("[") <= _MAX_DEPTH:
        return 0
    return max(accumulate(map(_STEPS.__getitem__, _NOT_BRACKETS.sub("", text))), default=0)


def _parse_error(type_: Any, miss: Miss, source: str) -> OutputParseError:
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in miss.path)
    where = f"field {_clip(path.removeprefix('.'), 40)!r}: " if path else ""
    reason = _clip(where + miss.reason, 140)
    room = _MAX_QUOTED - len(reason)
    start = max(0, min(miss.at - 40, len(source) - room))
    name = type_.__name__ if isinstance(type_, type) and not get_args(type_) else repr(type_)
    return OutputParseError(
        f"the output holds no {_clip(name, 80)}: {reason}, in {source[start : start + room]!r}",
        hint="let the program print one such JSON value, after everything else",
    )


def _clip(text: str, limit: int) -> str:
    text = "".join(c if c.isprintable() else " " for c in text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"
