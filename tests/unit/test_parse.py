"""Typed values from a program's output."""

from __future__ import annotations

import contextlib
import enum
import json
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict

import pydantic
import pytest
import typing_extensions
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot._parse import json_schema, parse_as, with_schema
from sandlot.errors import OutputParseError, SandboxConfigurationError, SandboxExecutionError


@dataclass
class Stats:
    count: int
    mean: float


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Box:
    stats: Stats
    colours: list[Colour] = field(default_factory=list)
    by_name: dict[str, Stats] = field(default_factory=dict)
    note: str | None = None
    mode: Literal["fast", "slow", 3] = "fast"
    computed: int = field(default=0, init=False)


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Point(NamedTuple):
    x: int
    y: int = 0


Loose = namedtuple("Loose", "a b")


class Plain:
    def __init__(self, name: str, size: int = 1) -> None:
        self.name = name.upper()
        self.size = size


class Model(pydantic.BaseModel):
    count: int
    mean: float
    tags: list[str] = []


class StrictModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    day: date


class Numbers(pydantic.RootModel[list[int]]):
    pass


UserId = NewType("UserId", int)
ANSWER = '{"count": 3, "mean": 2.0}'


def failure(text: str, type_: Any) -> str:
    with pytest.raises(OutputParseError) as caught:
        parse_as(text, type_)
    return str(caught.value)


# Where the answer is found


@pytest.mark.parametrize(
    "text",
    [
        ANSWER,
        f"\ufeff{ANSWER}\r\n",
        f"Here you are: {ANSWER}. Anything else?",
        f"```json\n{ANSWER}\n```",
        f"Sure!\r\n```json\r\n{ANSWER}\r\n```\r\nDone.",
        f"~~~\n{ANSWER}\n~~~",
        f"```json\n{ANSWER}",
        f"```{ANSWER}```",
        f"it's {{ not \"closed, then\n{ANSWER}",
        f"[INFO] [1/3] {{braces}} [12:03] 'quotes\" {ANSWER} ]}}",
        f'{{"level": "info"}}\n{{"level": "warn", "of": [1, {{}}]}}\n{ANSWER}\n',
        f"{ANSWER}\n[1, 2]\n7\n",
        f"starting {{\n{ANSWER}",
        f'{{"unfinished": "line\n{ANSWER}',
        f"{{'python': 'dict'}} {ANSWER}",
        f"\x1b[32m{ANSWER}\x1b[0m",
    ],
)
def test_the_object_is_found_wherever_it_stands(text: str) -> None:
    assert parse_as(text, Stats) == Stats(3, 2.0)


def test_the_last_object_that_fits_wins() -> None:
    logs = "\n".join(f'{{"count": {n}, "mean": 0}}' for n in range(5))
    assert parse_as(f'{logs}\n{{"other": 1}}', Stats).count == 4


def test_a_fence_wins_over_prose_and_the_last_fence_over_the_first() -> None:
    def fenced(n: int) -> str:
        return f'```json\n{{"count": {n}, "mean": 0}}\n```\n'

    text = f'{fenced(1)}then\n{fenced(2)}and {{"count": 3, "mean": 0}} too'
    assert parse_as(text, Stats).count == 2


def test_braces_and_quotes_inside_strings_do_not_count() -> None:
    value = {"a": 'x{["}\\" \\', "b": ["]}", '"{']}
    assert parse_as(f"result {json.dumps(value)} end", dict[str, Any]) == value


def test_a_scalar_is_found_as_the_last_line() -> None:
    assert parse_as("loading\n3 files\n42\n", int) == 42
    assert parse_as('done\n"ok"', str) == "ok"


@pytest.mark.parametrize(
    "value", ['{"a": [1, {"b": 2}', '[1,\n{"b": 2}', '{"x": {"b": 2}, "y": "cut']
)
def test_a_part_of_a_value_that_is_cut_off_is_never_the_answer(value: str) -> None:
    assert "ends in the middle" in failure(f"log line\n{value}", dict)


def test_the_last_line_of_an_array_that_is_cut_off_is_not_a_number() -> None:
    assert "ends in the middle" in failure("log\n[1,\n2", int)


def test_an_inner_object_is_not_taken_for_the_outer() -> None:
    assert "no 'count'" in failure(f'log {{"inner": {ANSWER}}}', Stats)


