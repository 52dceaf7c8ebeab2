"""Transfers that fail, are cancelled, or meet a hostile sandbox."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from host_handle import NOBODY, HostHandle
from host_handle import here as here
from host_handle import nothing_is_left_running as nothing_is_left_running
from host_handle import place as place
from host_handle import plain as plain
from host_handle import spool as spool
from host_handle import tree as tree
from tars import archive, member

from sandlot._archive import Limits
from sandlot._transfer import download_dir, download_file, upload_dir, upload_file
from sandlot.errors import (
    SandboxConnectionError,
    SandboxFileError,
    SandboxFilePermissionError,
    UnsafeArchiveError,
)
from sandlot.types import FileInfo, FileType

METHODS = ["auto", "tar", "per_file"]


async def test_a_local_failure_is_no_failure_of_the_sandbox_whatever_a_backend_makes_of_it(
    plain: HostHandle, here: Path
) -> None:
    class Mistaking(HostHandle):
        async def upload_tar(self, path: str, archive: AsyncIterator[bytes]) -> None:
            try:
                async for _ in archive:
                    pass
            except OSError as exc:
                if self.land.name == "swallowing":
                    return
                raise SandboxConnectionError("the connection broke") from exc

    os.chmod(here, 0o755)
    (here / "secret").touch(mode=0o000)
    for land in (plain.land, replace(plain.land, name="swallowing")):
        handle = Mistaking(plain.root, land)
        user = os.geteuid()
        os.seteuid(NOBODY if user == 0 else user)
        try:
            with pytest.raises(PermissionError) as caught:
                await upload_dir(handle, here, ".", method="tar")
        finally:
            os.seteuid(user)
        assert type(caught.value) is PermissionError
        assert caught.value.filename == str(here / "secret")


@pytest.mark.parametrize("method", METHODS)
async def test_a_failure_in_the_sandbox_is_no_failure_of_this_machine(
    plain: HostHandle, here: Path, method: Any
) -> None:
    (plain.root / "secret").touch(mode=0o000)
    if os.geteuid() == 0:
        plain.user = NOBODY

    class Denying(HostHandle):
        async def read(self, path: str) -> bytes:
            if path.endswith("secret"):
                raise SandboxFilePermissionError(path)
            return await super().read(path)

    handle = Denying(plain.root, plain.land, user=plain.user)
    with pytest.raises(SandboxFilePermissionError):
        await download_dir(handle, ".", here, method=method)
    assert os.listdir(here) == []


# ------------------------------------------------------------- cancellation


class Stuck(HostHandle):
    """Gives or takes one piece and then waits for ever."""

    def __init__(self, like: HostHandle) -> None:
        super().__init__(like.root, like.land)
        self.stuck = asyncio.Event()

    async def hang(self) -> None:
        self.stuck.set()
        await asyncio.sleep(3600)

    async def read_stream(self, path: str) -> AsyncGenerator[bytes, None]:
        yield b"x" * 1000
        await self.hang()

    async def write_stream(self, path: str, data: AsyncIterator[bytes]) -> None:
        async for _ in data:
            await self.hang()

    async def upload_tar(self, path: str, archive: AsyncIterator[bytes]) -> None:
        await self.write_stream(path, archive)

    async def download_tar(self, path: str) -> AsyncIterator[bytes]:
        yield archive(("whole", b"x"), member("part", size=10_000))[:3000]
        await self.hang()


STUCK: dict[str, Callable[[Stuck, Path], Any]] = {
    "download_file": lambda handle, here: download_file(handle, "f", here / "new"),
    "upload_file": lambda handle, here: upload_file(handle, here / "f", "f"),
    "upload_dir by tar": lambda handle, here: upload_dir(handle, here, "d", method="tar"),
    "upload_dir per file": lambda handle, here: upload_dir(handle, here, "d", method="per_file"),
    "download_dir by tar": lambda handle, here: download_dir(handle, ".", here, method="tar"),
    "download_dir per file": lambda handle, here: download_dir(
        handle, ".", here, method="per_file"
    ),
}


@pytest.mark.parametrize("transfer", STUCK.values(), ids=STUCK)
async def test_a_cancelled_transfer_leaves_nothing_half_done(
    plain: HostHandle, here: Path, transfer: Callable[[Stuck, Path], Any]
) -> None:
    (here / "f").write_bytes(bytes(600_000))
    (plain.root / "g").write_bytes(bytes(600_000))
    handle = Stuck(plain)
    task = asyncio.ensure_future(transfer(handle, here))
    await asyncio.wait_for(handle.stuck.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(os.listdir(here)) <= {"f", "whole"}
    assert set(os.listdir(plain.root)) <= {"g", "d"}


async def test_a_transfer_cancelled_at_any_moment_leaves_nothing_half_done(
    plain: HostHandle, tree: Path, here: Path
) -> None:
    for moment in range(12):
        for transfer in (
            upload_dir(plain, tree, "to"),
            download_dir(plain, str(tree), here / "to"),
            download_file(plain, str(tree / "private"), here / "f"),
        ):
            task = asyncio.ensure_future(transfer)
            await asyncio.sleep(moment * 0.004)
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled() or task.exception() is None
    left = [path for top in (plain.root, here) for path in top.rglob(".sandlot-*")]
    assert left == []
    assert os.listdir(plain.root.parent / "spool") == []


# ------------------------------------------------------------ hostile trees


class Lying(HostHandle):
    """Lists whatever it is told to."""

    listing: Callable[[str], list[FileInfo]]

    async def list_dir(self, path: str) -> list[FileInfo]:
        return self.listing(path)

    async def read(self, path: str) -> bytes:
        return b"payload"


def info(path: str, kind: FileType, target: str | None = None) -> FileInfo:
    return FileInfo(path=path, type=kind, size=7, mode=0o644, target=target)


@pytest.mark.parametrize(
    "found",
    [
        info("/w/..", FileType.FILE),
        info("/w/../", FileType.DIRECTORY),
        info("..", FileType.DIRECTORY),
        info("/w/.", FileType.DIRECTORY),
        info("/", FileType.FILE),
        info("/", FileType.DIRECTORY),
        info("/w/l", FileType.SYMLINK, "/etc/passwd"),
        info("/w/l", FileType.SYMLINK, "../secret"),
        info("/w/nul\0", FileType.FILE),
        info("/w/\ud800", FileType.FILE),
    ],
    ids=repr,
)
async def test_a_listing_can_not_lead_a_download_outside(
    plain: HostHandle, here: Path, found: FileInfo
) -> None:
    handle = Lying(plain.root, plain.land)
    handle.listing = lambda path: [found]
    with pytest.raises(UnsafeArchiveError):
        await download_dir(
            handle, "/w", here / "to", method="per_file", limits=Limits(max_files=50)
        )
    assert os.listdir(here) == ["to"]
    assert os.listdir(here / "to") == []


async def test_only_the_last_part_of_a_listed_path_counts(plain: HostHandle, here: Path) -> None:
    handle = Lying(plain.root, plain.land)
    handle.listing = lambda path: [info("/etc/../../passwd", FileType.FILE)]
    await download_dir(handle, "/w", here / "to", method="per_file")
    assert os.listdir(here) == ["to"]
    assert os.listdir(here / "to") == ["passwd"]


async def test_a_file_is_not_written_through_a_link_listed_before(
    plain: HostHandle, here: Path
) -> None:
    (here / "outside").mkdir()
    (here / "to").mkdir()
    (here / "to/door").symlink_to("../outside")
    handle = Lying(plain.root, plain.land)
    handle.listing = lambda path: [
        info("door", FileType.DIRECTORY) if path == "/w" else info("f", FileType.FILE)
    ]
    with pytest.raises(UnsafeArchiveError, match="through a link"):
        await download_dir(handle, "/w", here / "to", method="per_file")
    assert os.listdir(here / "outside") == []


async def test_directories_without_end_come_to_an_end(plain: HostHandle, here: Path) -> None:
    handle = Lying(plain.root, plain.land)
    handle.listing = lambda path: [info("deeper" * 20, FileType.DIRECTORY)]
    with pytest.raises(UnsafeArchiveError, match="can't be the name"):
        await download_dir(handle, "/w", here / "to", method="per_file")
    handle.listing = lambda path: [info(str(n), FileType.DIRECTORY) for n in range(30)]
    with pytest.raises(SandboxFileError, match="more than 100 files"):
        await download_dir(
            handle, "/w", here / "wide", method="per_file", limits=Limits(max_files=100)
        )


@pytest.mark.parametrize("method", METHODS)
async def test_more_bytes_than_allowed_are_an_error(
    plain: HostHandle, here: Path, method: Any
) -> None:
    (plain.root / "f").write_bytes(bytes(1001))
    with pytest.raises(SandboxFileError, match="more than 1000 bytes"):
        await download_dir(plain, ".", here / "to", method=method, limits=Limits(max_bytes=1000))
    assert not (here / "to/f").exists()


async def test_a_hostile_archive_does_not_get_out(plain: HostHandle, here: Path) -> None:
    class Hostile(HostHandle):
        async def download_tar(self, path: str) -> AsyncIterator[bytes]:
            yield archive(("ok", b"x"), ("../out", b"x"))

    with pytest.raises(UnsafeArchiveError) as caught:
        await download_dir(Hostile(plain.root, plain.land), ".", here / "to")
    assert caught.value.context["files"] == 1
    assert os.listdir(here) == ["to"]
