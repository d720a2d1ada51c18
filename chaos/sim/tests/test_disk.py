"""Content of the simulated disk after a kill, which keeps all, and after a power loss, which keeps synced bytes."""

from collections.abc import Callable
from functools import partialmethod
from random import Random

import pytest

from chaos.interceptor.tests.intercepted import Log, interceptor, rule
from chaos.sim.disk import SimDisk, Synced
from reference_broker.ports.disk import DiskError, KnownFolder
from scenarios.model import Match


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
        sizes.append(len(content(subject, "a").rstrip(b"\0")) if subject.exists("a") else 0)
    return min(sizes)


def outcomes(fill: Callable[[SimDisk], None], seeds: int = 80) -> list[dict[str, bytes]]:
    """Return the results of power losses of the same disk: the content of each file that is still there."""
    found = []
    for seed in range(seeds):
        subject = disk(seed)
        fill(subject)
        subject.power_loss()
        found.append({name: content(subject, name) for name in files(subject)})
    return found


def files(subject: SimDisk, folder: str = "") -> list[str]:
    paths = [f"{folder}/{name}" if folder else name for name in subject.list(folder)]
    return [inner for path in paths for inner in files(subject, path) or [path]]


def synced(subject: SimDisk, *paths: str) -> None:
    subject.finish_sync(subject.begin_sync(paths))


def test_power_loss_keeps_synced_bytes_and_a_torn_part_of_the_rest_which_may_end_in_zeros() -> None:
    def fill(subject: SimDisk) -> None:
        subject.append("a", [b"synced"])
        synced(subject, "a")
        subject.append("a", [b"-unsynced"])

    sizes: dict[int, None] = {}
    zeroed = 0
    for left in outcomes(fill):
        assert left["a"].startswith(b"synced")
        assert b"synced-unsynced".startswith(left["a"].rstrip(b"\0"))
        sizes[len(left["a"])] = None
        zeroed += left["a"].endswith(b"\0")
    assert {6, 15} <= sizes.keys(), "all of it and nothing of it both happen"
    assert len(sizes) > 5
    assert zeroed


def test_sync_covers_what_was_appended_before_it_began() -> None:
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


def test_file_that_is_rewritten_is_old_or_torn_before_its_sync() -> None:
    def fill(subject: SimDisk) -> None:
        subject.write("a", b"old")
        synced(subject, "a")
        subject.write("a", b"new")

    left = {outcome["a"] for outcome in outcomes(fill)}
    assert {b"old", b"new", b""} <= left
    assert all(each == b"old" or b"new".startswith(each.rstrip(b"\0")) for each in left)


def test_unsynced_truncation_may_be_undone() -> None:
    def fill(subject: SimDisk) -> None:
        subject.append("a", [b"12345678"])
        synced(subject, "a")
        subject.truncate("a", 3)

    assert {outcome["a"] for outcome in outcomes(fill)} == {b"123", b"12345678"}

    def settled(subject: SimDisk) -> None:
        fill(subject)
        synced(subject, "a")

    assert {outcome["a"] for outcome in outcomes(settled)} == {b"123"}


def test_new_name_is_durable_with_the_sync_of_its_folder() -> None:
    def fill(subject: SimDisk) -> None:
        subject.append("t-0/a", [b"1"])
        synced(subject, "t-0/a")
        subject.append("t-0/b", [b""])
        subject.append("u-0/c", [b""])

    left = [frozenset(outcome) for outcome in outcomes(fill)]
    assert all("t-0/a" in each for each in left)
    assert {len(each) for each in left} == {1, 2, 3}, "the other two are lost or kept each by itself"

    def settled(subject: SimDisk) -> None:
        fill(subject)
        synced(subject, "t-0/a", "u-0/c")

    assert {frozenset(outcome) for outcome in outcomes(settled)} == {frozenset(("t-0/a", "t-0/b", "u-0/c"))}


def test_unsynced_rename_is_kept_or_lost_as_a_whole() -> None:
    def fill(subject: SimDisk) -> None:
        subject.write("a.part", b"new")
        subject.write("a", b"old")
        synced(subject, "a.part", "a")
        subject.rename("a.part", "a")

    left = outcomes(fill)
    assert {tuple(sorted(outcome.items())) for outcome in left} == {
        (("a", b"new"),),
        (("a", b"old"), ("a.part", b"new")),
    }

    def settled(subject: SimDisk) -> None:
        fill(subject)
        synced(subject, "a")

    assert all(outcome == {"a": b"new"} for outcome in outcomes(settled))