# What is built


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (int, "3", 3),
        (float, "3", 3.0),
        (float, "2.5", 2.5),
        (str, '"x"', "x"),
        (bool, "true", True),
        (None, "null", None),
        (int | None, "null", None),
        (int | float, "3", 3),
        (float | int, "3", 3),
        (Colour | str, '"red"', Colour.RED),
        (Stats | dict, ANSWER, Stats(3, 2.0)),
        (Any, "[1, null]", [1, None]),
        (object, "{}", {}),
        (dict, '{"a": [1]}', {"a": [1]}),
        (list, "[1, {}]", [1, {}]),
        (list[int], "[1, 2]", [1, 2]),
        (Sequence[int], "[1, 2]", [1, 2]),
        (set[int], "[1, 1]", {1}),
        (frozenset[str], '["a"]', frozenset("a")),
        (tuple[int, ...], "[1, 2]", (1, 2)),
        (tuple[int, str], '[1, "a"]', (1, "a")),
        (dict[str, Stats], f'{{"a": {ANSWER}}}', {"a": Stats(3, 2.0)}),
        (Mapping[Colour, int], '{"red": 1}', {Colour.RED: 1}),
        (Literal["a", 1], "1", 1),
        (Annotated[UserId, "meta"], "7", 7),
        (Movie, '{"title": "Up"}', {"title": "Up"}),
        (Point, '{"x": 1}', Point(1, 0)),
        (Point, "[1, 2]", Point(1, 2)),
        (Loose, '{"a": 1, "b": []}', Loose(1, [])),
        (Model, '{"count": 3, "mean": 2, "tags": ["a"]}', Model(count=3, mean=2, tags=["a"])),
        (list[Model], '[{"count": 3, "mean": 2}]', [Model(count=3, mean=2)]),
        (Numbers, "[1, 2]", Numbers([1, 2])),
        (StrictModel, '{"day": "2024-02-29"}', StrictModel(day=date(2024, 2, 29))),
        (Tree, '{"name": "a", "children": [{"name": "b"}]}', Tree("a", [Tree("b")])),
    ],
)
def test_values_are_built(type_: Any, text: str, value: object) -> None:
    built = parse_as(text, type_)
    assert built == value
    assert type(built) is type(value)


def test_a_dataclass_is_built_with_all_that_is_in_it() -> None:
    text = json.dumps(
        {
            "stats": {"count": 1, "mean": 1},
            "colours": ["red", "blue"],
            "by_name": {"x": {"count": 2, "mean": 0.5}},
            "mode": 3,
        }
    )
    stats = Stats(1, 1.0)
    assert parse_as(text, Box) == Box(
        stats, [Colour.RED, Colour.BLUE], {"x": Stats(2, 0.5)}, None, 3
    )


def test_the_typed_dict_of_typing_extensions_is_one_too() -> None:
    class Extended(typing_extensions.TypedDict):
        title: str

    assert parse_as('{"title": "Up"}', Extended) == {"title": "Up"}
    assert "expected a string" in failure('{"title": 3}', Extended)


def test_a_plain_class_gets_keyword_arguments() -> None:
    plain = parse_as('{"name": "a", "size": 2}', Plain)
    assert (plain.name, plain.size) == ("A", 2)


# What is refused, and how it is told


@pytest.mark.parametrize(
    ("type_", "text", "reason"),
    [
        (Stats, '{"count": 1, "mean": "x"}', "field 'mean': expected a number, got a string"),
        (Stats, '{"count": true, "mean": 1}', "field 'count': expected an integer, got a boolean"),
        (Stats, '{"count": 1.0, "mean": 1}', "field 'count': expected an integer, got a number"),
        (Stats, '{"count": 1, "mean": 1, "mode": 2}', "unknown key 'mode'"),
        (Stats, '{"count": 1}', "no 'mean'"),
        (Stats, "[]", "expected an object, got an array"),
        (Box, '{"stats": {"count": 1, "mean": null}}', "field 'stats.mean': expected a number"),
        (Box, f'{{"stats": {ANSWER}, "computed": 1}}', "unknown key 'computed'"),
        (Box, f'{{"stats": {ANSWER}, "mode": "3"}}', "expected one of 'fast', 'slow', 3"),
        (
            Box,
            f'{{"stats": {ANSWER}, "colours": ["green"]}}',
            "field 'colours[0]': expected one of",
        ),
        (Movie, '{"year": 1}', "no 'title'"),
        (Movie, '{"title": "Up", "yaer": 1}', "unknown key 'yaer'"),
        (Point, "[1, 2, 3]", "expected an object, got an array"),
        (tuple[int, int], "[1]", "expected 2 items, got 1"),
        (set[Any], "[[]]", "unhashable"),
        (int, '"3"', "expected an integer, got a string"),
        (int | None, '"3"', "expected an integer or null, got a string"),
        (str, "3", "expected a string, got an integer"),
        (dict[str, int], '{"a": {}}', "field 'a': expected an integer, got an object"),
        (float, "NaN", "NaN is not JSON"),
        (Any, '{"a": -Infinity}', "-Infinity is not JSON"),
        (float, "1e999", "too large"),
        (int, "1" * 5000, "integer string conversion"),
        (Plain, '{"name": 3}', "'int' object has no attribute 'upper'"),
        (Plain, '{"nom": 3}', "unexpected keyword argument 'nom'"),
        (Model, '{"count": "x", "mean": 1}', "field 'count': Input should be a valid integer"),
        (list[Model], '[{"count": 1}]', "field '[0].mean': Field required"),
        (Stats, '{"count": 1, "mean": 2,}', "not JSON: "),
        (Stats, "log {'count': 1}", "no JSON was found"),
        (Stats, "", "no JSON was found"),
    ],
)
def test_the_message_says_why(type_: Any, text: str, reason: str) -> None:
    assert reason in failure(text, type_)


