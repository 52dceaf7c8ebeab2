"""What real shells change in a sandbox, and what they say when they can't."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from host_handle import HostHandle
from host_handle import handle as handle
from host_handle import land as land
from host_handle import limited as limited
from host_handle import place as place

from sandlot import _shell
from sandlot.errors import (
    FeatureNotSupportedError,
    SandboxConfigurationError,
    SandboxError,
    SandboxFileError,
    SandboxFileExistsError,
    SandboxFileNotFoundError,
    SandboxFilePermissionError,
    SandboxIsADirectoryError,
    SandboxNotADirectoryError,
)

Operation = Callable[[HostHandle, str], Awaitable[object]]
NEEDING_A_PATH: dict[str, Operation] = {
    "list_dir": lambda handle, path: handle.list_dir(path),
    "stat": lambda handle, path: handle.stat(path),
    "remove": lambda handle, path: handle.remove(path, recursive=True),
    "move": lambda handle, path: handle.move(path, "elsewhere"),
    "move to": lambda handle, path: handle.move("file", f"{path}/x"),
    "set_mode": lambda handle, path: handle.set_mode(path, 0o644),
    "upload_tar": lambda handle, path: _shell.upload_tar(handle, path, no_pieces()),
    "download_tar": lambda handle, path: anext(handle.download_tar(path)),
}


async def no_pieces() -> AsyncIterator[bytes]:
    for piece in list[bytes]():
        yield piece


def unless_tarless(
    handle: HostHandle, operation: str, kind: type[SandboxError]
) -> type[SandboxError]:
    """The error to expect: without a tar, what needs one says so, and looks no further."""
    tarless = handle.land.name == "bare" and operation.endswith("_tar")
    return FeatureNotSupportedError if tarless else kind


@pytest.mark.parametrize("operation", NEEDING_A_PATH)
async def test_what_is_missing_is_said_to_be_missing(handle: HostHandle, operation: str) -> None:
    (handle.root / "file").touch()
    for path in ("missing", "missing/deeper", "/missing", "-missing", "miss ing\n"):
        kind = unless_tarless(handle, operation, SandboxFileNotFoundError)
        with pytest.raises(kind) as caught:
            await NEEDING_A_PATH[operation](handle, path)
        assert kind is FeatureNotSupportedError or path in caught.value.message
    assert (handle.root / "file").exists()


@pytest.mark.parametrize("operation", NEEDING_A_PATH)
async def test_a_path_through_a_file_is_not_a_directory(handle: HostHandle, operation: str) -> None:
    (handle.root / "file").touch()
    (handle.root / "other").touch()
    path = "other" if operation == "move to" else "other/x"
    with pytest.raises(unless_tarless(handle, operation, SandboxNotADirectoryError)):
        await NEEDING_A_PATH[operation](handle, path)


@pytest.mark.parametrize("operation", NEEDING_A_PATH)
async def test_a_path_through_a_closed_directory_is_denied(
    limited: HostHandle, operation: str
) -> None:
    (limited.root / "file").touch()
    (limited.root / "closed").mkdir()
    (limited.root / "closed/x").mkdir()
    (limited.root / "closed").chmod(0o000)
    try:
        path = "closed" if operation == "move to" else "closed/x"
        with pytest.raises(unless_tarless(limited, operation, SandboxFilePermissionError)):
            await NEEDING_A_PATH[operation](limited, path)
    finally:
        (limited.root / "closed").chmod(0o755)


# ----------------------------------------------------------------- changing


async def test_a_directory_is_made_with_those_above_it_and_may_be_there(
    handle: HostHandle,
) -> None:
    for path in ("a/b/c", "a/b", "-p", "with space/\n", str(handle.root / "absolute")):
        await handle.make_dir(path)
        await handle.make_dir(f"{path}/")
        assert (handle.root / path).is_dir()


async def test_a_directory_is_not_made_over_a_file_or_through_one(handle: HostHandle) -> None:
    (handle.root / "file").touch()
    (handle.root / "dangling").symlink_to("nowhere")
    for path in ("file", "dangling"):
        with pytest.raises(SandboxFileExistsError):
            await handle.make_dir(path)
    with pytest.raises(SandboxNotADirectoryError):
        await handle.make_dir("file/x/y")


async def test_a_file_a_link_and_an_empty_directory_are_removed(handle: HostHandle) -> None:
    kept = handle.root / "kept"
    kept.mkdir()
    (kept / "content").touch()
    (handle.root / "link").symlink_to("kept")
    (handle.root / "slashed").symlink_to("kept")
    (handle.root / "dangling").symlink_to("nowhere")
    (handle.root / "dir").mkdir()
    (handle.root / "-f").touch()
    for path in ("link", "slashed/", "dangling", "dir", "-f"):
        await handle.remove(path, recursive=path == "slashed/")
    assert os.listdir(handle.root) == ["kept"]
    assert (kept / "content").exists()


async def test_a_full_directory_is_removed_only_when_told_so(handle: HostHandle) -> None:
    (handle.root / "d/e").mkdir(parents=True)
    (handle.root / "outside").mkdir()
    (handle.root / "outside/f").touch()
    (handle.root / "d/link").symlink_to("../outside")
    with pytest.raises(SandboxFileError, match="not empty"):
        await handle.remove("d", recursive=False)
    await handle.remove("d", recursive=True)
    assert os.listdir(handle.root) == ["outside"]
    assert (handle.root / "outside/f").exists()


@pytest.mark.parametrize("path", ["/", "//", ".", "..", "a/..", "a/./", ""])
async def test_what_holds_everything_is_not_removed(handle: HostHandle, path: str) -> None:
    with pytest.raises(SandboxConfigurationError):
        await handle.remove(path, recursive=True)
    assert handle.commands == []


async def test_a_file_takes_the_place_of_a_file_or_link(handle: HostHandle) -> None:
    (handle.root / "directory").mkdir()
    (handle.root / "file").write_text("old")
    (handle.root / "dangling").symlink_to("nowhere")
    (handle.root / "link").symlink_to("directory")
    for target in ("file", "dangling", "link", "new", "-n"):
        (handle.root / "source").write_text(target)
        await handle.move("source", target)
        assert not (handle.root / target).is_symlink()
        assert (handle.root / target).read_text() == target
        assert not (handle.root / "source").exists()
    assert os.listdir(handle.root / "directory") == []


async def test_a_link_is_moved_as_itself(handle: HostHandle) -> None:
    (handle.root / "directory").mkdir()
    (handle.root / "link").symlink_to("directory")
    await handle.move("link/", "moved")
    assert os.readlink(handle.root / "moved") == "directory"
    assert (handle.root / "directory").is_dir()


async def test_a_directory_moves_to_a_free_name_alone(handle: HostHandle) -> None:
    (handle.root / "d").mkdir()
    (handle.root / "d/f").touch()
    (handle.root / "taken").mkdir()
    (handle.root / "file").touch()
    with pytest.raises(SandboxIsADirectoryError):
        await handle.move("d", "taken")
    with pytest.raises(SandboxIsADirectoryError):
        await handle.move("file", "taken/")
    with pytest.raises(SandboxNotADirectoryError):
        await handle.move("d", "file")
    await handle.move("d", "free/")
    assert (handle.root / "free/f").exists()
    assert os.listdir(handle.root / "taken") == []


async def test_moving_to_the_same_name_changes_nothing(handle: HostHandle) -> None:
    (handle.root / "f").write_text("x")
    await handle.move("f", "f")
    assert (handle.root / "f").read_text() == "x"


async def test_all_permission_bits_are_set_exactly(handle: HostHandle) -> None:
    (handle.root / "-f").touch()
    (handle.root / "d").mkdir()
    for path in ("-f", "d"):
        for mode in (0o7777, 0o755, 0o000, 0o2700, 0o644):
            await handle.set_mode(path, mode)
            assert stat.S_IMODE((handle.root / path).stat().st_mode) == mode
    for mode in (-1, 0o10000):
        with pytest.raises(SandboxConfigurationError):
            await handle.set_mode("d", mode)


async def test_a_link_is_made_in_place_of_a_file_or_link(handle: HostHandle) -> None:
    (handle.root / "file").touch()
    (handle.root / "dir").mkdir()
    (handle.root / "old").symlink_to("dir")
    for path in ("file", "old", "-new", "new\n"):
        await _shell.link(handle, path, "-odd target\n")
        assert os.readlink(handle.root / path) == "-odd target\n"
    with pytest.raises(SandboxIsADirectoryError):
        await _shell.link(handle, "dir", "x")
    with pytest.raises(SandboxFileNotFoundError):
        await _shell.link(handle, "no/where", "x")


async def test_what_belongs_to_another_is_denied(limited: HostHandle) -> None:
    root = limited.root
    (root / "locked").mkdir()
    (root / "locked/f").touch()
    (root / "locked/empty").mkdir()
    (root / "mine").touch()
    os.chmod(root / "locked", 0o555)
    try:
        for attempt in (
            limited.make_dir("locked/new/er"),
            limited.remove("locked/f", recursive=False),
            limited.remove("locked/empty", recursive=False),
            limited.remove("locked", recursive=True),
            limited.move("locked/f", "here"),
            limited.move("mine", "locked/here"),
            _shell.link(limited, "locked/l", "x"),
        ):
            with pytest.raises(SandboxFilePermissionError):
                await attempt
    finally:
        os.chmod(root / "locked", 0o755)
    if os.geteuid() == 0:
        with pytest.raises(SandboxFilePermissionError):
            await limited.set_mode("locked/f", 0o777)
    assert (root / "locked/f").exists()
