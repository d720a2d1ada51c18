"""The verdict of an upgrade names each thing that can be wrong with an upload."""

from dataclasses import replace
from pathlib import Path

import pytest

from campaigns.upgrade import taking_over
from campaigns.upgrade.full_replay import replayed
from campaigns.upgrade.journey import Journey, Recreated, Upgrade, eligible_segments
from campaigns.upgrade.kafka_files import UpgradeError, file_name, snapshot_file
from campaigns.upgrade.old_directory import WantedLog, make
from campaigns.upgrade.verdict import compute_verdict

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def journey(tmp_path: Path) -> Journey:
    """All that is eligible was uploaded as it must be: the store is filled from the full replay."""
    make(tmp_path / "old", WantedLog(size_bytes=200_000, segment_bytes=20_000, batch_bytes=2_000), NOW_MS)
    (old,) = taking_over.read(tmp_path / "old", ()).partitions
    replay, uploads = replayed(old.folder), tmp_path / "tier"
    uploads.mkdir()
    eligible = eligible_segments(replay)
    for segment in eligible:
        start = f"{segment.base_offset:020d}-AAAAAAAAAAAAAAAAAAAAAA"
        (uploads / f"{start}.log").write_bytes((old.folder / file_name(segment.base_offset, ".log")).read_bytes())
        rows = [one.row for one in segment.known.values() if one.row.timestamp_ms > NOW_MS - DAY_MS]
        rows += [one.row for one in segment.known.values() if one.row.open_from >= 0 and one.row not in rows]
        (uploads / f"{start}.snapshot").write_bytes(snapshot_file(rows))
    made = {segment.next_offset: Recreated(segment.base_offset, 10, NOW_MS) for segment in eligible[-2:]}
    there = frozenset({replay[-3].base_offset})
    return Journey(old, replay, eligible, there, uploads, made, False, DAY_MS, NOW_MS, NOW_MS)


def object_of(journey: Journey, at: int, suffix: str) -> Path:
    (path,) = journey.uploads.glob(f"{journey.eligible[at].base_offset:020d}-*{suffix}")
    return path


def test_correct_result_is_good(journey: Journey) -> None:
    verdict = compute_verdict(journey)
    assert verdict.is_good
    count = len(journey.eligible)
    assert verdict.eligible == count
    assert verdict.uploaded == count
    assert verdict.whole == count
    assert verdict.equal == count
    assert (verdict.missing_before, verdict.recreated, verdict.replayed_bytes) == (len(journey.replay) - 3, 2, 20)
    assert verdict.cells()[-1] == "yes"


def test_segment_that_is_not_there(journey: Journey) -> None:
    object_of(journey, 0, ".log").unlink()
    verdict = compute_verdict(journey)
    assert not verdict.is_good
    assert verdict.cells()[-1] == "NO: 1 not uploaded"


def test_segment_that_is_not_whole(journey: Journey) -> None:
    path = object_of(journey, 1, ".log")
    path.write_bytes(path.read_bytes()[:-1])
    assert compute_verdict(journey).cells()[-1] == "NO: 1 not whole"


@pytest.mark.parametrize("content", [b"", snapshot_file([])])
def test_snapshot_that_lacks_producers(journey: Journey, content: bytes) -> None:
    object_of(journey, -1, ".snapshot").write_bytes(content)
    assert compute_verdict(journey).cells()[-1].startswith("NO: 1 differ (")


def test_no_snapshot_at_all(journey: Journey) -> None:
    object_of(journey, -1, ".snapshot").unlink()
    assert compute_verdict(journey).cells()[-1].startswith("NO: 1 differ (")


def test_replay_that_read_too_much(journey: Journey) -> None:
    made = {offset: replace(each, from_offset=0) for offset, each in journey.recreated.items()}
    assert compute_verdict(replace(journey, recreated=made)).cells()[-1] == "NO: 2 read too early"


@pytest.mark.parametrize(("off_ms", "untimely"), [(-1, 1), (0, 0), (1, 0), (2, 1)])
def test_snapshot_whose_time_is_not_of_this_run(journey: Journey, off_ms: int, untimely: int) -> None:
    """A broker that logged another time would choose itself which producers are expired."""
    made = dict(journey.recreated)
    offset = max(made)
    made[offset] = replace(made[offset], now_ms=NOW_MS + off_ms)
    verdict = compute_verdict(replace(journey, recreated=made, ended_ms=NOW_MS + 1))
    assert (verdict.untimely, verdict.is_good) == (untimely, not untimely)
    assert ("1 made at no time of this run" in verdict.cells()[-1]) is bool(untimely)


def test_partition_without_a_closed_segment_has_nothing_to_compare(journey: Journey) -> None:
    assert compute_verdict(replace(journey, eligible=(), recreated={})).cells()[-1] == "nothing to compare"


def test_directory_without_a_closed_segment_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "old", WantedLog(size_bytes=20_000, segment_bytes=1 << 20, batch_bytes=2_000), NOW_MS)
    old = taking_over.read(tmp_path / "old", ())
    upgrade = Upgrade(old, tmp_path / "data", tmp_path / "tier", {}, 1.0, lambda _: None)
    with pytest.raises(UpgradeError, match=r"old has no closed segment that ends before .* be uploaded\.$"):
        upgrade.replayed()


def test_leader_epochs_that_were_changed_are_no_damage(journey: Journey) -> None:
    for path in journey.uploads.glob("*.log"):
        data = bytearray(path.read_bytes())
        data[12:16] = bytes(4)
        path.write_bytes(data)
    for path in journey.old.folder.glob("*.log"):
        data = bytearray(path.read_bytes())
        data[12:16] = (3).to_bytes(4, "big")
        path.write_bytes(data)
    assert not compute_verdict(journey).is_good
    changed = replace(journey, epochs_changed=True)
    assert compute_verdict(changed).is_good
    path = object_of(journey, 1, ".log")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert compute_verdict(changed).cells()[-1] == "NO: 1 not whole"