def test_the_message_tells_of_the_nearest_miss() -> None:
    near = '{"count": 1, "mean": "x"}'
    text = f'{{"level": "info"}}\n{near}\n[1, 2]\n{{"done": true, "rows": 3}}\n'
    message = failure(text, Stats)
    assert "field 'mean': expected a number, got a string" in message
    assert near in message
    near_model = failure(text.replace("mean", "count_"), Model)
    assert "Field required" in near_model


def test_the_excerpt_shows_where_the_json_breaks_and_else_the_end_of_the_output() -> None:
    rows = "1, " * 500
    assert "hereabouts: 2" in failure(f'{{"rows": [{rows}hereabouts: 2, {rows}]}}', Stats)
    assert "prose " * 20 + "the very end" in failure("prose " * 500 + "the very end", Stats)
    assert "the very end" in failure(f'{{"rows": [{rows}"the very end', Stats)


def test_the_nearest_miss_of_a_union_is_told() -> None:
    text = '{"count": 1, "mean": "x"}'
    assert "field 'mean': expected a number" in failure(text, Point | Stats | None)


@pytest.mark.parametrize(
    ("type_", "template"),
    [
        (Stats, "%s"),
        (Stats, '{"%s": 1}'),
        (dict[str, dict[str, int]], '{"%s": {"%s": "%s"}}'),
        (dict[str, Model], '{"%s": {"count": "%s"}}'),
        (Model, '{"count": "%s", "mean": "%s", "%s": 1}'),
        (Literal["a"], '"%s"'),
        (Stats, '{"count": 1, "mean": "%s'),
        (Stats, '{"count": 1, "mean": "%s" oops'),
    ],
)
@pytest.mark.parametrize("secret", ["ж" * 1000, "ж\n\x1b" * 400])
def test_at_most_200_characters_of_the_output_are_quoted(
    type_: Any, template: str, secret: str
) -> None:
    with pytest.raises(OutputParseError) as caught:
        parse_as(template.replace("%s", json.dumps(secret, ensure_ascii=False)[1:-1]), type_)
    error: BaseException | None = caught.value
    assert "\x1b" not in str(error)
    assert len(str(error)) < 600
    while error is not None:  # a traceback prints the whole chain
        assert str(error).count("ж") <= 200
        error = error.__cause__ or error.__context__


def test_what_the_class_itself_raises_is_not_quoted_at_length() -> None:
    class Loud:
        def __init__(self, value: str) -> None:
            raise ValueError(value)

    assert failure('{"value": "%s"}' % ("ж" * 1000), Loud).count("ж") <= 200


def test_the_error_is_an_execution_error_with_a_hint() -> None:
    with pytest.raises(SandboxExecutionError) as caught:
        parse_as("nothing", Stats)
    assert isinstance(caught.value, ValueError)
    assert caught.value.hint


@pytest.mark.parametrize("type_", [bytes, "Stats", list[bytes], Callable, 3])
def test_a_type_that_json_can_not_hold_is_a_mistake_of_the_caller(type_: Any) -> None:
    with pytest.raises((SandboxConfigurationError, OutputParseError)):
        parse_as("[1]", type_)


def test_an_annotation_that_can_not_be_resolved_is_named() -> None:
    @dataclass
    class Broken:
        x: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(SandboxConfigurationError, match="Nowhere"):
        parse_as('{"x": 1}', Broken)


# Hostile output

