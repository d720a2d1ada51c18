"""The interceptor at writes of the disk: how many bytes of one land, and what the node sees."""

import pytest

from chaos.interceptor.tests.intercepted import Ended, Log, interceptor, rule
from reference_broker.ports.disk import DiskError, MemoryDisk
from scenarios.model import Match, Range


def test_disk_without_rules_is_not_wrapped() -> None:
    disk = MemoryDisk()
    assert interceptor(Log(), rule("request_dropped")).watch(disk) is disk


@pytest.mark.parametrize("kept", [0, 2, 6])
def test_kill_at_byte_k_of_a_write_leaves_k_bytes(kept: int) -> None:
    log, disk = Log(), MemoryDisk()
    disk.append("a.log", [b"old"])
    killed = rule("node_killed", on="disk_write", match=Match(path="*.log"), cut_bytes=Range(kept, kept))
    with pytest.raises(Ended):
        interceptor(log, killed).watch(disk).append("a.log", [b"abc", b"def"])
    assert disk.read("a.log", 0, 100) == b"old" + b"abcdef"[:kept]
    assert log.rows[0].detail == f"a.log at 3, {kept} of 6 bytes"


def test_failed_append_leaves_the_file_as_it_was() -> None:
    disk = MemoryDisk()
    disk.append("a.log", [b"old"])
    failing = rule("disk_write_failed", on="disk_write", cut_bytes=Range(2, 2))
    with pytest.raises(DiskError, match=r"a[.]log"):
        interceptor(Log(), failing).watch(disk).append("a.log", [b"abc"])
    assert disk.read("a.log", 0, 100) == b"old"


def test_bit_of_a_write_goes_bad_and_nothing_is_reported() -> None:
    log, disk = Log(), MemoryDisk()
    disk.append("a.log", [b"old"])
    flipped = rule("disk_bit_flipped", on="disk_write", cut_bytes=Range(4, 4))
    assert interceptor(log, flipped).watch(disk).append("a.log", [b"abc", b"def"]) == 3
    assert disk.read("a.log", 0, 100) == b"oldabcddf"
    beyond = rule("disk_bit_flipped", on="disk_write", cut_bytes=Range(100, 100))
    interceptor(log, beyond).watch(disk).write("b", b"abc")
    assert disk.read("b", 0, 100) == b"abb", "a bit goes bad, however short the write is"
    assert [row.kind for row in log.rows] == ["disk_bit_flipped"] * 2


def test_failed_first_write_leaves_an_empty_file() -> None:
    disk = MemoryDisk()
    watched = interceptor(Log(), rule("disk_write_failed", on="disk_write", nth=1, every=1, times=0)).watch(disk)
    with pytest.raises(DiskError):
        watched.write("new", b"abc")
    with pytest.raises(DiskError):
        watched.append("newer", [b"abc"])
    assert disk.files == {"new": b"", "newer": b""}


def test_paused_disk_write_is_completed() -> None:
    log, disk = Log(), MemoryDisk()
    watched = interceptor(log, rule("node_paused", on="disk_write", duration_us=9, cut_bytes=Range(1, 1))).watch(disk)
    assert watched.append("a", [b"abc"]) == 0
    assert disk.read("a", 0, 9) == b"abc"
    assert log.calls[1] == ("pause", 9)


@pytest.mark.parametrize(("role", "hit"), [("follower", True), ("leader", False)])
def test_write_is_hit_by_path_and_role(role: str, hit: bool) -> None:
    log, disk = Log(), MemoryDisk()
    failing = rule("disk_write_failed", on="disk_write", match=Match(path="*.part"), node="follower")
    watched = interceptor(log, failing, role=role).watch(disk)
    watched.append("log", [b"abc"])
    if hit:
        with pytest.raises(DiskError):
            watched.append("x.checkpoint.part", [b"abc"])
    else:
        watched.append("x.checkpoint.part", [b"abc"])
    assert (disk.read("x.checkpoint.part", 0, 9) == b"abc") is not hit
