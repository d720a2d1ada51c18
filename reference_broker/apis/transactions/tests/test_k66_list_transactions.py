"""ListTransactions: filters by state, producer, duration and pattern."""

from typing import Any

import pytest

from reference_broker.apis.transactions.tests.transaction_requests import (
    ID,
    add_partitions,
    add_request,
    init_producer_id,
    list_transactions,
    transactional_world,
)
from reference_broker.ports.node_ports import Now
from reference_broker.wire.errors import ErrorCode


@pytest.mark.clause("X-12")
@pytest.mark.clause("TransactionStateManagerTest.testListTransactionsFiltering")
@pytest.mark.clause("TransactionStateManagerTest.testListTransactionsFilteringWithInvalidPattern")
def test_list_transactions_by_state_producer_and_duration() -> None:
    world = transactional_world()
    init_producer_id(world)
    add_partitions(world, add_request(0, 0, 0))

    def listed(*filters: Any, **more: Any) -> list[tuple[str, str]]:
        states = list_transactions(world, *filters, **more).transaction_states
        return [(state.transactional_id, state.transaction_state) for state in states]

    assert listed() == listed(("Ongoing",), (0, 9)) == [(ID, "Ongoing")]
    assert listed(("Empty",)) == listed(ids=(9,)) == listed(longer_ms=10_000) == []
    assert listed(("Dead",)) == []
    assert list_transactions(world, ("Dead",)).unknown_state_filters == ()
    started = world.broker.now
    world.broker.now = Now(started.mono_us, started.wall_ms + 2000)
    assert listed(longer_ms=1999) == listed(("Ongoing",), (0,), 1999, "t.") == [(ID, "Ongoing")]
    assert listed(longer_ms=2000) == listed(("Empty",), (0,), 1999) == []
    assert listed(("Ongoing", "Wrong")) == [(ID, "Ongoing")]
    assert list_transactions(world, ("Ongoing", "Wrong")).unknown_state_filters == ("Wrong",)
    assert listed(("Wrong",)) == []
    assert listed(pattern="t.") == listed(pattern="") == [(ID, "Ongoing")]
    assert listed(pattern="t") == []
    assert list_transactions(world, pattern="(").error_code is ErrorCode.invalid_regular_expression


@pytest.mark.clause("TransactionStateManagerTest.testListTransactionsWithCoordinatorLoadingInProgress")
@pytest.mark.clause("KafkaApisTest.testListTransactionsErrorResponse")
def test_list_transactions_while_loading_returns_error(monkeypatch: pytest.MonkeyPatch) -> None:
    world = transactional_world()
    init_producer_id(world)
    monkeypatch.setattr(world.broker.transactions, "loading", lambda: True)
    response = list_transactions(world)
    assert (response.error_code, response.transaction_states) == (ErrorCode.coordinator_load_in_progress, ())


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("pay.*", False),
        (f"^{ID}$", True),
        (ID, True),
        (ID[:-1], False),
        (f"x|{ID[0]}.*", True),
        ("", True),
        (None, True),
    ],
)
def test_pattern_must_match_whole_transactional_id(pattern: str | None, found: bool) -> None:
    world = transactional_world()
    init_producer_id(world)
    ids = [state.transactional_id for state in list_transactions(world, pattern=pattern).transaction_states]
    assert ids == ([ID] if found else [])


@pytest.mark.parametrize("pattern", ["(", "a**", "(?=a)", r"(a)\1", "a{9999}", "((a|b)?.?){1000}x"])
def test_invalid_or_too_large_re2_pattern_is_rejected(pattern: str) -> None:
    assert list_transactions(transactional_world(), pattern=pattern).error_code == ErrorCode.invalid_regular_expression


def test_pattern_with_exponential_backtracking_completes() -> None:
    assert list_transactions(transactional_world(), pattern="(a+)+(a+)+b").error_code == ErrorCode.none
