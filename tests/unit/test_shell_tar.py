"""Trees that go in and out of a sandbox by its own tar."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from host_handle import NOBODY, HostHandle, Userland, snapshot, userland
from host_handle import place as place
from host_handle import spool as spool
from host_handle import tree as tree

from requirements import require_program
from sandlot import _shell
from sandlot.errors import (
    FeatureNotSupportedError,
    SandboxFileError,
    SandboxFilePermissionError,
)
from sandlot.types import Captured, Command, SandboxResult


async def pieces_of(data: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def archive_of(directory: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(directory, ".")
    return buffer.getvalue()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_shell, "_PART", 4096)


@pytest.fixture(params=["dash", "bash", "busybox"])
def tarring(request: pytest.FixtureRequest, place: Path) -> HostHandle:
    root = place / "root"
    root.mkdir()
    return HostHandle(root, userland(request.param, place / "bin"))


async def test_a_small_archive_is_unpacked_by_one_command(tarring: HostHandle, tree: Path) -> None:
    await _shell.upload_tar(tarring, ".", pieces_of(archive_of(tree)))
    assert snapshot(tarring.root) == snapshot(tree)
    assert len(tarring.commands) == 1


@pytest.mark.usefixtures("small_parts")
async def test_a_large_archive_is_unpacked_from_parts(tarring: HostHandle, tree: Path) -> None:
    (tarring.root / "-to").mkdir()
    await _shell.upload_tar(tarring, "-to", pieces_of(archive_of(tree), 10_000))
    assert snapshot(tarring.root / "-to") == snapshot(tree)
    assert tarring.largest_write == 4096


async def test_an_archive_gets_in_where_commands_take_no_input(place: Path, tree: Path) -> None:
    handle = HostHandle(place / "root", userland("dash", place / "bin"), stdin=False)
    handle.root.mkdir()
    await _shell.upload_tar(handle, ".", pieces_of(archive_of(tree)))
    assert snapshot(handle.root) == snapshot(tree)


async def test_a_damaged_archive_is_an_error_and_leaves_no_parts(
    tarring: HostHandle, small_parts: None
) -> None:
    with pytest.raises(SandboxFileError):
        await _shell.upload_tar(tarring, ".", pieces_of(b"not an archive" * 1000))
    assert os.listdir(tarring.root) == []


@pytest.mark.usefixtures("small_parts")
async def test_a_source_that_fails_leaves_no_parts(tarring: HostHandle) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield bytes(10_000)
        assert len(os.listdir(tarring.root)) == 1
        raise OSError("the disk here")

    with pytest.raises(OSError, match="the disk here"):
        await _shell.upload_tar(tarring, ".", failing())
    assert os.listdir(tarring.root) == []


@pytest.mark.usefixtures("small_parts")
async def test_a_cancelled_upload_leaves_no_parts(tarring: HostHandle) -> None:
    stuck = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield bytes(10_000)
        stuck.set()
        await asyncio.sleep(3600)

    task = asyncio.create_task(_shell.upload_tar(tarring, ".", endless()))
    await stuck.wait()
    assert len(os.listdir(tarring.root)) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(tarring.root) == []


async def downloaded(handle: HostHandle, path: str, into: Path) -> list[bytes]:
    pieces = [piece async for piece in handle.download_tar(path)]
    os.mkdir(into)
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        tar.extractall(into, filter="fully_trusted")
    return pieces


@pytest.mark.parametrize("part", [4096, 8 * 1024 * 1024])
async def test_a_directory_is_packed_whole_and_nothing_is_left_behind(
    tarring: HostHandle,
    tree: Path,
    place: Path,
    spool: Path,
    part: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_shell, "_PART", part)
    os.rename(tree, tarring.root / "-from")
    pieces = await downloaded(tarring, "-from", place / "out")
    assert snapshot(place / "out") == snapshot(tarring.root / "-from")
    assert max(map(len, pieces)) <= part
    assert os.listdir(spool) == []


async def test_an_archive_leaves_itself_out_of_the_directory_it_is_made_in(
    tarring: HostHandle, tree: Path, place: Path, spool: Path
) -> None:
    os.rename(tree, spool / "tree")
    await downloaded(tarring, str(spool), place / "out")
    assert snapshot(place / "out") == snapshot(spool)
    assert os.listdir(spool) == ["tree"]


async def test_without_a_temporary_directory_the_archive_is_made_in_the_tree(
    tarring: HostHandle, tree: Path, place: Path, spool: Path
) -> None:
    os.rmdir(spool)
    os.rename(tree, tarring.root / "-from")
    await downloaded(tarring, "-from", place / "out")
    assert snapshot(place / "out") == snapshot(tarring.root / "-from")


@pytest.mark.usefixtures("small_parts")
async def test_a_download_that_is_given_up_leaves_nothing_behind(
    tarring: HostHandle, tree: Path, spool: Path
) -> None:
    pieces = _shell.download_tar(tarring, str(tree))
    async for _ in pieces:
        break
    assert len(os.listdir(spool)) == 2
    await pieces.aclose()
    assert os.listdir(spool) == []


async def test_a_file_that_may_not_be_read_fails_the_download(
    place: Path, tree: Path, spool: Path
) -> None:
    for name in ("dash", "busybox"):
        handle = HostHandle(tree, userland(name, place / name))
        handle.user = NOBODY if os.geteuid() == 0 else None
        if os.geteuid() != 0:
            (tree / "private").chmod(0o000)
        with pytest.raises(SandboxFilePermissionError):
            await downloaded(handle, ".", place / f"out-{name}")
    assert os.listdir(spool) == []


@pytest.mark.parametrize("brand", ["GNU tar", "another tar"])
async def test_that_a_file_changed_is_a_failure_unless_gnu_tar_says_it(
    place: Path, tree: Path, spool: Path, brand: str
) -> None:
    tools = place / "bin"
    land = userland("bare", tools)
    script = f"""#!/bin/sh
        [ "$1" = --version ] && echo "{brand}" && exit
        {require_program("tar")} "$@" && exit 1
    """
    (tools / "tar").write_text(script)
    (tools / "tar").chmod(0o755)
    packed = downloaded(HostHandle(tree, land), ".", place / "out")
    if brand == "GNU tar":
        await packed
        assert snapshot(place / "out") == snapshot(tree)
    else:
        with pytest.raises(SandboxFileError):
            await packed
    assert os.listdir(spool) == []


async def test_a_hostile_answer_names_no_file_of_its_own(place: Path, tree: Path) -> None:
    class Lying(HostHandle):
        async def exec(self, command: Command) -> SandboxResult:
            said = b"0 9 /etc/passwd\n"
            return SandboxResult(exit_code=0, out=Captured(said, b"", len(said)))

    handle = Lying(place, Userland("none", (), ""))
    with pytest.raises(SandboxFileError, match="can't be true"):
        await anext(_shell.download_tar(handle, "."))


@pytest.mark.parametrize("stdin", [True, False])
async def test_without_a_tar_the_feature_is_not_supported(place: Path, stdin: bool) -> None:
    handle = HostHandle(place, userland("bare", place / "bin"), stdin=stdin)
    with pytest.raises(FeatureNotSupportedError, match="no tar"):
        await _shell.upload_tar(handle, ".", pieces_of(bytes(10240)))
    with pytest.raises(FeatureNotSupportedError, match="no tar"):
        await anext(_shell.download_tar(handle, "."))
    assert os.listdir(place) == ["bin"]
