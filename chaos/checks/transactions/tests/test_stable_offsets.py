"""The last stable offset of logs, and the aborted transactions that responses list."""

import pytest

from chaos.checks.log import producer_view
from chaos.checks.log.tests.checked_log import written


@pytest.fixture(autouse=True)
def read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_view, "SKIPPED_CHANGES", 1)


@pytest.mark.parametrize(("high_watermark", "stable"), [(7, 7), (9, 7), (10, 7), (11, 11), (12, 11)])
def test_last_stable_offset_is_that_of_the_batches(high_watermark: int, stable: int) -> None:
    world = written()
    world.commit(high_watermark)
    assert (world.looked(), world.log.last_stable_offset) == ([], stable)


def test_last_stable_offset_beyond_a_marker_that_is_not_replicated_is_a_violation() -> None:
    world = written()
    world.log.producers.completed.clear()
    world.commit(10)
    assert world.looked() == ["lso-regression"]


def test_last_stable_offset_that_lags_is_a_violation_where_the_log_is_whole() -> None:
    world = written()
    world.log.producers.completed_from = 12
    world.commit(11)
    assert world.looked() == ["lso-regression"]


@pytest.mark.parametrize(
    ("aborted", "end", "stable", "broken"),
    [
        ([(5, 7)], 11, 11, []),
        ([], 11, 11, ["aborted-read"]),
        ([(5, 7), (6, 8)], 11, 11, ["aborted-read"]),
        ([], 7, 11, []),
        ([(5, 7)], 12, 12, ["aborted-read"]),
        ([(5, 7)], 12, 11, ["aborted-read"]),
    ],
)
def test_response_lists_exactly_the_aborted_transactions_among_its_records(
    aborted: list[tuple[int, int]], end: int, stable: int, broken: list[str]
) -> None:
    world = written()
    world.commit()
    assert world.sends(*aborted, end=end, stable=stable) == broken
