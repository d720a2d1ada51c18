"""The comparison of the two revisions of fetch sessions counts what they cost, with one seed and a small load."""

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
    assert final.fetches > 100
    assert (final.full_again, final.sessions, final.cached) == (0, 6, 3 * 10 + 3 * 20 + 6)
    assert (first.named, first.returned) == (final.named, final.returned)
    # The first revision orders partitions as a ring, so a response may begin and end with the same topic.
    assert first.layout_bytes == pytest.approx(final.layout_bytes, rel=0.001)
    assert first.request_bytes != by_name.request_bytes
    assert by_name.request_bytes + by_name.response_bytes == by_name.layout_bytes == final.layout_bytes


def test_only_first_revision_avoids_full_fetch_and_only_with_retransmission() -> None:
    final, first, resends = (counted(each, MUCH_LOSS) for each in (FINAL, FIRST, FIRST_RESENDS))
    assert final.full_again == first.full_again > 0
    assert resends.full_again == 0
    assert resends.returned < first.returned
    assert (first.sessions, resends.sessions) == (6, 6)
    assert final.sessions == 6 + final.full_again
    assert final.twice > 0


def test_without_sessions_each_fetch_names_all() -> None:
    none = counted(NONE, NO_LOSS)
    assert none.named == none.returned
    assert none.named / none.fetches == pytest.approx((11 + 21) / 2, rel=0.01)
    assert (none.sessions, none.cached) == (0, 0)


def test_duplicate_request_gets_records_twice_only_with_two_responses() -> None:
    assert counted(FINAL, DOUBLED).twice == 0
    assert counted(FIRST, DOUBLED).twice > 0


def test_too_few_slots_leave_fetchers_with_full_fetches() -> None:
    assert counted(FINAL, FEW_SLOTS).full_again > 2 * counted(FINAL, MUCH_LOSS).full_again


def test_retransmission_is_played_only_with_lost_responses() -> None:
    parts = parts_for([1, 2])
    assert len(parts) == 2 * (4 + 6 + 6 + 4 + 6)
    assert {each.trouble for each in parts if each.variant is FINAL_RESENDS} == {
        each for each in TROUBLES if each.lost_every
    }


@pytest.mark.parametrize("version", [17, 12, FETCH_FIRST_REVISION])
def test_cached_partition_takes_some_hundred_bytes(version: int) -> None:
    """The least of three: a cache elsewhere in the process may grow meanwhile."""
    assert 200 < min(bytes_of_a_partition(version, 300) for _ in range(3)) < 1000


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
    found = grouped(seen)
    last = table(found, COSTS)[-1]
    assert last == "| no loss | final, Fetch 17 | 200 (100 to 400) | 200 | 250 | 1.5 | 2 | 0 | 2 | 0 |"
    assert spread([1.0, 2.0, 2.0]) == "2 (1 to 2)"
    draw(found, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