def test_unsynced_deletions_come_back_each_by_itself() -> None:
    def fill(subject: SimDisk) -> None:
        for name in "abc":
            subject.append(f"t-0/{name}", [name.encode()])
        synced(subject, "t-0/a", "t-0/b", "t-0/c")
        subject.delete("t-0/a")
        subject.delete("t-0/b")

    left = {frozenset(outcome) for outcome in outcomes(fill)}
    assert left == {frozenset(kept) | {"t-0/c"} for kept in ((), ("t-0/a",), ("t-0/b",), ("t-0/a", "t-0/b"))}

    def settled(subject: SimDisk) -> None:
        fill(subject)
        synced(subject, "t-0/a")  # It is gone: its folder is synced.

    assert {frozenset(outcome) for outcome in outcomes(settled)} == {frozenset(("t-0/c",))}


def test_folder_whose_rename_is_lost_may_lack_files_that_were_deleted_under_its_new_name() -> None:
    def fill(subject: SimDisk) -> None:
        subject.append("t-0/a", [b"1"])
        subject.append("t-0/b", [b"2"])
        synced(subject, "t-0/a", "t-0/b")
        subject.rename("t-0", "t-0.gone")
        subject.delete("t-0.gone/a")

    left = {frozenset(outcome) for outcome in outcomes(fill)}
    assert frozenset(("t-0/b",)) in left
    assert frozenset(("t-0.gone/a", "t-0.gone/b")) in left


def test_changes_of_one_name_stay_in_order() -> None:
    def fill(subject: SimDisk) -> None:
        subject.append("a", [b"1"])
        synced(subject, "a")
        subject.delete("a")
        subject.append("a", [b"2"])

    assert {bytes(outcome.get("a", b"-")) for outcome in outcomes(fill)} <= {b"-", b"1", b"2", b"", b"\0"}


def test_deleted_file_is_not_part_of_running_sync() -> None:
    def fill(subject: SimDisk) -> None:
        subject.append("t-0/a", [b"1"])
        synced(subject, "t-0/a")
        running = subject.begin_sync(("t-0/a",))
        subject.delete("t-0/a")
        subject.finish_sync(running)

    assert {frozenset(outcome) for outcome in outcomes(fill)} == {frozenset(), frozenset(("t-0/a",))}


def test_flipped_bit_is_another_bit_for_good() -> None:
    subject = disk()
    subject.append("a", [b"\x00\x00"])
    synced(subject, "a")
    subject.flip("a", 9)
    subject.power_loss()
    assert content(subject, "a") == b"\x00\x02"


def test_same_seed_tears_at_the_same_byte() -> None:
    def torn(seed: int) -> list[int]:
        subject = disk(seed)
        for name in "abc":
            subject.append(name, [bytes(100)])
        subject.power_loss()
        return [subject.size(name) if subject.exists(name) else -1 for name in "abc"]

    assert torn(5) == torn(5) != torn(6)


def test_full_disk_refuses_an_append_whole_and_has_room_again_after_a_delete() -> None:
    subject = disk()
    subject.capacity_bytes = 10
    subject.append("a", [b"12345678"])
    with pytest.raises(DiskError, match="b: no space left"):
        subject.append("b", [b"123"])
    assert subject.size("b") == 0
    subject.delete("a")
    subject.append("b", [b"123"])
    assert subject.used_bytes == 3


def test_write_to_a_full_disk_leaves_what_fits() -> None:
    subject = disk()
    subject.capacity_bytes = 10
    subject.append("a", [b"12345678"])
    with pytest.raises(DiskError, match="b: no space left"):
        subject.write("b", b"123")
    assert content(subject, "b") == b"12"
    assert subject.used_bytes == 10


