"""The comparison of the two revisions of fetch sessions counts their costs, with one seed and a small load."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from campaigns.experiments.revisions import (
    COSTS,
    TROUBLES,
    VARIANTS,
    Counted,
    RevisionResult,
    RevisionRun,
    RevisionSize,
    RevisionVariant,
    Trouble,
    bytes_of_a_partition,
    grouped,
    main,
    parts_for,
    played,
    spread,
    table,
)
from reference_broker.wire.apis import FETCH_FIRST_REVISION
from reports.verdict import Outcome

pytestmark = pytest.mark.simulated

FINAL, BY_NAME, FIRST, NONE, FIRST_RESENDS, FINAL_RESENDS = VARIANTS
NO_LOSS, _, MUCH_LOSS, DOUBLED, FEW_SLOTS = TROUBLES
SMALL = RevisionSize(seconds=25.0, partitions=20)
LARGE_SESSION, SMALL_SESSION = SMALL.partitions, SMALL.partitions // 2
FETCHERS_OF_EACH_SIZE = 3
FETCHERS = 2 * FETCHERS_OF_EACH_SIZE
IDLE_PARTITION = 1
"""Each fetcher also fetches the idle partition, which is in its session."""
SEEDS = (1, 2)
MIN_FETCHES = 100
"""Each of the fetchers polls about once a second."""
TROUBLES_WITH_LOSS, TROUBLES_WITHOUT_LOSS = 3, 2
VARIANTS_THAT_RESEND = 2
"""These are played only with lost responses."""
LARGEST_PARTITION_BYTES, SMALLEST_PARTITION_BYTES = 1000, 200


@pytest.mark.parametrize("words", [("--seeds", "0"), ("--processes", "0")])
def test_nothing_to_play_is_refused(
    words: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["revisions_compared", *words])
    with pytest.raises(SystemExit):
        main()
    assert "must be at least 1" in capsys.readouterr().err


def counted(variant: RevisionVariant, trouble: Trouble) -> Counted:
    seen = played(RevisionRun(variant, trouble, 1, SMALL))
    assert seen.outcome is Outcome.PASSED
    assert (seen.lost > 0) is bool(trouble.lost_every)
    return seen.counted


def test_without_loss_the_revisions_do_the_same_and_only_their_layouts_differ() -> None:
    final, by_name, first = (counted(each, NO_LOSS) for each in (FINAL, BY_NAME, FIRST))
    assert final.fetches > MIN_FETCHES
    assert final.full_again == 0
    assert final.sessions == FETCHERS
    assert final.cached == FETCHERS_OF_EACH_SIZE * (SMALL_SESSION + LARGE_SESSION) + FETCHERS * IDLE_PARTITION
    assert (first.named, first.returned) == (final.named, final.returned)
    # The first revision orders partitions as a ring, so a response may begin and end with the same topic.
    assert first.layout_bytes == pytest.approx(final.layout_bytes, rel=0.001)
    assert first.request_bytes != by_name.request_bytes
    assert by_name.request_bytes + by_name.response_bytes == by_name.layout_bytes == final.layout_bytes


def test_only_first_revision_with_retransmission_avoids_full_fetches() -> None:
    final, first, resends = (counted(each, MUCH_LOSS) for each in (FINAL, FIRST, FIRST_RESENDS))
    assert final.full_again == first.full_again > 0
    assert resends.full_again == 0
    assert resends.returned < first.returned
    assert first.sessions == resends.sessions == FETCHERS
    assert final.sessions == FETCHERS + final.full_again
    assert final.twice > 0


def test_without_sessions_each_fetch_names_all_partitions() -> None:
    none = counted(NONE, NO_LOSS)
    mean_partitions = (SMALL_SESSION + LARGE_SESSION) / 2 + IDLE_PARTITION
    assert none.named == none.returned
    assert none.named / none.fetches == pytest.approx(mean_partitions, rel=0.01)
    assert none.sessions == 0
    assert none.cached == 0


def test_duplicate_request_gets_records_twice_only_with_two_responses() -> None:
    assert counted(FINAL, DOUBLED).twice == 0
    assert counted(FIRST, DOUBLED).twice > 0


def test_too_few_slots_cause_more_full_fetches_than_loss_alone() -> None:
    assert counted(FINAL, FEW_SLOTS).full_again > 2 * counted(FINAL, MUCH_LOSS).full_again


def test_retransmission_is_played_only_with_lost_responses() -> None:
    parts = parts_for(SEEDS)
    with_loss = TROUBLES_WITH_LOSS * len(VARIANTS)
    without_loss = TROUBLES_WITHOUT_LOSS * (len(VARIANTS) - VARIANTS_THAT_RESEND)
    assert len(parts) == len(SEEDS) * (with_loss + without_loss)
    assert {part.trouble for part in parts if part.variant is FINAL_RESENDS} == {
        trouble for trouble in TROUBLES if trouble.lost_every
    }


@pytest.mark.parametrize("version", [17, 12, FETCH_FIRST_REVISION])
def test_cached_partition_takes_some_hundred_bytes(version: int) -> None:
    """Measure three times, because a cache elsewhere in the process may grow meanwhile."""
    least_bytes = min(bytes_of_a_partition(version, partitions=300) for _ in range(3))
    assert SMALLEST_PARTITION_BYTES < least_bytes < LARGEST_PARTITION_BYTES


def test_table_has_median_minimum_and_maximum(tmp_path: Path) -> None:
    from campaigns.experiments.revisions import draw

    sums = Counted(fetches=10, request_bytes=1000, response_bytes=2000, layout_bytes=2500, named=15, returned=20)
    seen = [
        RevisionResult(
            RevisionRun(FINAL, NO_LOSS, number),
            Outcome.PASSED,
            0,
            replace(sums, request_bytes=1000 * number, full_again=2),
        )
        for number in (1, 2, 4)
    ]
    groups_of_runs = grouped(seen)
    last = table(groups_of_runs, COSTS)[-1]
    assert last == "| no loss | final, Fetch 17 | 200 (100 to 400) | 200 | 250 | 1.5 | 2 | 0 | 2 | 0 |"
    assert spread([1.0, 2.0, 2.0]) == "2 (1 to 2)"
    draw(groups_of_runs, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
