"""Files and trees that move between this machine and a sandbox with real tools."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from host_handle import HostHandle, snapshot, userland
from host_handle import here as here
from host_handle import nothing_is_left_running as nothing_is_left_running
from host_handle import place as place
from host_handle import plain as plain
from host_handle import spool as spool
from host_handle import tree as tree

from sandlot import _transfer
from sandlot._transfer import download_dir, download_file, upload_dir, upload_file
from sandlot.errors import (
    FeatureNotSupportedError,
    SandboxConnectionError,
    SandboxError,
    SandboxFileNotFoundError,
    SandboxNotADirectoryError,
)
from sandlot.events import Event, subscribe

MIB = 1024 * 1024


@pytest.fixture(params=["dash", "busybox", "bare"])
def handle(request: pytest.FixtureRequest, place: Path, spool: Path) -> HostHandle:
    root = place / "root"
    root.mkdir()
    return HostHandle(root, userland(request.param, place / "bin"))


def is_dir(found: object) -> bool:
    return isinstance(found, tuple) and stat.S_ISDIR(found[0])


def skipped(action: Callable[[], object]) -> list[tuple[str, str]]:
    """What subscribers are told to have been left out during an action."""
    told: list[tuple[str, str]] = []

    def hear(event: Event) -> None:
        if event.name == "transfer.skipped":
            told.append((event.attributes["path"], event.attributes["reason"]))

    unsubscribe = subscribe(hear)
    try:
        action()
    finally:
        unsubscribe()
    return told


# -------------------------------------------------------------------- files


async def test_a_file_goes_in_and_comes_out(handle: HostHandle, here: Path) -> None:
    content = os.urandom(700_000)
    (here / "f").write_bytes(content)
    await upload_file(handle, here / "f", "deep/er/-f")
    assert (handle.root / "deep/er/-f").read_bytes() == content
    await download_file(handle, "deep/er/-f", here / "back")
    assert (here / "back").read_bytes() == content
    assert sorted(os.listdir(here)) == ["back", "f"]


async def test_an_empty_file_is_a_file(plain: HostHandle, here: Path) -> None:
    (here / "f").touch()
    await upload_file(plain, str(here / "f"), "f")
    await download_file(plain, "f", str(here / "back"))
    assert (here / "back").read_bytes() == b""


async def test_executable_bits_go_in(handle: HostHandle, here: Path) -> None:
    (here / "run").write_text("#!/bin/sh")
    (here / "run").chmod(0o750)
    await upload_file(handle, here / "run", "run")
    assert stat.S_IMODE((handle.root / "run").stat().st_mode) == 0o750


async def test_a_tilde_is_the_home_directory(
    plain: HostHandle, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(here))
    (here / "f").write_text("x")
    await upload_file(plain, "~/f", "f")
    await download_file(plain, "f", "~/g")
    await download_dir(plain, ".", "~/all")
    assert await upload_dir(plain, "~/all", "again") == 1
    assert sorted(os.listdir(here)) == ["all", "f", "g"]


async def test_a_local_file_that_can_not_be_read_is_an_error_of_this_machine(
    plain: HostHandle, here: Path
) -> None:
    for path, kind in ((here / "missing", FileNotFoundError), (here, IsADirectoryError)):
        with pytest.raises(kind) as caught:
            await upload_file(plain, path, "f")
        assert type(caught.value) is kind
        assert caught.value.filename == str(path)
    assert os.listdir(plain.root) == []


async def test_a_download_that_fails_leaves_what_was_there(plain: HostHandle, here: Path) -> None:
    (here / "old").write_text("old")
    for name in ("old", "new"):
        with pytest.raises(SandboxFileNotFoundError):
            await download_file(plain, "missing", here / name)
    assert os.listdir(here) == ["old"]
    assert (here / "old").read_text() == "old"


async def test_a_download_replaces_at_its_end_and_keeps_the_mode(
    plain: HostHandle, here: Path
) -> None:
    (here / "old").write_text("old")
    (here / "old").chmod(0o640)
    (here / "link").symlink_to("old")

    class Slow(HostHandle):
        async def read_stream(self, path: str) -> AsyncGenerator[bytes, None]:
            yield b"ne"
            assert (here / "old").read_text() == "old"
            yield b"w"

    await download_file(Slow(plain.root, plain.land), "f", here / "link")
    assert (here / "old").read_text() == "new"
    assert (here / "link").is_symlink()
    assert stat.S_IMODE((here / "old").stat().st_mode) == 0o640
    assert sorted(os.listdir(here)) == ["link", "old"]


async def test_a_place_that_can_not_be_written_is_an_error_of_this_machine(
    plain: HostHandle, here: Path
) -> None:
    (plain.root / "f").write_text("x")
    (here / "file").touch()
    for path, kind in (
        (here, IsADirectoryError),
        (here / "no/such/f", FileNotFoundError),
        (here / "file/f", NotADirectoryError),
    ):
        with pytest.raises(kind) as caught:
            await download_file(plain, "f", path)
        assert type(caught.value) is kind
        assert caught.value.filename == str(path)


async def test_a_device_is_written_to_and_not_replaced(plain: HostHandle, here: Path) -> None:
    (plain.root / "f").write_text("x")
    os.mkfifo(here / "pipe")
    reader = os.open(here / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        await download_file(plain, "f", here / "pipe")
        assert os.read(reader, 10) == b"x"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO((here / "pipe").stat().st_mode)


async def test_a_full_disk_is_an_error_of_this_machine(plain: HostHandle) -> None:
    (plain.root / "f").write_bytes(bytes(100_000))
    with pytest.raises(OSError, match="No space left on device: '/dev/full'") as caught:
        await download_file(plain, "f", "/dev/full")
    assert not isinstance(caught.value, SandboxError)


# -------------------------------------------------------------------- trees

METHODS = ["auto", "tar", "per_file"]


@pytest.mark.parametrize("method", METHODS)
async def test_a_tree_goes_in_and_comes_out(
    handle: HostHandle, tree: Path, here: Path, method: Any
) -> None:
    if method == "tar" and handle.land.name == "bare":
        with pytest.raises(FeatureNotSupportedError, match="no tar"):
            await upload_dir(handle, tree, "in/to", method=method)
        with pytest.raises(FeatureNotSupportedError, match="no tar"):
            await download_dir(handle, ".", here / "back", method=method)
        assert not (here / "back").exists()
        return
    files = len([name for name, found in snapshot(tree).items() if not is_dir(found)])
    assert await upload_dir(handle, tree, "in/to", method=method) == files
    assert await download_dir(handle, "in/to", here / "back", method=method) == files
    expected = snapshot(tree)
    if method == "per_file" or handle.land.name == "bare":  # only executable bits go in
        expected["private"] = stat.S_IFREG | 0o644, expected["private"][1]  # type: ignore[index]
    assert snapshot(handle.root / "in/to") == expected
    assert snapshot(here / "back") == expected
    assert os.listdir(handle.root / "in") == ["to"]


@pytest.mark.parametrize("method", METHODS)
async def test_a_tree_joins_what_is_there(plain: HostHandle, here: Path, method: Any) -> None:
    for root in (here, plain.root):
        (root / "d").mkdir()
        (root / "d/same").write_text(root.name)
        (root / f"d/{root.name}").touch()
    await upload_dir(plain, here, ".", method=method)
    assert sorted(os.listdir(plain.root / "d")) == ["here", "root", "same"]
    assert (plain.root / "d/same").read_text() == "here"
    (plain.root / "d/same").write_text("root")
    await download_dir(plain, ".", here, method=method)
    assert sorted(os.listdir(here / "d")) == ["here", "root", "same"]
    assert (here / "d/same").read_text() == "root"


@pytest.mark.parametrize("method", METHODS)
async def test_an_empty_tree_is_a_directory(plain: HostHandle, here: Path, method: Any) -> None:
    assert await upload_dir(plain, here, "to", method=method) == 0
    assert await download_dir(plain, "to", here / "back", method=method) == 0
    assert (here / "back").is_dir()


@pytest.mark.parametrize("method", METHODS)
async def test_a_local_directory_that_is_none_is_an_error_of_this_machine(
    plain: HostHandle, here: Path, method: Any
) -> None:
    (here / "file").touch()
    for path, kind in ((here / "missing", FileNotFoundError), (here / "file", NotADirectoryError)):
        with pytest.raises(kind) as caught:
            await upload_dir(plain, path, "to", method=method)
        assert type(caught.value) is kind
        assert caught.value.filename == str(path)
    assert os.listdir(plain.root) == []


@pytest.mark.parametrize("method", METHODS)
async def test_a_remote_directory_that_is_none_makes_none_here(
    plain: HostHandle, here: Path, method: Any
) -> None:
    (plain.root / "file").touch()
    with pytest.raises(SandboxFileNotFoundError):
        await download_dir(plain, "missing", here / "to", method=method)
    with pytest.raises(SandboxNotADirectoryError):
        await download_dir(plain, "file", here / "to", method=method)
    assert os.listdir(here) == []


@pytest.mark.parametrize("method", METHODS)
def test_what_is_left_out_is_told(plain: HostHandle, here: Path, method: Any) -> None:
    os.mkfifo(here / "pipe")
    assert skipped(lambda: asyncio.run(upload_dir(plain, here, ".", method=method))) == [
        (str(here / "pipe"), "it is not a file, directory or link")
    ]
    os.mkfifo(plain.root / "pipe")
    told = skipped(lambda: asyncio.run(download_dir(plain, ".", here / "back", method=method)))
    assert [os.path.basename(path) for path, _ in told] == ["pipe"]


@pytest.mark.parametrize("method", METHODS)
async def test_progress_is_told_and_ends_with_everything(
    plain: HostHandle, here: Path, method: Any
) -> None:
    (here / "tree").mkdir()
    for number in range(3):
        (here / f"tree/{number}").write_bytes(bytes(300_000))
    seen: list[tuple[int, int]] = []

    def told(files: int, size: int) -> None:
        seen.append((files, size))

    for transfer in (
        upload_dir(plain, here / "tree", ".", method=method, on_progress=told),
        download_dir(plain, ".", here / "back", method=method, on_progress=told),
    ):
        seen.clear()
        await transfer
        assert seen == sorted(seen)
        assert seen[-1][0] == 3
        assert 900_000 <= seen[-1][1] < 950_000


async def test_a_callback_that_fails_ends_the_transfer_with_its_own_error(
    plain: HostHandle, tree: Path
) -> None:
    class Wrapping(HostHandle):
        async def upload_tar(self, path: str, archive: AsyncIterator[bytes]) -> None:
            try:
                await super().upload_tar(path, archive)
            except ZeroDivisionError as exc:
                raise SandboxConnectionError("it broke") from exc

    with pytest.raises(ZeroDivisionError):
        await upload_dir(
            Wrapping(plain.root, plain.land), tree, ".", on_progress=lambda files, size: 1 // 0
        )


# -------------------------------------------------------------------- sizes


async def test_a_large_file_passes_in_little_memory(plain: HostHandle, here: Path) -> None:
    class Streaming(HostHandle):
        received = 0

        async def write_stream(self, path: str, data: AsyncIterator[bytes]) -> None:
            async for piece in data:
                self.received += len(piece)

        async def upload_tar(self, path: str, archive: AsyncIterator[bytes]) -> None:
            await self.write_stream(path, archive)

        async def read_stream(self, path: str) -> AsyncGenerator[bytes, None]:
            for _ in range(100):
                yield bytes(MIB)

    (here / "tree").mkdir()
    (here / "tree/f").touch()
    os.truncate(here / "tree/f", 100 * MIB)
    handle = Streaming(plain.root, plain.land)
    tracemalloc.start()
    try:
        await upload_file(handle, here / "tree/f", "f")
        await upload_dir(handle, here / "tree", ".")
        await download_file(handle, "f", here / "back")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 200 * MIB < handle.received < 201 * MIB
    assert (here / "back").stat().st_size == 100 * MIB
    assert peak < 8 * MIB


async def test_the_loop_is_not_held_up_by_a_slow_disk(
    plain: HostHandle, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slow(self: object) -> bytes:
        reading.set()
        assert go_on.wait(60)
        return b""

    monkeypatch.setattr(_transfer._LocalFile, "read", slow)
    (here / "f").touch()
    task = asyncio.create_task(upload_file(plain, here / "f", "f"))
    assert await asyncio.to_thread(reading.wait, 60)
    assert not task.done()
    go_on.set()
    await task