def test_bytes_of_failed_sync_are_readable_but_never_durable() -> None:
    def fill(subject: SimDisk) -> None:
        subject.append("a", [b"1"])
        synced(subject, "a")
        subject.append("a", [b"2"])
        subject.fail_sync(["a"])
        synced(subject, "a")
        assert content(subject, "a") == b"12"
        lost = subject.process_ended()
        assert lost == (["a"] if content(subject, "a") != b"12" else [])
        assert not subject.process_ended()

    assert least_kept(fill) == 1


def after_a_failed_sync(subject: SimDisk) -> None:
    subject.append("a", [b"1"])
    synced(subject, "a")
    subject.append("a", [b"2"])
    subject.fail_sync(["a"])


def test_append_after_failed_sync_is_durable_behind_hole() -> None:
    def fill(subject: SimDisk) -> None:
        after_a_failed_sync(subject)
        subject.append("a", [b"3"])
        synced(subject, "a")

    assert {left["a"] for left in outcomes(fill)} == {b"123", b"1\x003"}


def test_bytes_replacing_those_of_failed_sync_become_durable() -> None:
    def cut(subject: SimDisk) -> None:
        after_a_failed_sync(subject)
        subject.truncate("a", 1)
        subject.append("a", [b"4"])
        synced(subject, "a")

    def rewritten(subject: SimDisk) -> None:
        after_a_failed_sync(subject)
        subject.write("a", b"14")
        synced(subject, "a")

    for fill in (cut, rewritten):
        assert {left["a"] for left in outcomes(fill)} == {b"14"}


def test_truncation_that_is_undone_does_not_bring_back_the_bytes_of_a_failed_sync() -> None:
    def fill(subject: SimDisk) -> None:
        after_a_failed_sync(subject)
        subject.append("a", [b"3"])
        synced(subject, "a")
        subject.truncate("a", 0)

    assert {left["a"] for left in outcomes(fill)} == {b"", b"1\x003"}


def test_failed_sync_of_a_replacement_may_leave_what_was_there_before() -> None:
    left = set()
    for seed in range(80):
        subject = disk(seed)
        subject.append("a", [b"12"])
        synced(subject, "a")
        subject.write("a", b"34")
        subject.fail_sync(["a"])
        subject.process_ended()
        left.add(content(subject, "a"))
    assert {b"34", b"3", b"", b"12", b"32", b"\0\0"} <= left


@pytest.mark.parametrize("operation", ["sync", "open"])
def test_sync_that_is_requested_at_once_can_fail_and_leaves_a_hole(operation: str) -> None:
    def fill(subject: SimDisk) -> None:
        actions = Log()
        actions.sync_fails = subject.fail_sync  # type: ignore[method-assign]
        failing = rule("disk_error", on="disk", match=Match(operation=operation))
        subject.append("a", [b"1"])
        with pytest.raises(DiskError):
            interceptor(actions, failing).watch(subject).make_durable("a")
        subject.append("a", [b"2"])
        subject.make_durable("a")

    assert least_kept(fill) == 2
    hole = {left["a"] for left in outcomes(fill)} == {b"12", b"\x002"}
    assert hole is (operation == "sync")


def test_broken_disk_fails_reads_appends_and_syncs() -> None:
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


def left_by_a_killed_process(subject: SimDisk) -> None:
    subject.append("t-0/a", [b"1"])
    subject.append("t-0/c", [b"3"])
    subject.append("t-0/s", [b"0"])
    synced(subject, "t-0/a", "t-0/c", "t-0/s")
    subject.append("t-0/b", [b"2"])
    subject.rename("t-0/a", "t-0/d")
    subject.delete("t-0/c")
    subject.process_started()


def test_names_that_a_killed_process_left_unsynced_are_lost_or_become_durable_with_the_next_sync() -> None:
    left = {frozenset(outcome) for outcome in outcomes(left_by_a_killed_process)}
    assert frozenset(("t-0/a", "t-0/c", "t-0/s")) in left

    def settled(subject: SimDisk) -> None:
        left_by_a_killed_process(subject)
        subject.append("t-0/s", [b"1"])
        synced(subject, "t-0/s")

    assert {frozenset(outcome) for outcome in outcomes(settled)} == {frozenset(("t-0/b", "t-0/d", "t-0/s"))}


