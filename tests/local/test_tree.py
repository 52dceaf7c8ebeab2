from __future__ import annotations

import errno
import os
import resource
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.backends.local.tree import ConfinedTree
from sandlot.types import FileType

T = TypeVar("T")

SECRET = b"of the host"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
not_as_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")


class Place:
    """A tree with a mount, in a directory with things that must stay untouched."""

    def __init__(self, base: Path) -> None:
        self.root = base / "root"
        self.tmp = base / "tmp"
        self.outside = base / "outside"
        for directory in (self.root, self.tmp, self.outside):
            directory.mkdir()
        (self.outside / "secret").write_bytes(SECRET)
        self.tree = ConfinedTree(str(self.root), {"/tmp": str(self.tmp)})

    def assert_untouched(self) -> None:
        assert os.listdir(self.outside) == ["secret"]
        assert (self.outside / "secret").read_bytes() == SECRET


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    before = os.listdir("/proc/self/fd")
    yield place
    place.assert_untouched()
    assert len(os.listdir("/proc/self/fd")) == len(before), "a descriptor was leaked"


def error_of(call: Callable[[], object]) -> int | None:
    with pytest.raises(OSError, match="Errno") as caught:
        call()
    return caught.value.errno


def in_time(call: Callable[[], T]) -> list[T]:
    """Call it on a thread, and fail rather than hang if it blocks."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it blocks"
    return results


# -------------------------------------------------------------------- where paths lead
@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/f", "root/f"),
        ("f", "root/f"),
        ("//a/./f", "root/a/f"),
        ("/a/../f", "root/f"),
        ("/../../f", "root/f"),
        ("/tmp/f", "tmp/f"),
        ("/a/../tmp/f", "tmp/f"),
        ("/tmp/../f", "root/f"),
        ("/tmp/a/../../tmp/f", "tmp/f"),
        ("/tmpf", "root/tmpf"),
        ("tmp/f", "root/tmp/f"),
        ("../tmp/f", "root/tmp/f"),
        ("{base}/root/f", "root/f"),
        ("{base}/tmp/f", "tmp/f"),
        ("{base}/root/tmp/f", "root/tmp/f"),
        ("{base}/root/../f", "root/f"),
    ],
)
def test_a_path_leads_to_one_place_for_files_and_for_commands(
    place: Place, path: str, host: str
) -> None:
    base = place.root.parent
    path = path.format(base=base)
    (place.root / "a").mkdir()
    (place.tmp / "a").mkdir()
    place.tree.write(path, b"here")
    assert (base / host).read_bytes() == b"here"
    assert place.tree.command_path(path) == str(base / host)
    assert place.tree.read(str(base / host)) == b"here"


def test_the_real_path_of_a_root_given_by_a_link_is_understood(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    tree = ConfinedTree(str(tmp_path / "link"), {})
    tree.write(f"{tmp_path}/real/f", b"1")
    tree.write(f"{tmp_path}/link/g", b"2")
    assert sorted(os.listdir(tmp_path / "real")) == ["f", "g"]
    assert tree.command_path("/f") == f"{tmp_path}/link/f"


def test_the_whole_host_can_be_the_tree(tmp_path: Path) -> None:
    tree = ConfinedTree("/", {})
    tree.write(f"{tmp_path}/f", b"1")
    assert (tmp_path / "f").read_bytes() == b"1"
    assert tree.command_path("/f") == "/f"


def test_a_mount_point_is_listed_where_it_appears_and_only_there(place: Place) -> None:
    (place.tmp / "f").write_bytes(b"1")
    (place.root / "tmp").mkdir()
    (place.root / "z").mkdir()
    assert [info.path for info in place.tree.list_dir("/")] == ["/tmp", "/z"]
    assert [info.path for info in place.tree.list_dir("/tmp")] == ["/tmp/f"]
    assert place.tree.list_dir("/z") == []
    assert place.tree.list_dir("tmp") == []


# ---------------------------------------------------------------------------- escapes
@pytest.mark.parametrize(
    "target",
    [
        "{outside}",
        "../outside",
        "../../../../../../../../../../{outside}",
        "./.././outside/",
        "up/outside",
        "{root}/../outside",
        "{root}/up/up/outside",
        "/proc/self/root/{outside}",
        "/proc/self/cwd/../outside",
    ],
)
def test_no_link_leads_outside(place: Place, target: str) -> None:
    os.symlink("..", place.root / "up")
    os.symlink(target.format(outside=place.outside, root=place.root), place.root / "link")
    tree = place.tree
    nowhere = (errno.ENOENT, errno.ENOTDIR)
    for path in ("/link/secret", "/link/../link/secret", "/up/link/secret", "link/secret"):
        assert error_of(partial(tree.read, path)) in nowhere
        assert error_of(partial(tree.stat, path)) in nowhere
        assert error_of(partial(tree.set_mode, path, 0)) in nowhere
    tree.write("/link/new", b"mine")  # makes what it leads to, inside
    assert tree.read("/link/new") == b"mine"
    tree.make_dir("/link/deep/er")
    tree.write("/f", b"")
    tree.move("/f", "/link/f")
    tree.remove("/link/deep", recursive=True)
    assert {info.name for info in tree.list_dir("/link")} == {"new", "f"}
    tree.remove("/link", recursive=True)
    assert not os.path.lexists(place.root / "link")


def test_removing_a_tree_removes_links_and_not_what_they_lead_to(place: Place) -> None:
    (place.root / "d/e").mkdir(parents=True)
    (place.root / "d/out").symlink_to(place.outside)
    (place.root / "d/e/out").symlink_to("../../../outside/secret")
    place.tree.remove("/d", recursive=True)
    assert os.listdir(place.root) == []


def test_a_hard_link_is_written_to_without_harm_to_its_other_name(place: Place) -> None:
    os.link(place.outside / "secret", place.root / "cached")
    place.tree.write("/cached", b"changed")
    assert place.tree.read("/cached") == b"changed"


def before_opening(
    monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[], object]
) -> None:
    """Let ``change`` happen at the worst time: right before ``name`` is opened, once."""
    opened, changed = os.open, False

    def opening(path: str, *args: int, **kwargs: int) -> int:
        nonlocal changed
        if path == name and not changed:
            changed = True
            change()
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", opening)


def after_opening(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[], object]) -> None:
    """Let ``change`` happen right after ``name`` was opened, once."""
    opened, changed = os.open, False

    def opening(path: str, *args: int, **kwargs: int) -> int:
        nonlocal changed
        fd = opened(path, *args, **kwargs)
        if path == name and not changed:
            changed = True
            change()
        return fd

    monkeypatch.setattr(os, "open", opening)


@pytest.mark.parametrize("operation", ["read", "write", "list", "mode", "remove"])
def test_a_name_that_becomes_a_link_right_before_it_is_opened_leads_nowhere(
    place: Place, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    tree, name, secret = place.tree, "dir", place.outside
    if operation in ("read", "write", "mode"):
        name, secret = "file", place.outside / "secret"
    tree.write("/d/file", b"mine")
    tree.write("/d/dir/f", b"mine")
    mode = secret.stat().st_mode

    def swap() -> None:
        os.rename(place.root / "d" / name, place.root / "away")
        os.symlink(secret, place.root / "d" / name)

    before_opening(monkeypatch, name, swap)
    operations: dict[str, Callable[[], object]] = {
        "read": lambda: tree.read("/d/file"),
        "write": lambda: tree.write("/d/file", b"x"),
        "list": lambda: tree.list_dir("/d/dir"),
        "mode": lambda: tree.set_mode("/d/file", 0),
        "remove": lambda: tree.remove("/d", recursive=True),
    }
    assert error_of(operations[operation]) in (errno.ELOOP, errno.ENOTDIR)
    assert secret.stat().st_mode == mode


def test_a_directory_that_is_moved_outside_during_a_walk_gives_no_way_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = place.tree
    tree.write("/a/b/f", b"")
    tree.write("/go/f", b"")
    os.symlink("../a/b/../secret", place.root / "go/link")

    def move_out() -> None:
        os.rename(place.root / "a/b", place.outside / "b")

    # By the kernel's "..", what comes after b would be outside/secret.
    after_opening(monkeypatch, "b", move_out)
    with pytest.raises(FileNotFoundError):
        tree.read("/go/link")
    shutil.rmtree(place.outside / "b")


def test_removing_a_tree_that_is_moved_outside_stops(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.tree.write("/a/b/f", b"")
    after_opening(monkeypatch, "b", lambda: os.rename(place.root / "a/b", place.outside / "b"))
    assert error_of(lambda: place.tree.remove("/a", recursive=True)) == errno.EBUSY
    os.rmdir(place.outside / "b")


@pytest.mark.parametrize("operation", ["write", "read", "remove", "list", "mode"])
def test_swapping_a_directory_for_a_link_wins_no_race(place: Place, operation: str) -> None:
    tree, done = place.tree, threading.Event()
    tree.write("/x/secret", b"inside")
    os.symlink(place.outside, place.root / "evil")
    mode = (place.outside / "secret").stat().st_mode

    def swap() -> None:
        x, evil, hold = (str(place.root / name) for name in ("x", "evil", "hold"))
        while not done.is_set():
            for old, new in ((x, hold), (evil, x), (x, evil), (hold, x)):
                while not done.is_set():
                    try:
                        os.rename(old, new)
                        break
                    except OSError:  # writing has made a directory there
                        shutil.rmtree(new, ignore_errors=True)

    def remove_and_restore() -> None:
        tree.remove("/x/secret")
        tree.write("/hold/secret", b"inside")

    operations: dict[str, Callable[[], object]] = {
        "write": lambda: tree.write("/x/new", b"x"),
        "read": lambda: tree.read("/x/secret"),
        "remove": remove_and_restore,
        "list": lambda: [info.name for info in tree.list_dir("/x")],
        "mode": lambda: tree.set_mode("/x/secret", 0o640),
    }
    results: list[object] = []
    thread = threading.Thread(target=swap)
    thread.start()
    try:
        until = time.monotonic() + 0.5
        while time.monotonic() < until or len(results) < 100:
            try:
                results.append(operations[operation]())
            except OSError as exc:
                results.append(exc.errno)
    finally:
        done.set()
        thread.join()
    place.assert_untouched()
    assert (place.outside / "secret").stat().st_mode == mode
    if operation == "read":
        assert b"inside" in results
        assert SECRET not in results


@contextmanager
def scratch() -> Iterator[Place]:
    # A fixture would be shared by all examples.
    with tempfile.TemporaryDirectory() as base:
        yield (place := Place(Path(base)))
        place.assert_untouched()


STEPS = st.sampled_from(["a", "b", "c", "..", ".", "", "tmp", "outside", "secret", "root"])
PATHS = st.lists(STEPS, min_size=1, max_size=6).map("/".join)
TARGETS = st.one_of(PATHS, PATHS.map(lambda p: f"/{p}"), PATHS.map(lambda p: f"BASE/{p}"))
LINKS = st.dictionaries(st.sampled_from(["a", "b", "c", "a/a", "b/c", "tmp"]), TARGETS)


@settings(max_examples=150, deadline=None)
@given(links=LINKS, paths=st.lists(TARGETS, min_size=1, max_size=4))
def test_nothing_made_of_links_and_dots_leads_outside(
    links: dict[str, str], paths: list[str]
) -> None:
    with scratch() as place:
        base = str(place.root.parent)
        for name, target in sorted(links.items()):
            link = place.root / name
            if link.parent == place.root or not os.path.lexists(link.parent):
                link.parent.mkdir(exist_ok=True)
                if not os.path.lexists(link) and target:
                    os.symlink(target.replace("BASE", base), link)
        for raw in paths:
            path = raw.replace("BASE", base)
            with suppress(OSError):
                assert place.tree.read(path) != SECRET
            for change in (
                partial(place.tree.write, path, b"mine"),
                partial(place.tree.make_dir, path),
                partial(place.tree.move, "/made", path),
                partial(place.tree.remove, path, recursive=True),
            ):
                with suppress(OSError):
                    change()
        assert sorted(os.listdir(base)) == ["outside", "root", "tmp"]


def test_a_root_that_was_replaced_is_not_used(place: Place) -> None:
    place.root.rename(place.root.parent / "old")
    os.symlink(place.outside, place.root)
    assert error_of(lambda: place.tree.read("/secret")) == errno.ESTALE
    assert error_of(lambda: place.tree.write("/secret", b"x")) == errno.ESTALE


def test_a_tree_whose_root_is_gone_says_so_when_used(tmp_path: Path) -> None:
    tree = ConfinedTree(str(tmp_path / "gone"), {})
    with pytest.raises(FileNotFoundError):
        tree.list_dir("/")
    assert tree.command_path("/f") == str(tmp_path / "gone/f")


# -------------------------------------------------------------------------- odd names
NAMES = st.one_of(
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1),
    st.binary(min_size=1).map(os.fsdecode).filter(lambda name: not {"/", "\0"} & set(name)),
).filter(lambda name: name not in (".", "..") and len(os.fsencode(name)) <= 255)


@settings(max_examples=100, deadline=None)
@given(name=NAMES, content=st.binary(max_size=100))
def test_any_name_can_be_written_listed_moved_and_removed(name: str, content: bytes) -> None:
    with scratch() as place:
        tree = place.tree
        tree.write(f"/d/{name}", content)
        assert os.listdir(os.fsencode(place.root / "d")) == [os.fsencode(name)]
        assert [info.path for info in tree.list_dir("/d")] == [f"/d/{name}"]
        assert tree.read(f"/d/{name}") == content
        tree.move(f"/d/{name}", f"/tmp/{name}")
        assert os.listdir(place.tmp) == [name]
        tree.make_dir(f"/d/{name}/{name}")
        tree.remove(f"/d/{name}", recursive=True)
        tree.remove(f"/tmp/{name}")
        assert os.listdir(place.tmp) == []
        assert tree.list_dir("/d") == []


@pytest.mark.parametrize(
    ("path", "number"),
    [("a\0b", errno.EINVAL), ("\ud800", errno.EILSEQ), ("/" + "n" * 256, errno.ENAMETOOLONG)],
)
def test_what_cannot_be_a_name_is_an_error_of_the_system(
    place: Place, path: str, number: int
) -> None:
    for call in (place.tree.read, place.tree.stat, place.tree.remove, place.tree.make_dir):
        assert error_of(partial(call, path)) == number
    assert error_of(lambda: place.tree.write(path, b"")) == number


# -------------------------------------------------------------- links, loops, and depth
def test_a_link_is_described_as_itself_and_followed_for_its_content(place: Place) -> None:
    tree = place.tree
    tree.write("/d/f", b"12345")
    os.symlink("d/f", place.root / "link")
    info = tree.stat("/link")
    assert (info.type, info.target) == (FileType.SYMLINK, "d/f")
    assert [(i.name, i.target) for i in tree.list_dir("/")] == [
        ("d", None),
        ("link", "d/f"),
        ("tmp", None),
    ]
    tree.set_mode("/link", 0o600)
    assert tree.stat("/d/f").mode == 0o600
    tree.write("/link", b"new")
    assert tree.stat("/link").type is FileType.SYMLINK
    assert tree.read("/d/f") == b"new"
    tree.move("/link", "/moved")
    assert tree.stat("/moved").target == "d/f"


def test_a_dangling_link_is_missing_when_read_and_made_when_written(place: Place) -> None:
    os.symlink("not/there", place.root / "link")
    assert error_of(lambda: place.tree.read("/link")) == errno.ENOENT
    assert error_of(lambda: place.tree.list_dir("/link")) == errno.ENOENT
    assert place.tree.stat("/link").target == "not/there"
    place.tree.write("/link", b"made")
    assert (place.root / "not/there").read_bytes() == b"made"


def test_links_that_never_end_are_an_error(place: Place) -> None:
    os.symlink("self", place.root / "self")
    os.symlink("pong", place.root / "ping")
    os.symlink("ping/x", place.root / "pong")
    os.symlink(".", place.root / "here")
    assert error_of(lambda: place.tree.read("/self")) == errno.ELOOP
    assert error_of(lambda: place.tree.read("/self/x")) == errno.ELOOP
    assert error_of(lambda: place.tree.write("/ping", b"")) == errno.ELOOP
    assert place.tree.stat("/ping").target == "pong"
    place.tree.write("/f", b"1")
    assert place.tree.read("/here" * 40 + "/f") == b"1"
    assert error_of(lambda: place.tree.read("/here" * 41 + "/f")) == errno.ELOOP


def test_a_tree_deeper_than_descriptors_and_path_lengths_allow_is_no_problem(
    place: Place,
) -> None:
    path = "/deep" * 1500
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 10, limits[1]))
    try:
        place.tree.write(f"{path}/f", b"bottom")
        assert place.tree.read(f"{path}/f") == b"bottom"
        assert place.tree.read(f"{path}/../deep/f") == b"bottom"
        place.tree.remove("/deep", recursive=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert os.listdir(place.root) == []


# --------------------------------------------------------------------- special files
@pytest.mark.parametrize("kind", ["FIFO", "socket", "device"])
def test_what_is_not_a_regular_file_is_refused_at_once(place: Place, kind: str) -> None:
    path = place.root / "special"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        # By way of a descriptor: the names of sockets must be short.
        with place.tree.host_dir("/") as root:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(f"{root}/special")
    elif os.geteuid():
        pytest.skip("only root makes devices")
    else:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))

    def says_what_it_is(call: Callable[[], object]) -> str:
        with pytest.raises(OSError, match=kind) as caught:
            call()
        return str(caught.value.strerror)

    assert in_time(lambda: says_what_it_is(lambda: place.tree.read("/special")))
    assert in_time(lambda: says_what_it_is(lambda: place.tree.write("/special", b"x")))
    assert place.tree.stat("/special").type is FileType.OTHER
    place.tree.set_mode("/special", 0o600)
    place.tree.move("/special", "/other")
    place.tree.remove("/other")


# --------------------------------------------------------------------------- writing
@pytest.fixture
def umask() -> Iterator[None]:
    old = os.umask(0o077)
    yield
    os.umask(old)


@pytest.mark.usefixtures("umask")
def test_new_files_and_directories_get_the_usual_modes_whatever_our_umask(place: Place) -> None:
    place.tree.write("/a/f", b"")
    place.tree.make_dir("/b/c")
    modes = {info.path: info.mode for d in ("/", "/a", "/b") for info in place.tree.list_dir(d)}
    del modes["/tmp"]
    assert modes == {"/a": 0o755, "/a/f": 0o644, "/b": 0o755, "/b/c": 0o755}


def test_a_file_keeps_its_mode_when_it_is_replaced(place: Place) -> None:
    place.tree.write("/run", b"#!/bin/sh\n")
    place.tree.set_mode("/run", 0o750)
    place.tree.write("/run", b"#!/bin/sh\nexit\n")
    assert place.tree.stat("/run").mode == 0o750


@as_root
def test_a_file_keeps_its_owner_when_it_is_replaced(place: Place) -> None:
    place.tree.write("/f", b"1")
    os.chown(place.root / "f", 1234, 4321)
    place.tree.write("/f", b"2")
    found = (place.root / "f").stat()
    assert (found.st_uid, found.st_gid) == (1234, 4321)


def test_who_reads_while_a_file_is_replaced_sees_the_old_or_the_new(place: Place) -> None:
    old, new = b"o" * 100_000, b"n" * 200_000
    place.tree.write("/f", old)
    with open(place.root / "f", "rb") as reader, place.tree.open_write("/f") as file:
        file.write(new[:150_000])
        assert place.tree.read("/f") == old
        file.write(new[150_000:])
        assert reader.read() == old
    assert place.tree.read("/f") == new


def test_a_write_that_is_given_up_leaves_everything_as_it_was(place: Place) -> None:
    place.tree.write("/f", b"old")

    def interrupted() -> None:
        with place.tree.open_write("/f") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(place.root) == ["f"]
    assert place.tree.read("/f") == b"old"


def test_a_program_that_is_running_can_be_replaced(place: Place) -> None:
    shutil.copy("/bin/sleep", place.root / "prog")
    running = subprocess.Popen([place.root / "prog", "30"])
    try:
        place.tree.write("/prog", b"new")
        assert place.tree.read("/prog") == b"new"
        assert place.tree.stat("/prog").mode == 0o755
        assert running.poll() is None
    finally:
        running.kill()
        running.wait()


@contextmanager
def tmpfs(directory: Path, size: str) -> Iterator[None]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", directory],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"can't mount: {mounted.stderr}")
    try:
        yield
    finally:
        subprocess.run(["umount", directory], check=True)


@as_root
def test_a_full_disk_leaves_the_old_content(tmp_path: Path) -> None:
    with tmpfs(tmp_path, "64k"):
        tree = ConfinedTree(str(tmp_path), {})
        tree.write("/f", b"old")
        assert error_of(lambda: tree.write("/f", b"x" * 200_000)) == errno.ENOSPC
        assert error_of(lambda: tree.write("/new", b"x" * 200_000)) == errno.ENOSPC
        assert os.listdir(tmp_path) == ["f"]
        assert tree.read("/f") == b"old"


@as_root
@pytest.mark.parametrize("what", ["file", "directory"])
def test_moving_works_between_file_systems(place: Place, what: str) -> None:
    with tmpfs(place.tmp, "1m"):
        tree = ConfinedTree(str(place.root), {"/tmp": str(place.tmp)})
        path = "/it" if what == "file" else "/it/deep/f"
        tree.write(path, b"content")
        tree.set_mode(path, 0o640)
        tree.move("/it", "/tmp/it")
        assert tree.read(f"/tmp{path}") == b"content"
        assert tree.stat(f"/tmp{path}").mode == 0o640
        assert [info.name for info in tree.list_dir("/")] == ["tmp"]
        tree.write("/-x", b"")
        tree.make_dir("/tmp/d")
        with pytest.raises(OSError, match="directory"):
            tree.move("/-x", "/tmp/d")


# ---------------------------------------------------------------------------- refusals
@pytest.mark.parametrize("path", ["/", ".", "/..", "/tmp", "/tmp/.", "/a/../tmp", "{root}"])
def test_the_root_and_mounts_are_neither_removed_nor_moved(place: Place, path: str) -> None:
    (place.root / "a").mkdir()
    path = path.format(root=place.root)
    for call in (
        lambda: place.tree.remove(path),
        lambda: place.tree.remove(path, recursive=True),
        lambda: place.tree.move(path, "/b"),
        lambda: place.tree.move("/a", path),
    ):
        assert error_of(call) == errno.EBUSY


def test_what_holds_a_mount_is_not_removed(tmp_path: Path) -> None:
    for name in ("root/home", "me"):
        (tmp_path / name).mkdir(parents=True)
    tree = ConfinedTree(str(tmp_path / "root"), {"/home/me": str(tmp_path / "me")})
    tree.write("/home/me/f", b"1")
    assert (tmp_path / "me/f").exists()
    assert [info.path for info in tree.list_dir("/home")] == ["/home/me"]
    assert error_of(lambda: tree.remove("/home", recursive=True)) == errno.EBUSY
    assert error_of(lambda: tree.move("/home", "/h")) == errno.EBUSY


def test_errors_are_those_of_the_system(place: Place) -> None:
    tree = place.tree
    tree.write("/d/f", b"1")
    expected: list[tuple[Callable[[], object], int]] = [
        (lambda: tree.read("/none"), errno.ENOENT),
        (lambda: tree.read("/d"), errno.EISDIR),
        (lambda: tree.read("/"), errno.EISDIR),
        (lambda: tree.read("/d/f/x"), errno.ENOTDIR),
        (lambda: tree.write("/d", b""), errno.EISDIR),
        (lambda: tree.write("/new/", b""), errno.EISDIR),
        (lambda: tree.write("/tmp", b""), errno.EISDIR),
        (lambda: tree.write("/d/f/x", b""), errno.ENOTDIR),
        (lambda: tree.list_dir("/none"), errno.ENOENT),
        (lambda: tree.list_dir("/d/f"), errno.ENOTDIR),
        (lambda: tree.stat("/none"), errno.ENOENT),
        (lambda: tree.make_dir("/d/f"), errno.EEXIST),
        (lambda: tree.make_dir("/d/f/x"), errno.ENOTDIR),
        (lambda: tree.remove("/none"), errno.ENOENT),
        (lambda: tree.remove("/d"), errno.ENOTEMPTY),
        (lambda: tree.move("/none", "/x"), errno.ENOENT),
        (lambda: tree.move("/d/f", "/no/where"), errno.ENOENT),
        (lambda: tree.move("/d", "/d/e"), errno.EINVAL),
        (lambda: tree.set_mode("/none", 0), errno.ENOENT),
    ]
    for call, number in expected:
        assert errno.errorcode[error_of(call) or 0] == errno.errorcode[number]
    tree.make_dir("/d")
    tree.make_dir("/")


@not_as_root
def test_a_file_that_may_not_be_written_is_not_replaced(place: Place) -> None:
    place.tree.write("/f", b"old")
    place.tree.set_mode("/f", 0o444)
    assert error_of(lambda: place.tree.write("/f", b"new")) == errno.EACCES
    place.tree.set_mode("/f", 0)
    assert error_of(lambda: place.tree.read("/f")) == errno.EACCES
    place.tree.set_mode("/f", 0o600)  # although it could not be opened
    assert place.tree.read("/f") == b"old"


# ---------------------------------------------------------------------- whole directories
def test_a_directory_is_packed_and_unpacked(place: Place) -> None:
    tree = place.tree
    tree.write("/from/sub/f", b"content")
    tree.set_mode("/from/sub/f", 0o750)
    os.symlink("sub/f", place.root / "from/link")
    tree.make_dir("/to")
    os.symlink("to", place.root / "way")
    tree.unpack("/way", list(tree.pack("/from")))
    assert tree.read("/to/sub/f") == b"content"
    assert tree.stat("/to/sub/f").mode == 0o750
    assert tree.stat("/to/link").target == "sub/f"
    assert error_of(lambda: list(tree.pack("/none"))) == errno.ENOENT


def test_a_host_path_of_a_directory_is_the_directory_even_when_it_moves(place: Place) -> None:
    place.tree.make_dir("/d")
    with place.tree.host_dir("/d") as path:
        place.tree.move("/d", "/e")
        (Path(path) / "f").write_bytes(b"1")
    assert place.tree.read("/e/f") == b"1"
