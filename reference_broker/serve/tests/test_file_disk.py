"""Behaviour that only real files show: short writes, open files, durable names."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

import pytest

from reference_broker.ports.disk import DiskError, UndoFailed
from reference_broker.serve.disk import FileDisk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FileDisk]:
    made = FileDisk(tmp_path, 8)
    yield made
    made.close()


def test_failed_append_leaves_file_unchanged(disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.append("a", [b"kept"])
    real_write = os.write

    def disk_full(descriptor: int, data: bytes) -> int:
        if len(data) > 3:
            return real_write(descriptor, bytes(data)[:3])
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", disk_full)
    with pytest.raises(DiskError, match="cannot append to a: No space left"):
        disk.append("a", [b"lost!!"])
    monkeypatch.undo()
    assert (tmp_path / "a").read_bytes() == b"kept"
    assert disk.append("a", [b"!"]) == 4


def test_short_writes_are_completed(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write, real_writev = os.write, os.writev
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, bytes(data)[:2]))
    monkeypatch.setattr(os, "writev", lambda fd, views: real_writev(fd, [bytes(views[0])[:2]]))
    disk.append("a", [b"abcdefg"])
    disk.append("a", [b"hij", b"", b"klmno"])
    assert disk.read("a", 0, 99) == b"abcdefghijklmno"


def test_open_files_stay_below_limit(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path, 4)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        disk.append(f"t-{number}/log", [b"x"])
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    for number in range(50):
        assert disk.append(f"t-{number}/log", [b"y"]) == 1
    disk.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_append_with_failed_undo_raises(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.append("a", [b"kept"])
    real_write = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) > 3:
            return real_write(descriptor, bytes(data)[:3])
        raise OSError(errno.EIO, "broken")

    def fails(*_: int) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", half)
        broken.setattr(os, "ftruncate", fails)
        with pytest.raises(UndoFailed, match="undo a partial append to a"):
            disk.append("a", [b"abcdef"])
    assert disk.size("a") == 7, "the file's true size"


class Synced:
    """The synced paths, in order, relative to the root."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        for name in ("fdatasync", "fsync"):
            monkeypatch.setattr(os, name, self._noting(root, getattr(os, name)))

    def _noting(self, root: Path, real: Callable[[int], None]) -> Callable[[int], None]:
        def noted(descriptor: int) -> None:
            self.paths.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), root))
            real(descriptor)

        return noted

    def taken(self) -> list[str]:
        taken, self.paths = self.paths, []
        return taken


@pytest.fixture
def synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Synced:
    return Synced(tmp_path, monkeypatch)


def test_sync_covers_file_and_new_parent_names_once(disk: FileDisk, synced: Synced) -> None:
    disk.append("topic-0/a.log", [b"x"])
    disk.synchronise(disk.open_for_sync(["topic-0/a.log"]))
    assert synced.taken() == ["topic-0/a.log", "topic-0", "."]
    disk.append("topic-0/a.log", [b"y"])
    disk.synchronise(disk.open_for_sync(["topic-0/a.log", "topic-0/gone.log"]))
    assert synced.taken() == ["topic-0/a.log"]


def test_deletion_and_rename_are_durable_with_next_sync_in_directory(disk: FileDisk, synced: Synced) -> None:
    for name in ("a", "b", "c"):
        disk.append(f"topic-0/{name}", [b"x"])
    disk.synchronise(disk.open_for_sync(["topic-0/a"]))
    synced.taken()
    disk.delete("topic-0/b")
    disk.rename("topic-0/c", "topic-0/d")
    assert synced.taken() == [], "the caller does not wait for it"
    disk.synchronise(disk.open_for_sync(["topic-0/b"]))
    assert synced.taken() == ["topic-0"]
    disk.rename("topic-0", "topic-1")
    disk.append("topic-1/e", [b"x"])
    disk.synchronise(disk.open_for_sync(["topic-1/e"]))
    assert synced.taken() == ["topic-1/e", "topic-1", "."]
    disk.delete("topic-1")
    disk.make_durable("topic-1")
    assert synced.taken() == ["."]


def test_names_of_earlier_process_are_synced_with_first_dependent_sync(
    disk: FileDisk, tmp_path: Path, synced: Synced
) -> None:
    disk.append("topic-0/a", [b"x"])
    disk.append("topic-1/b", [b"x"])
    disk.close()
    next_life = FileDisk(tmp_path, 8)
    next_life.synchronise(next_life.open_for_sync(["topic-0/a"]))
    assert synced.taken() == ["topic-0/a", "topic-0", "."]
    next_life.synchronise(next_life.open_for_sync(["topic-0/a", "topic-1/gone", "topic-2/gone"]))
    assert synced.taken() == ["topic-0/a", "topic-1"], "there is no folder topic-2"
    next_life.append("topic-2/c", [b"x"])
    next_life.synchronise(next_life.open_for_sync(["topic-2/c"]))
    assert synced.taken() == ["topic-2/c", "topic-2", "."]
    next_life.close()


