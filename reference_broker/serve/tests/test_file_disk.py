"""What only real files can show: cut-short writes, open files, durable names."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from reference_broker.ports.disk import DiskError
from reference_broker.serve.disk import FileDisk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FileDisk]:
    made = FileDisk(tmp_path, 8)
    yield made
    made.close()


def test_append_that_fails_in_the_middle_leaves_the_file_as_it_was(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_short_writes_are_finished(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write, real_writev = os.write, os.writev
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, bytes(data)[:2]))
    monkeypatch.setattr(os, "writev", lambda fd, views: real_writev(fd, [bytes(views[0])[:2]]))
    disk.append("a", [b"abcdefg"])
    disk.append("a", [b"hij", b"", b"klmno"])
    assert disk.read("a", 0, 99) == b"abcdefghijklmno"


def test_open_files_stay_below_the_limit(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path, 4)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        disk.append(f"t-{number}/log", [b"x"])
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    for number in range(50):
        assert disk.append(f"t-{number}/log", [b"y"]) == 1
    disk.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_sync_covers_the_file_and_each_new_name_above_it_once(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fdatasync

    def noted(descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", noted)
    disk.append("topic-0/a.log", [b"x"])
    disk.synchronise(disk.open_for_sync(["topic-0/a.log"]))
    assert synced == ["topic-0/a.log", "topic-0", "."]
    synced.clear()
    disk.append("topic-0/a.log", [b"y"])
    disk.synchronise(disk.open_for_sync(["topic-0/a.log", "topic-0/gone.log"]))
    assert synced == ["topic-0/a.log"]


def test_sync_goes_on_while_the_table_closes_the_file(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path, 1)
    disk.append("a", [b"x"])
    descriptors = disk.open_for_sync(["a"])
    disk.append("b", [b"y"])
    disk.delete("a")
    disk.synchronise(descriptors)
    disk.close()


def test_the_lock_file_is_no_part_of_the_data(disk: FileDisk, tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    disk.append("meta.properties", [b"x"])
    assert disk.list("") == ["meta.properties"]


def test_a_deleted_mark_of_the_node_does_not_come_back_after_a_power_loss(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.append(".kafka_cleanshutdown", [b"x"])
    disk.append("topic-0/a.log", [b"x"])
    synced: list[str] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    disk.delete("topic-0/a.log")
    assert synced == []
    disk.delete(".kafka_cleanshutdown")
    assert synced == ["."]


@pytest.mark.parametrize("what", ["open", "listdir"])
def test_where_no_descriptor_is_free_open_files_make_room(
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
