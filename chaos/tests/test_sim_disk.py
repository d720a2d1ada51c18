"""What the simulated disk keeps: all of it after a kill, only what was synced (and a torn part) after a power loss."""

from collections.abc import Callable
from random import Random

import pytest

from chaos.sim.disk import SimDisk
from reference_broker.ports.disk import DiskError


def disk(seed: int = 1) -> SimDisk:
    return SimDisk(Random(seed))


def content(subject: SimDisk, path: str) -> bytes:
    return subject.read(path, 0, 1 << 20)


def least_kept(fill: Callable[[SimDisk], None]) -> int:
    """The bytes of file ``a`` that a power loss leaves in any case."""
    sizes = []
    for seed in range(60):
        subject = disk(seed)
        fill(subject)
        subject.power_loss()
        sizes.append(subject.size("a"))
    return min(sizes)


def test_power_loss_keeps_synced_bytes_and_a_torn_part_of_the_rest() -> None:
    sizes: dict[int, None] = {}
    for seed in range(60):
        subject = disk(seed)
        subject.append("a", [b"synced"])
        subject.finish_sync(subject.begin_sync(["a"]))
        subject.append("a", [b"-unsynced"])
        subject.power_loss()
        left = content(subject, "a")
        assert b"synced-unsynced".startswith(left)
        assert left.startswith(b"synced")
        sizes[len(left)] = None
    assert {6, 15} <= sizes.keys(), "all of it and nothing of it both happen"
    assert len(sizes) > 5


def test_a_sync_covers_what_was_appended_before_it_began() -> None:
    def fill(subject: SimDisk) -> None:
        subject.append("a", [b"1234"])
        sync = subject.begin_sync(["a"])
        subject.append("a", [b"5678"])
        subject.finish_sync(sync)

    assert least_kept(fill) == 4


def test_bytes_that_replaced_truncated_ones_during_a_sync_are_not_durable() -> None:
    def fill(subject: SimDisk) -> None:
        subject.append("a", [b"12345678"])
        sync = subject.begin_sync(["a"])
        subject.truncate("a", 2)
        subject.append("a", [b"abcdef"])
        subject.finish_sync(sync)

    assert least_kept(fill) == 2


def test_a_replaced_file_is_not_durable_before_its_sync() -> None:
    def fill(subject: SimDisk) -> None:
        subject.write("a", b"old")
        subject.finish_sync(subject.begin_sync(["a"]))
        subject.write("a", b"new")

    assert least_kept(fill) == 0


def test_a_renamed_file_stays_durable() -> None:
    subject = disk()
    subject.write("a.part", b"whole")
    subject.finish_sync(subject.begin_sync(["a.part"]))
    subject.rename("a.part", "a")
    subject.power_loss()
    assert content(subject, "a") == b"whole"
    assert not subject.exists("a.part")


def test_the_same_seed_tears_at_the_same_byte() -> None:
    def torn(seed: int) -> list[int]:
        subject = disk(seed)
        for name in "abc":
            subject.append(name, [bytes(100)])
        subject.power_loss()
        return [subject.size(name) for name in "abc"]

    assert torn(5) == torn(5) != torn(6)


def test_a_full_disk_refuses_an_append_whole_and_has_room_again_after_a_delete() -> None:
    subject = disk()
    subject.capacity_bytes = 10
    subject.append("a", [b"12345678"])
    with pytest.raises(DiskError, match="b: no space left"):
        subject.append("b", [b"123"])
    assert not subject.exists("b")
    subject.delete("a")
    subject.append("b", [b"123"])
    assert subject.used_bytes == 3


def test_a_broken_disk_fails_reads_appends_and_syncs() -> None:
    def fill(subject: SimDisk) -> None:
        subject.append("a", [b"1"])
        sync = subject.begin_sync(["a"])
        subject.broken = True
        for access in (
            lambda: subject.read("a", 0, 1),
            lambda: subject.append("a", [b"2"]),
            lambda: subject.finish_sync(sync),
        ):
            with pytest.raises(DiskError, match="input/output"):
                access()
        subject.broken = False

    assert least_kept(fill) == 0, "the sync that failed made nothing durable"