def test_second_sync_waits_for_directory_sync_of_first(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.append("topic-0/a", [b"x"])
    first, second = (disk.open_for_sync(["topic-0/a"]) for _ in range(2))
    folder_syncs, may_go_on = 0, Event()
    real = os.fsync

    def slow(descriptor: int) -> None:
        nonlocal folder_syncs
        folder_syncs += 1
        may_go_on.wait(10)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    with ThreadPoolExecutor(2) as threads:
        syncs = [threads.submit(disk.synchronise, opened) for opened in (first, second)]
        assert not wait(syncs, timeout=0.1).done, "the names of the folder are not durable"
        may_go_on.set()
        wait(syncs)
    assert [each.exception() for each in syncs] == [None, None]
    assert folder_syncs == 2, "both syncs share one fsync of each folder"


def test_name_created_during_directory_fsync_gets_own_fsync(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.append("a", [b"x"])
    folder_syncs = 0
    real = os.fsync

    def noted(descriptor: int) -> None:
        nonlocal folder_syncs
        folder_syncs += 1
        if folder_syncs == 1:
            disk.append("b", [b"x"])
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    disk.make_durable("a")
    disk.make_durable("b")
    assert folder_syncs == 2


def test_failed_directory_fsync_fails_later_ones(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.append("a", [b"x"])

    def fails(_: int) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fails)
        with pytest.raises(DiskError):
            disk.make_durable("a")
    with pytest.raises(DiskError):
        disk.make_durable("a")


def test_sync_continues_while_table_closes_file(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path, 1)
    disk.append("a", [b"x"])
    descriptors = disk.open_for_sync(["a"])
    disk.append("b", [b"y"])
    disk.delete("a")
    disk.synchronise(descriptors)
    disk.close()


def test_lock_file_is_not_listed(disk: FileDisk, tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    disk.append("meta.properties", [b"x"])
    assert disk.list("") == ["meta.properties"]


@pytest.mark.parametrize("what", ["open", "listdir"])
def test_open_files_are_closed_if_no_descriptor_is_free(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    for number in range(5):
        disk.append(f"f{number}", [b"x"])
    closed: list[int] = []
    real, real_close = getattr(os, what), os.close

    def close(descriptor: int) -> None:
        closed.append(descriptor)
        real_close(descriptor)

    def refused(*words: object) -> object:
        if len(closed) < 2:
            raise OSError(errno.EMFILE, "too many open files")
        return real(*words)

    monkeypatch.setattr(os, "close", close)
    monkeypatch.setattr(os, what, refused)
    if what == "open":
        disk.append("another", [b"y"])
        assert disk.read("another", 0, 9) == b"y"
    else:
        assert disk.list("") == [f"f{number}" for number in range(5)]
    assert len(closed) == 2
    monkeypatch.undo()
    assert disk.read("f0", 0, 9) == b"x"


def test_failed_lookup_of_file_raises(disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that takes meta.properties for missing would create another identity."""
    (tmp_path / "there").touch()

    def broken(path: object) -> None:  # noqa: ARG001
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", broken)
        with pytest.raises(DiskError, match="cannot look for there: Input/output error"):
            disk.exists("there")
    assert disk.exists("there")
    assert not disk.exists("elsewhere")
    assert not disk.exists("there/below")


def test_pages_of_failed_sync_are_dropped_before_next_start(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[str] = []

    def advise(descriptor: int, offset: int, length: int, advice: int) -> None:
        assert (offset, length, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        dropped.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    def broken(descriptor: int) -> None:  # noqa: ARG001
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "posix_fadvise", advise)
    disk.append("well", [b"1"])
    disk.append("t-0/lost", [b"1"])
    disk.make_durable("well")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", broken)
        with pytest.raises(DiskError, match="cannot sync t-0/lost"):
            disk.make_durable("t-0/lost")
    assert dropped == []
    disk.close()
    assert dropped == [str(tmp_path / "t-0/lost")]


def test_start_after_kill_drops_pages_of_unsynced_files(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[str] = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda descriptor, *_: dropped.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    for base in (0, 10, 20):
        disk.append(f"t-0/{base:020d}.log", [b"1"])
        disk.append(f"u-0/{base:020d}.log", [b"1"])
    disk.write("t-0/recovery-point-offset-checkpoint", b"0\n1\n10\n")
    FileDisk(tmp_path, 8).distrust_cache()
    assert sorted(path.removeprefix(f"{tmp_path}/") for path in dropped) == [
        *(f"t-0/{base:020d}.log" for base in (10, 20)),
        "t-0/recovery-point-offset-checkpoint",
        *(f"u-0/{base:020d}.log" for base in (0, 10, 20)),
    ]


def test_slow_directory_syncs_delay_only_syncs_of_new_names(disk: FileDisk) -> None:
    disk.append("a", [b"1"])
    disk.folder_delay_s = 0.05
    before_s = time.monotonic()
    disk.make_durable("a")
    assert disk.folders_delayed == 1
    assert time.monotonic() - before_s >= 0.05
    disk.append("a", [b"2"])
    disk.make_durable("a")
    assert disk.folders_delayed == 1
