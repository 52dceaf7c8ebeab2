"""The constants agree in all four places, and bodies are packed as PROTOCOL.md says."""

from __future__ import annotations

import importlib.util
import re
from enum import IntEnum
from pathlib import Path
from types import ModuleType

import pytest

from sandlot import helper
from sandlot.helper import protocol
from sandlot.helper.protocol import (
    CommandState,
    Feature,
    FrameType,
    Listed,
    Scope,
    Stage,
    StartFlag,
    pack_frame,
    pack_listing,
    pack_start,
    unpack_listing,
)

HERE = Path(helper.__file__).parent
PAGE = (HERE / "PROTOCOL.md").read_text()


@pytest.fixture(scope="module")
def twin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("twin", helper.TWIN)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_twin_has_the_same_constants(twin: ModuleType) -> None:
    for frame in FrameType:
        assert getattr(twin, frame.name) == frame
    prefixes: dict[str, list[IntEnum]] = {
        "START_": [*StartFlag],
        "SCOPE_": [*Scope],
        "STAGE_": [*Stage],
        "FEATURE_": [*Feature],
        "": [*CommandState],
    }
    for prefix, values in prefixes.items():
        for value in values:
            assert getattr(twin, prefix + value.name) == value
    for name in ("VERSION", "OWNER_FD", "MAX_FRAME", "MAX_WAITING_FDS"):
        assert getattr(twin, name) == getattr(protocol, name)
    for name in (
        "HEADER",
        "START_BODY",
        "SIGNAL_BODY",
        "U32",
        "U64",
        "PAIR",
        "HELLO_BODY",
        "EXITED_BODY",
        "LISTED_HEAD",
    ):
        assert getattr(twin, name).format == getattr(protocol, name).format


def enumerators(text: str) -> dict[str, int]:
    """Read the enums of a C header."""
    found: dict[str, int] = {}
    for body in re.findall(r"enum \w* ?\{(.*?)\}", text, re.S):
        following = 0
        for part in filter(None, map(str.strip, body.split(","))):
            name, _, value = map(str.strip, part.partition("="))
            following = eval(value) if value else following
            found[name] = following
            following += 1
    return found


def test_the_header_has_the_same_constants() -> None:
    constants = enumerators((HERE / "init.h").read_text())
    for frame in FrameType:
        assert constants[frame.name] == frame
    expected = {
        "START_PTY": StartFlag.PTY,
        "START_QUIET": StartFlag.QUIET,
        "SCOPE_GROUP": Scope.GROUP,
        "SCOPE_TREE": Scope.TREE,
        "STAGE_SETUP": Stage.SETUP,
        "STAGE_CHDIR": Stage.CHDIR,
        "STAGE_EXEC": Stage.EXEC,
        "STARTING": CommandState.STARTING,
        "RUNNING": CommandState.RUNNING,
        "LEADER_EXITED": CommandState.LEADER_EXITED,
        "FEATURE_FDS": Feature.FDS,
        "FEATURE_PTY": Feature.PTY,
        "FEATURE_NATIVE": Feature.NATIVE,
        "PROTOCOL_VERSION": protocol.VERSION,
        "OWNER_FD": protocol.OWNER_FD,
        "MAX_FRAME": protocol.MAX_FRAME,
        "MAX_WAITING_FDS": protocol.MAX_WAITING_FDS,
    }
    assert {name: constants[name] for name in expected} == expected


def test_the_page_names_every_frame() -> None:
    rows = dict(re.findall(r"^\| (0x[0-9A-F]{2}) \| (\w+) \|", PAGE, re.M))
    assert {int(number, 16): name for number, name in rows.items()} == {
        int(frame): frame.name for frame in FrameType
    }


def test_a_frame_is_laid_out_as_the_page_says() -> None:
    assert pack_frame(FrameType.KEEP, 258, b"\1") == bytes.fromhex("06000000 06 02010000 01")


def test_a_start_is_laid_out_as_the_page_says() -> None:
    body = pack_start("/tmp", ["echo", "é"], ["A=1"], flags=1, fds=3)
    numbers = bytes.fromhex("01000000 03000000 02000000 01000000")
    assert body == numbers + b"/tmp\0echo\0\xc3\xa9\0A=1\0"


def test_a_start_keeps_bytes_that_are_not_utf8() -> None:
    assert pack_start("", ["\udcff"], []).endswith(b"\0\xff\0")


@pytest.mark.parametrize(
    ("cwd", "argv", "env"),
    [("a\0b", ["x"], []), ("", ["a\0b"], []), ("", ["x"], ["A=\0"]), ("", ["\ud800"], [])],
)
def test_a_start_refuses_what_would_be_read_otherwise(
    cwd: str, argv: list[str], env: list[str]
) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (UnicodeEncodeError is one too)
        pack_start(cwd, argv, env)


def test_a_start_is_refused_above_16_mib_and_not_below() -> None:
    room = protocol.MAX_STRINGS - len("\0\0")
    body = pack_start("", ["x" * room], [])
    assert protocol.LENGTH_OVERHEAD + len(body) == protocol.MAX_FRAME
    with pytest.raises(ValueError, match="16 MiB"):
        pack_start("", ["x" * (room + 1)], [])


def test_a_listing_comes_back_as_it_was() -> None:
    commands = [
        Listed(1, 2, CommandState.RUNNING, 1 << 40, (b"sh", b"", b"\xff")),
        Listed(0, 0, CommandState.STARTING, 0, ()),
    ]
    assert unpack_listing(pack_listing(commands)) == commands
