"""The checks of the transaction coordinator's replicated values: planted violations, and near misses."""

from typing import Any

import pytest

from chaos.checks.transaction_state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    FENCE_EPOCH,
    FIRST_VALUE,
    LAST_EPOCH,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    REMOVED,
    StateValue,
    read_value,
    wrong_step,
)
from reference_broker.transactions.transaction import Transaction, TransactionState
from reference_broker.transactions.transactions_partition import transaction_key, transaction_value

ONE, TWO = ("t", 0), ("t", 1)


def at(state: int, epoch: int = 3, *partitions: tuple[str, int], **fields: Any) -> StateValue:
    kept = {"producer_id": 7, "timeout_ms": 1000, "updated_ms": 5, "started_ms": 5, **fields}
    return StateValue(
        offset=0,
        at_us=0,
        transactional_id="x",
        epoch=epoch,
        state=state,
        partitions=frozenset(partitions),
        next_producer_id=kept.pop("next_producer_id", -1),
        client_version=kept.pop("client_version", 0),
        **kept,
    )


V2: dict[str, Any] = {"client_version": 2}

LEGAL = {
    "a new ID": (FIRST_VALUE, at(EMPTY, 0)),
    "a removed ID comes back": (at(REMOVED), at(EMPTY, 0, producer_id=9)),
    "the next epoch": (at(COMPLETE_COMMIT), at(EMPTY, 4, timeout_ms=2000)),
    "the same epoch again": (at(EMPTY), at(EMPTY)),
    "a new producer ID": (at(COMPLETE_ABORT, LAST_EPOCH), at(EMPTY, 0, producer_id=8)),
    "a new producer ID after a fence": (at(COMPLETE_ABORT, FENCE_EPOCH), at(EMPTY, 0, producer_id=8)),
    "a transaction begins": (at(EMPTY), at(ONGOING, 3, ONE, started_ms=9)),
    "it grows": (at(ONGOING, 3, ONE), at(ONGOING, 3, ONE, TWO)),
    "commit": (at(ONGOING, 3, ONE), at(PREPARE_COMMIT, 3, ONE)),
    "abort": (at(ONGOING, 3, ONE), at(PREPARE_ABORT, 3, ONE)),
    "fence": (at(ONGOING, 3, ONE), at(PREPARE_ABORT, 4, ONE)),
    "commit of version 2": (at(ONGOING, 3, ONE), at(PREPARE_COMMIT, 4, ONE, **V2)),
    "abort of nothing": (at(COMPLETE_COMMIT), at(PREPARE_ABORT, 4, started_ms=9, **V2)),
    "the epochs are used up": (
        at(ONGOING, LAST_EPOCH, ONE),
        at(PREPARE_COMMIT, FENCE_EPOCH, ONE, next_producer_id=8, **V2),
    ),
    "complete": (at(PREPARE_COMMIT, 4, ONE), at(COMPLETE_COMMIT, 4)),
    "complete with the next producer ID": (
        at(PREPARE_ABORT, FENCE_EPOCH, ONE, next_producer_id=8, **V2),
        at(COMPLETE_ABORT, 0, producer_id=8, **V2),
    ),
    "removed": (at(COMPLETE_COMMIT), at(REMOVED)),
}
WRONG = {
    "an open transaction is forgotten": (at(ONGOING, 3, ONE), at(EMPTY, 4), "X-2"),
    "an open transaction is removed": (at(ONGOING, 3, ONE), at(REMOVED), "X-2"),
    "a decision is removed": (at(PREPARE_COMMIT, 3, ONE), at(REMOVED), "X-2"),
    "a decision is reversed": (at(PREPARE_COMMIT, 3, ONE), at(PREPARE_ABORT, 3, ONE), "X-2"),
    "a decision is completed otherwise": (at(PREPARE_COMMIT, 3, ONE), at(COMPLETE_ABORT, 3), "X-2"),
    "a commit of nothing": (at(EMPTY), at(PREPARE_COMMIT, 4, **V2), "X-2"),
    "an end without a begin": (at(EMPTY), at(COMPLETE_ABORT), "X-2"),
    "a second epoch at once": (at(EMPTY), at(EMPTY, 5), "X-1"),
    "the epoch goes back": (at(EMPTY), at(EMPTY, 2), "X-1"),
    "an epoch beyond the last": (at(EMPTY, LAST_EPOCH), at(EMPTY, FENCE_EPOCH), "X-1"),
    "a new ID begins late": (FIRST_VALUE, at(EMPTY, 1), "X-1"),
    "a producer ID changes early": (at(EMPTY, LAST_EPOCH - 1), at(EMPTY, 0, producer_id=8), "X-1"),
    "a new producer ID begins late": (at(EMPTY, LAST_EPOCH), at(EMPTY, 1, producer_id=8), "X-1"),
    "partitions of another epoch": (at(EMPTY), at(ONGOING, 4, ONE), "X-1"),
    "a partition is lost": (at(ONGOING, 3, ONE, TWO), at(ONGOING, 3, TWO), "X-9"),
    "a begin of nothing": (at(EMPTY), at(ONGOING), "X-9"),
    "the start moves": (at(ONGOING, 3, ONE), at(ONGOING, 3, ONE, started_ms=6), "X-7"),
    "the start moves at the end": (at(ONGOING, 3, ONE), at(PREPARE_COMMIT, 3, ONE, started_ms=6), "X-7"),
    "the timeout changes": (at(EMPTY), at(ONGOING, 3, ONE, timeout_ms=9), "X-1"),
    "a decision lacks a partition": (at(ONGOING, 3, ONE, TWO), at(PREPARE_COMMIT, 3, ONE), "X-3"),
    "a commit raises the epoch": (at(ONGOING, 3, ONE), at(PREPARE_COMMIT, 4, ONE), "X-1"),
    "version 2 keeps the epoch": (at(ONGOING, 3, ONE), at(PREPARE_COMMIT, 3, ONE, **V2), "KIP-890"),
    "version 1 aborts nothing": (at(EMPTY), at(PREPARE_ABORT, 4), "KIP-890"),
    "a next producer ID too early": (
        at(ONGOING, 3, ONE),
        at(PREPARE_COMMIT, 4, ONE, next_producer_id=8, **V2),
        "KIP-890",
    ),
    "no next producer ID": (at(ONGOING, LAST_EPOCH, ONE), at(PREPARE_COMMIT, FENCE_EPOCH, ONE, **V2), "KIP-890"),
    "the next producer ID is not taken": (
        at(PREPARE_ABORT, FENCE_EPOCH, next_producer_id=8, **V2),
        at(COMPLETE_ABORT, FENCE_EPOCH, **V2),
        "X-1",
    ),
    "a complete transaction keeps a partition": (at(PREPARE_COMMIT, 3, ONE), at(COMPLETE_COMMIT, 3, ONE), "X-2"),
}


