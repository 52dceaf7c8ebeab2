"""Values of a type from decoded JSON, and the JSON schema of a type."""

from __future__ import annotations

import dataclasses
import json
import sys
import typing
from collections import abc
from enum import Enum
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from sandlot.errors import SandboxConfigurationError

_NAMES: dict[Any, str] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    NoneType: "null",
    list: "an array",
    dict: "an object",
}
_SCALARS = (str, bool, int, float, NoneType)
_ARRAYS = {list: list, tuple: tuple, set: set, frozenset: frozenset, abc.Sequence: list}
_OBJECTS = (dict, abc.Mapping)
_UNIONS = (typing.Union, UnionType)
_FORMS = (*_SCALARS, *_ARRAYS, *_OBJECTS, *_UNIONS, typing.Literal, Any)
# What a constructor raises when it is given what it did not expect.
_REFUSALS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


# Building: a value of the type, or why there is none.

NOTHING, MALFORMED, KIND, CONTENT, CUT = range(5)  # how near a miss came


class Miss(Exception):
    """Why a text or value does not fit a type."""

    def __init__(
        self, reason: str, stage: int, *path: str | int, faults: int = 1, at: int = 0
    ) -> None:
        super().__init__(reason)
        self.reason, self.path, self.at = reason, path, at
        self.rank = stage, -faults

    def under(self, key: str | int) -> Miss:
        return Miss(self.reason, CONTENT, key, *self.path, faults=-self.rank[1])


class Mismatch(Miss):
    def __init__(self, expected: str, value: Any) -> None:
        super().__init__(f"expected {expected}, got {_NAMES[type(value)]}", KIND)
        self.expected = expected


class Builder:
    """Builds values of types from one decoded text."""

    def __init__(self) -> None:
        self._chosen: dict[tuple[int, int], Any] = {}
        self._records: dict[Any, _Record | None] = {}

    def build(self, type_: Any, value: Any) -> Any:
        cls, args = _split(type_)
        if cls in _SCALARS:
            return _scalar(cls, value)
        if cls is Any:
            return value
        if cls in _UNIONS:
            return self._union(args, value)
        if choices := _choices(cls, args):
            return _choose(choices, value)
        if cls in _ARRAYS:
            return self._array(cls, args, _expect(list, value))
        if cls in _OBJECTS:
            of_key, of_item = args or (Any, Any)
            items = _expect(dict, value).items()
            return {self._at(k, of_key, k): self._at(k, of_item, item) for k, item in items}
        if hasattr(cls, "model_validate_json"):
            # A strict model takes dates, enums and tuples from JSON text only.
            return _call(cls.model_validate_json, json.dumps(value))
        if cls not in self._records:
            self._records[cls] = _record(cls)
        if record := self._records[cls]:
            return _call(cls, **self._fields(record, value))
        return _call(cls, **_expect(dict, value))

    def _at(self, key: str | int, type_: Any, value: Any) -> Any:
        try:
            return self.build(type_, value)
        except Miss as miss:
            raise miss.under(key) from None

    def _union(self, args: tuple[Any, ...], value: Any) -> Any:
        # Each pair is decided once: a recursive type of two like members would otherwise
        # try 2 ** depth ways to build a value that fits neither.
        pair = id(args), id(value)
        if pair not in self._chosen:
            self._chosen[pair] = self._first_that_fits(args, value)
        if isinstance(chosen := self._chosen[pair], Miss):
            raise chosen
        return chosen

    def _first_that_fits(self, args: tuple[Any, ...], value: Any) -> Any:
        misses: list[Miss] = []
        for arg in sorted(args, key=lambda arg: arg is float):  # an int stays one if it may
            try:
                return self.build(arg, value)
            except Miss as miss:
                misses.append(miss)
        expected = [miss.expected for miss in misses if isinstance(miss, Mismatch)]
        if len(expected) == len(misses):
            return Mismatch(" or ".join(dict.fromkeys(expected)), value)
        return max(misses, key=lambda miss: miss.rank)

    def _array(self, cls: Any, args: tuple[Any, ...], items: list[Any]) -> Any:
        types: abc.Iterable[Any] = repeat(args[0] if args else Any)
        if cls is tuple and args and args[-1] is not ...:
            types = args
            if len(items) != len(args):
                raise Miss(f"expected {len(args)} items, got {len(items)}", CONTENT)
        pairs = zip(types, items, strict=False)
        return _call(_ARRAYS[cls], [self._at(i, t, item) for i, (t, item) in enumerate(pairs)])

    def _fields(self, record: _Record, value: Any) -> dict[str, Any]:
        if record.positional and value.__class__ is list and len(value) <= len(record.hints):
            value = dict(zip(record.hints, value, strict=False))  # as json.dumps writes them
        unknown = [key for key in _expect(dict, value) if key not in record.hints]
        missing = [key for key in record.required if key not in value]
        if unknown or missing:
            faults = [f"unknown key {key!r:.60}" for key in unknown[:1]]
            faults += [f"no {key!r}" for key in missing]
            raise Miss(", ".join(faults), CONTENT, faults=len(unknown) + len(missing))
        return {key: self._at(key, record.hints[key], item) for key, item in value.items()}


