"""Mutants that keep files and sandboxes wrongly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from mutants import Patch, mutant

from sandlot import operation
from sandlot.contract import Handle
from sandlot.errors import FeatureNotSupportedError, SandboxNotFoundError
from sandlot.testing import MemoryBackend
from sandlot.testing import _memory_files as files
from sandlot.testing import _memory_handle as handles
from sandlot.types import (
    FileInfo,
    SandboxInfo,
    SandboxSessionState,
    SandboxSpec,
)

# -------------------------------------------------------------------------- files


@mutant("a_link_is_described_as_itself", "stat_tells_what_a_path_is")
def stat_follows_links(patch: Patch) -> None:
    def describe(self: files.FileTree, path: str, *, superuser: bool = False) -> FileInfo:
        return files._info(path, self.find(path, superuser=superuser))

    patch.setattr(files.FileTree, "describe", describe)


@mutant("writing_again_keeps_the_mode")
def writing_resets_the_mode(patch: Patch) -> None:
    open_for_writing = files.FileTree.open_for_writing

    def resetting(self: files.FileTree, path: str, **options: Any) -> files.File:
        file = open_for_writing(self, path, **options)
        file.mode = 0o644
        return file

    patch.setattr(files.FileTree, "open_for_writing", resetting)


@mutant("pieces_that_fail_leave_the_file_as_it_was", "an_upload_that_is_given_up_leaves_no_trace")
def pieces_are_written_as_they_come(patch: Patch) -> None:
    async def write_stream(
        self: handles.MemoryHandle, path: str, data: AsyncIterator[bytes]
    ) -> None:
        content = b""
        async for piece in data:
            content += piece
            await self.write(path, content)

    patch.setattr(handles.MemoryHandle, "write_stream", write_stream)


@mutant("removing_a_link_leaves_its_target")
def removing_follows_links(patch: Patch) -> None:
    remove = files.FileTree.remove

    def following(self: files.FileTree, path: str, **options: Any) -> None:
        node = self.find(path, superuser=True)
        if options.get("recursive") and isinstance(node, files.Directory):
            node.entries.clear()
        remove(self, path, **options)

    patch.setattr(files.FileTree, "remove", following)


@mutant("a_listing_is_sorted_by_name")
def a_listing_has_any_order(patch: Patch) -> None:
    list_dir = files.FileTree.list_dir

    def reversed_list(self: files.FileTree, path: str, **options: Any) -> list[FileInfo]:
        return list_dir(self, path, **options)[::-1]

    patch.setattr(files.FileTree, "list_dir", reversed_list)


@mutant("a_tree_comes_back_as_it_went")
def a_tree_loses_its_empty_directories(patch: Patch) -> None:
    make_dirs = files.FileTree.unpack

    def unpack(self: files.FileTree, path: str, archive: bytes, **options: Any) -> None:
        make_dirs(self, path, archive, **options)
        _prune(self.directory(path, superuser=True))

    def _prune(directory: files.Directory) -> None:
        for name, node in list(directory.entries.items()):
            if isinstance(node, files.Directory):
                _prune(node)
                if not node.entries:
                    del directory.entries[name]

    patch.setattr(files.FileTree, "unpack", unpack)


# --------------------------------------------------------------- lives and finding


@mutant("the_backend_destroys_twice_as_well")
def destroying_twice_is_an_error(patch: Patch) -> None:
    destroy = handles.MemoryHandle.destroy

    async def once(self: handles.MemoryHandle) -> None:
        if self._box.gone:
            raise SandboxNotFoundError("this sandbox is gone")
        await destroy(self)

    patch.setattr(handles.MemoryHandle, "destroy", once)


@mutant("sandboxes_are_listed_by_their_labels", "find_takes_the_newest")
def a_list_ignores_labels(patch: Patch) -> None:
    listing = MemoryBackend.list

    def everything(self: MemoryBackend, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        return listing(self, {})

    patch.setattr(MemoryBackend, "list", everything)


@mutant("another_program_takes_over", "a_sandbox_is_found_by_its_id")
def another_sandbox_is_taken_over(patch: Patch) -> None:
    async def attach(self: MemoryBackend, state: SandboxSessionState) -> handles.MemoryHandle:
        return await self.create(SandboxSpec())

    patch.setattr(MemoryBackend, "attach", attach)


@mutant("a_sandbox_that_is_given_up_is_not_left_behind")
def a_cancelled_create_leaves_its_sandbox(patch: Patch) -> None:
    create = MemoryBackend.create

    async def careless(self: MemoryBackend, spec: SandboxSpec) -> handles.MemoryHandle:
        handle = await create(self, spec)
        await asyncio.sleep(0.05)
        return handle

    patch.setattr(MemoryBackend, "create", careless)


@mutant("a_sandbox_ends_when_its_time_is_over")
def a_life_never_ends(patch: Patch) -> None:
    patch.setattr(handles.Box, "let_live", lambda self, seconds: None)


@mutant("a_life_can_be_made_longer")
def a_declared_capability_raises(patch: Patch) -> None:
    async def extend(self: handles.MemoryHandle, seconds: float) -> None:
        raise FeatureNotSupportedError("not after all", capability="extend")

    patch.setattr(handles.MemoryHandle, "extend", extend)


@mutant("what_is_declared_is_implemented")
def a_declared_capability_is_not_there(patch: Patch) -> None:
    patch.setattr(handles.MemoryHandle, "extend", Handle.extend)


@mutant("a_snapshot_is_what_it_was_when_taken")
def a_snapshot_goes_on_changing(patch: Patch) -> None:
    patch.setattr("sandlot.testing.memory.copy.deepcopy", lambda value: value)


@mutant("an_error_tells_where_it_arose")
def errors_have_no_place(patch: Patch) -> None:
    def _placed(self: operation.Operation, exc: BaseException | None) -> BaseException | None:
        return exc

    patch.setattr(operation.Operation, "_placed", _placed)