HOSTILE = [
    "{", "[", '{"a":', '{"', '"{', "[1", "[1,", "{}", '{"a":1}', "}{", '[{"a":[1,{"b":"',
    '\\"{', '{"\\', '[["', '{"a":"\\"', '{"a":1,"[', "```\n", "~~~\n{\n", '{ "a" ', "[0,\"x{",
    '{"x": "]}\n', "[\n", " ", '"', "\\",
]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_time_is_proportional_to_the_size_of_hostile_output(piece: str) -> None:
    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            failure(text, Stats)
            best = min(best, time.process_time() - start)
        return best

    small, large = seconds(20_000), seconds(80_000)
    assert large < 0.02 or large / small < 4 * 3.5 / 2


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([*'{}[]",:\\ \n1a', "```", "true", '{"a":', '"b"']), max_size=60),
    st.sampled_from([Stats, Any, int, list[int], Model, Plain]),
)
def test_any_text_gives_a_value_or_a_parse_error(pieces: list[str], type_: Any) -> None:
    with contextlib.suppress(OutputParseError):
        parse_as("".join(pieces), type_)


@pytest.mark.parametrize("text", ["[" * 10**6 + "]" * 10**6, '{"a":' * 10**5 + "1" + "}" * 10**5])
@pytest.mark.parametrize("before", ["", "log "])
def test_deep_nesting_is_refused(before: str, text: str) -> None:
    assert "nested more than" in failure(before + text, Any)