def test_process_that_treats_unknown_folders_as_synced_loses_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def settled(subject: SimDisk) -> None:
        left_by_a_killed_process(subject)
        subject.append("t-0/s", [b"1"])
        synced(subject, "t-0/s")

    monkeypatch.setattr(KnownFolder, "__init__", partialmethod(KnownFolder.__init__, changes=0))
    left = {frozenset(outcome) for outcome in outcomes(settled)}
    assert frozenset(("t-0/a", "t-0/c", "t-0/s")) in left


def test_durable_content_survives_each_power_loss() -> None:
    def started(subject: SimDisk) -> None:
        subject.append("folder/a", [b"old"])
        synced(subject, "folder/a")
        subject.append("folder/a", [b"er"])

    def replaced(subject: SimDisk) -> None:
        started(subject)
        subject.append("folder/b", [b"new"])
        synced(subject, "folder/b")
        subject.rename("folder/b", "folder/a")

    def renamed(subject: SimDisk) -> None:
        replaced(subject)
        synced(subject, "folder/a")

    def deleted(subject: SimDisk) -> None:
        renamed(subject)
        subject.delete("folder/a")

    for fill, durable in ((started, b"old"), (replaced, b"old"), (renamed, b"new"), (deleted, None)):
        subject = disk()
        fill(subject)
        assert subject.durable("folder/a") == durable
        left = [outcome.get("folder/a") for outcome in outcomes(fill)]
        assert None in left if durable is None else any((each or b"").startswith(durable) for each in left)
    assert disk().durable("folder/a") is None


def test_bytes_whose_sync_failed_are_not_durable() -> None:
    subject = disk()
    subject.append("a", [b"first"])
    synced(subject, "a")
    subject.append("a", [b"second"])
    subject.fail_sync(["a"])
    subject.append("a", [b"third"])
    synced(subject, "a")
    assert subject.durable("a") == b"first" + bytes(6) + b"third"
    assert subject.durable_size("a") == 5
    assert not subject.survives("a")
    assert left_sizes(subject, "a") == {5}


def left_sizes(subject: SimDisk, path: str) -> set[int]:
    """Return how many bytes of the file's start are in all of many outcomes of a power loss."""
    written = subject.read(path, 0, subject.size(path))
    sizes = []
    for seed in range(200):
        fork = subject.fork()
        fork._random = Random(seed)
        fork.power_loss()
        left = fork.durable(path) or b""
        sizes.append(next((at for at, byte in enumerate(written) if left[at : at + 1] != bytes([byte])), len(written)))
    return {min(sizes)}


def test_whole_file_behind_a_failed_sync_survives_once_it_is_written_again() -> None:
    subject = disk()
    subject.append("a", [b"first"])
    subject.fail_sync(["a"])
    synced(subject, "a")
    assert subject.durable_size("a") == 0, "the later sync does not write it"
    assert not subject.survives("a"), "the later sync does not write it"
    subject.write("a", b"other")
    synced(subject, "a")
    assert subject.durable_size("a") == 5
    assert subject.survives("a")


def test_file_survives_only_with_its_folder() -> None:
    subject = disk()
    subject.append("folder/a", [b"one"])
    of_folder = next(folder for folder in subject.begin_sync(["folder/a"]).folders if "a" in folder.folder.names)
    subject.finish_sync(Synced(subject.begin_sync(["folder/a"]).files, (of_folder,), subject._names.last_change))
    assert not subject.survives("folder/a")
    synced(subject, "folder/a")
    assert subject.survives("folder/a")
    subject.rename("folder", "other")
    assert subject.survives("other/a"), "it is in one of both"


@pytest.mark.parametrize("change", ["none", "created", "deleted", "renamed", "synced"])
def test_unsynced_creation_may_return_after_its_deletion(change: str) -> None:
    def fill(subject: SimDisk) -> None:
        subject.append("b", [b"other"])
        synced(subject, "b")
        if change == "renamed":
            subject.rename("b", "a")
        elif change != "none":
            subject.append("a", [b"mark"])
        if change != "created" and subject.exists("a"):
            subject.delete("a")
        if change == "synced":
            synced(subject, "a")

    subject = disk()
    fill(subject)
    returns = any("a" in outcome for outcome in outcomes(fill))
    assert subject.may_return("a") is returns is (change in ("created", "deleted", "renamed"))