def _split(type_: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type's class or special form, and its arguments."""
    while type_ not in _SCALARS:
        if get_origin(type_) is typing.Annotated:
            type_ = type_.__origin__
        elif isinstance(type_, typing.NewType):
            type_ = type_.__supertype__
        elif hasattr(type_, "__value__"):  # `type X = ...`, of Python 3.12
            type_ = type_.__value__
        else:
            break
    cls = NoneType if type_ is None else Any if type_ is object else get_origin(type_) or type_
    if cls not in _FORMS and not (isinstance(cls, type) and cls.__module__ != "builtins"):
        raise SandboxConfigurationError(f"{type_!r} can't be built from JSON")
    return cls, get_args(type_)


def _expect(kind: Any, value: Any) -> Any:
    if type(value) is not kind:
        raise Mismatch(_NAMES[kind], value)
    return value


def _scalar(kind: Any, value: Any) -> Any:
    if kind is not float:
        return _expect(kind, value)
    if type(value) is not int and abs(_expect(float, value)) > sys.float_info.max:
        raise Miss("the number is too large", CONTENT)
    return float(value)


def _choices(cls: Any, args: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """Return the members of an Enum or Literal, each with what stands for it in JSON."""
    members = args if cls is typing.Literal else cls if issubclass(cls, Enum) else ()
    return [(item, item.value if isinstance(item, Enum) else item) for item in members]


def _choose(choices: list[tuple[Any, Any]], value: Any) -> Any:
    for member, json_value in choices:
        if type(json_value) is type(value) and json_value == value:
            return member
    raise Mismatch("one of " + ", ".join(repr(json_value) for _, json_value in choices), value)


def _call(make: abc.Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    try:
        return make(*args, **kwargs)
    except _REFUSALS as exc:
        refusal: Any = exc
    if not hasattr(refusal, "error_count"):
        raise Miss(str(refusal) or type(refusal).__name__, CONTENT)
    # pydantic's: its own text would quote the input.
    first = refusal.errors(include_url=False, include_context=False, include_input=False)[0]
    stage = CONTENT if first["loc"] else KIND
    raise Miss(first["msg"], stage, *first["loc"], faults=refusal.error_count())


@dataclasses.dataclass(frozen=True, slots=True)
class _Record:
    """The fields of a dataclass, TypedDict or NamedTuple."""

    hints: dict[str, Any]
    required: list[str]
    positional: bool = False


def _record(cls: Any) -> _Record | None:
    named_tuple = tuple in cls.__mro__ and hasattr(cls, "_fields")
    typed_dict = hasattr(cls, "__required_keys__")  # also that of typing_extensions
    if not (dataclasses.is_dataclass(cls) or typed_dict or named_tuple):
        return None
    try:
        hints = get_type_hints(cls)
        marks = {k: get_origin(v) for k, v in get_type_hints(cls, include_extras=True).items()}
    except (NameError, TypeError) as exc:
        raise SandboxConfigurationError(f"an annotation of {cls!r}: {exc}") from exc
    if dataclasses.is_dataclass(cls):
        fields = [field for field in dataclasses.fields(cls) if field.init]
        required = [f.name for f in fields if f.default is f.default_factory]  # both MISSING
        return _Record({field.name: hints[field.name] for field in fields}, required)
    if named_tuple:
        required = [name for name in cls._fields if name not in cls._field_defaults]
        return _Record({name: hints.get(name, Any) for name in cls._fields}, required, True)
    # Where annotations are strings, __required_keys__ does not know of NotRequired.
    optional = {key for key in hints if marks[key] is typing.NotRequired}
    return _Record(hints, [key for key in hints if key in cls.__required_keys__ - optional])


# Describing: a JSON schema of the type.


class SchemaWriter:
    def __init__(self) -> None:
        self._defs: dict[str, Any] = {}
        self._names: dict[Any, str] = {}

    def document(self, type_: Any) -> dict[str, Any]:
        if hasattr(type_, "model_json_schema"):
            return dict(type_.model_json_schema())
        schema = self._of(type_)
        name = schema.get("$ref", "").rpartition("/")[2]
        if name and f'"#/$defs/{name}"' not in json.dumps(self._defs):
            schema = self._defs.pop(name)
        return {**schema, "$defs": self._defs} if self._defs else schema

    def _of(self, type_: Any) -> dict[str, Any]:
        cls, args = _split(type_)
        if cls is Any:
            return {}
        if cls in _SCALARS:
            return {"type": _NAMES[cls].split()[-1]}
        if cls in _UNIONS:
            return {"anyOf": [self._of(arg) for arg in args]}
        if choices := _choices(cls, args):
            return {"enum": [json_value for _, json_value in choices]}
        if cls in _OBJECTS:
            return {
                "type": "object",
                "additionalProperties": self._of(args[1] if args else Any),
            }
        if cls in _ARRAYS:
            return {"type": "array", **self._items(cls, args)}
        if cls not in self._names:
            taken = sum(other.__name__ == cls.__name__ for other in self._names)
            self._names[cls] = f"{cls.__name__}_{taken + 1}" if taken else cls.__name__
            self._defs[self._names[cls]] = self._define(cls, self._names[cls])
        return {"$ref": f"#/$defs/{self._names[cls]}"}

    def _items(self, cls: Any, args: tuple[Any, ...]) -> dict[str, Any]:
        if cls is tuple and args and args[-1] is not ...:
            items = [self._of(arg) for arg in args]
            return {"prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        return {"items": self._of(args[0] if args else Any)}

    def _define(self, cls: Any, name: str) -> dict[str, Any]:
        if hasattr(cls, "model_json_schema"):
            return dict(cls.model_json_schema(ref_template=f"#/$defs/{name}/$defs/{{model}}"))
        if not (record := _record(cls)):
            return {"type": "object"}
        return {
            "type": "object",
            "properties": {key: self._of(hint) for key, hint in record.hints.items()},
            "required": record.required,
            "additionalProperties": False,
        }