@pytest.mark.parametrize("what", list(LEGAL))
def test_a_step_of_kafkas_is_none_of_the_violations(what: str) -> None:
    assert wrong_step(*LEGAL[what]) == ""


@pytest.mark.parametrize("what", list(WRONG))
def test_another_step_is_a_violation_of_its_clause(what: str) -> None:
    before, value, clause = WRONG[what]
    assert clause in wrong_step(before, value)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_value_is_read_as_it_is_written(level: int) -> None:
    written = Transaction(
        "x",
        7,
        1000,
        9,
        TransactionState.PREPARE_COMMIT,
        3,
        partitions=dict.fromkeys([ONE, ("u", 5), TWO]),
        started_ms=8,
        next_producer_id=11 if level else -1,
        client_version=2 if level else 0,
    )
    found = read_value(4, transaction_key("x"), transaction_value(written, level))
    assert found is not None
    assert found._replace(at_us=0) == StateValue(
        *(4, 0, "x", 7, 3, 1000, PREPARE_COMMIT, frozenset([ONE, TWO, ("u", 5)]), 9, 8),
        *(written.next_producer_id, written.client_version),
    )


def test_a_tombstone_and_another_key_are_read() -> None:
    removed = read_value(4, transaction_key("x"), None)
    assert removed is not None
    assert (removed.transactional_id, removed.state) == ("x", REMOVED)
    assert read_value(4, b"\x00\x01\x00\x01x", b"") is None