def test_a_high_recursion_limit_does_not_let_deep_nesting_overflow_the_stack() -> None:
    code = (
        "import sys; sys.setrecursionlimit(10**9)\n"
        "from sandlot._parse import parse_as\n"
        "parse_as('[' * 10**6 + ']' * 10**6, list)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.returncode == 1
    assert "OutputParseError" in done.stderr


def test_nesting_that_python_has_no_stack_left_for_is_refused() -> None:
    def deep(frames: int) -> str:
        return deep(frames - 1) if frames else failure(text, Tree)

    text = '{"name": "", "children": [' * 45 + "]}" * 45
    assert parse_as(text, Tree).children[0].name == ""
    used = 0
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        used += 1
    assert "nested too deeply" in deep(sys.getrecursionlimit() - used - 120)


@dataclass
class Left:
    to: Left | Right | int


@dataclass
class Right:
    to: Left | Right | int


def test_a_recursive_union_does_not_take_exponential_time() -> None:
    depth = 60
    text = '{"to": ' * depth + '"x"' + "}" * depth
    assert "expected an object or an integer, got a string" in failure(text, Left)


def test_only_so_many_values_are_tried() -> None:
    calls = []

    class Fussy:
        def __init__(self, n: int) -> None:
            calls.append(n)
            raise ValueError(n)

    failure("\n".join(f'{{"n": {n}}}' for n in range(10_000)), Fussy)
    assert max(calls) == 9999
    assert len(calls) <= 200


# Any value of any type

Typed = tuple[Any, Any, Any]  # a type, a value of it, and the value's JSON form


def scalars() -> st.SearchStrategy[Typed]:
    def typed(type_: Any, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Typed]:
        return values.map(lambda value: (type_, value, value))

    return st.one_of(
        typed(int, st.integers()),
        typed(float, st.floats(allow_nan=False, allow_infinity=False)),
        typed(str, st.text()),
        typed(bool, st.booleans()),
        typed(None, st.none()),
        st.sampled_from(Colour).map(lambda colour: (Colour, colour, colour.value)),
    )


def made_of(**hints: Any) -> Any:
    """Return a new dataclass with these fields."""
    return dataclass(type("Made", (), {"__annotations__": hints}))


def pair(a: Typed, b: Typed) -> Typed:
    cls = made_of(first=a[0], second=b[0])
    return cls, cls(a[1], b[1]), {"first": a[2], "second": b[2]}


def union(a: Typed, b: Typed) -> Typed:
    # Only of kinds that JSON tells apart; else the first member rightly wins.
    kinds = {type(a[2]), type(b[2])}
    tell_apart = len(kinds) == 2 and not kinds <= {int, float}
    return (a[0] | b[0], a[1], a[2]) if tell_apart else a


def repeated(item: Typed, times: int) -> Typed:
    return list.__class_getitem__(item[0]), [item[1]] * times, [item[2]] * times


def keyed(item: Typed, key: str) -> Typed:
    return dict.__class_getitem__((str, item[0])), {key: item[1]}, {key: item[2]}


def fixed(a: Typed, b: Typed) -> Typed:
    return tuple.__class_getitem__((a[0], b[0])), (a[1], b[1]), [a[2], b[2]]


def containers(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.one_of(
        st.builds(repeated, inner, st.integers(0, 3)),
        st.builds(keyed, inner, st.text()),
        st.builds(fixed, inner, inner),
        st.builds(pair, inner, inner),
        st.builds(union, inner, inner),
    )


PROSE = st.text(st.characters(exclude_characters="{}[]`~", exclude_categories=["Cs"]))


@settings(max_examples=300, deadline=None)
@given(st.recursive(scalars(), containers, max_leaves=8), PROSE, PROSE, st.booleans(), st.data())
def test_any_value_is_read_back_from_the_midst_of_prose(
    typed: Typed, prefix: str, suffix: str, ascii_only: bool, data: st.DataObject
) -> None:
    type_, value, plain = typed
    indent = data.draw(st.sampled_from([None, 0, 2]))
    text = json.dumps(plain, ensure_ascii=ascii_only, indent=indent)
    # A scalar is found only as the last line.
    before, after = (prefix, suffix) if type(plain) in (dict, list) else (f"{prefix}\n", "\n")
    built = parse_as(f"{before}{text}{after}", type_)
    assert built == value
    assert repr(built) == repr(value)  # tells 1 from 1.0 and from True


# The schema


def schema_of(type_: Any) -> Any:
    return json.loads(json_schema(type_).partition("\n")[2])


def test_the_instruction_asks_for_one_object_by_its_schema() -> None:
    assert json_schema(Stats).startswith("Answer with one JSON object")
    assert schema_of(Stats) == {
        "type": "object",
        "properties": {"count": {"type": "integer"}, "mean": {"type": "number"}},
        "required": ["count", "mean"],
        "additionalProperties": False,
    }
    assert json_schema(list[int]).startswith("Answer with one JSON value")


def test_a_pydantic_model_writes_its_own_schema() -> None:
    assert schema_of(Model) == Model.model_json_schema()


def test_the_schema_of_a_dataclass_names_all_that_is_in_it() -> None:
    schema = schema_of(Box)
    assert schema["required"] == ["stats"]
    assert schema["properties"] == {
        "stats": {"$ref": "#/$defs/Stats"},
        "colours": {"type": "array", "items": {"enum": ["red", "blue"]}},
        "by_name": {"type": "object", "additionalProperties": {"$ref": "#/$defs/Stats"}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "mode": {"enum": ["fast", "slow", 3]},
    }
    assert schema["$defs"]["Stats"]["required"] == ["count", "mean"]


def test_a_recursive_type_refers_to_itself() -> None:
    schema = schema_of(Tree)
    assert schema["$ref"] == "#/$defs/Tree"
    assert json_schema(Tree).startswith("Answer with one JSON object")
    children = schema["$defs"]["Tree"]["properties"]["children"]
    assert children == {"type": "array", "items": {"$ref": "#/$defs/Tree"}}


def test_models_inside_a_dataclass_keep_their_own_definitions() -> None:
    class Leaf(pydantic.BaseModel):
        n: int

    class Branch(pydantic.BaseModel):
        leaf: Leaf

    schema = schema_of(made_of(branch=Branch))
    where = schema["$defs"]["Branch"]["properties"]["leaf"]["$ref"]
    found = schema
    for step in where.removeprefix("#/").split("/"):
        found = found[step]
    assert found["properties"] == {"n": {"title": "N", "type": "integer"}}


def test_two_classes_of_one_name_stay_apart() -> None:
    defs = schema_of(made_of(one=made_of(x=int), two=made_of(x=str)))["$defs"]
    types = {d["properties"]["x"]["type"] for d in defs.values()}
    assert types == {"integer", "string"}


@pytest.mark.parametrize(
    ("type_", "schema"),
    [
        (Movie, {"required": ["title"]}),
        (Point, {"required": ["x"]}),
        (Plain, {"type": "object"}),
        (Any, {}),
        (None, {"type": "null"}),
        (tuple[int, str], {"prefixItems": [{"type": "integer"}, {"type": "string"}]}),
        (dict[str, int], {"additionalProperties": {"type": "integer"}}),
    ],
)
def test_other_types_have_schemas_too(type_: Any, schema: dict[str, Any]) -> None:
    assert schema.items() <= schema_of(type_).items()


def test_a_schema_of_what_json_can_not_hold_is_refused() -> None:
    with pytest.raises(SandboxConfigurationError):
        json_schema(bytes)


def test_the_schema_is_added_to_the_last_argument() -> None:
    argv = ("agent", "-p", "Count the lines.")
    assert with_schema(argv, Stats) == ["agent", "-p", f"Count the lines.\n\n{json_schema(Stats)}"]
    with pytest.raises(SandboxConfigurationError):
        with_schema([], Stats)


def test_pydantic_is_not_imported() -> None:
    code = (
        "import sys\n"
        "from sandlot._parse import json_schema, parse_as\n"
        "parse_as('{}', dict), json_schema(dict)\n"
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
