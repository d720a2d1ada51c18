"""Brokers with one wrong habit each, in what they tell of transactions and ask of their producers. See
``wrong_habits``."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Mapping
from typing import Any

from chaos.mutants.changing import ANSWERS, REQUESTS, Change, answered, asked, fixed
from chaos.mutants.mutant import Function, mutant
from reference_broker.transactions.state.judging import Ending
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import AbortedTransaction

OF_TRANSACTIONS = frozenset(
    (
        *(ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN),
        *(ApiKey.TXN_OFFSET_COMMIT, ApiKey.WRITE_TXN_MARKERS, ApiKey.PRODUCE),
        *(ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_PRODUCERS),
    )
)
ON_THE_WAY = frozenset(
    (
        *(ErrorCode.coordinator_not_available, ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress),
        *(ErrorCode.concurrent_transactions, ErrorCode.not_enough_replicas),
    )
)
"""Errors that each producer meets. It asks again."""
OF_READERS = (ApiKey.FETCH, ApiKey.LIST_OFFSETS)


# Answers


@mutant(ANSWERS)
def transaction_errors_hidden(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """No answer about transactions tells an error, apart from those after which a producer asks again."""

    def hide(name: str, value: Any) -> Any:
        if name not in ("error_code", "partition_error_code") or value in ON_THE_WAY:
            return value
        return ErrorCode.none

    change: Change = hide if api_key in OF_TRANSACTIONS else lambda _, same: same
    return answered(original, api_key, version, correlation_id, body, change)


@mutant(ANSWERS)
def owners_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """InitProducerId tells everyone the same producer ID and epoch."""
    change = fixed(producer_id=7, producer_epoch=5) if api_key == ApiKey.INIT_PRODUCER_ID else lambda _, same: same
    return answered(original, api_key, version, correlation_id, body, change)


@mutant(ANSWERS)
def added_told_by_halves(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """AddPartitionsToTxn tells the errors of the first topic only."""

    def halve(name: str, value: Any) -> Any:
        return value[:1] if name == "topic_results" else value

    change: Change = halve if api_key == ApiKey.ADD_PARTITIONS_TO_TXN else lambda _, same: same
    return answered(original, api_key, version, correlation_id, body, change)


@mutant(ANSWERS)
def raised_epochs_untold(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """EndTxn tells the epoch in which the transaction was."""

    def lower(name: str, value: Any) -> Any:
        return type(value)(value - 1) if name == "producer_epoch" and value > 0 else value

    change: Change = lower if api_key == ApiKey.END_TXN else lambda _, same: same
    return answered(original, api_key, version, correlation_id, body, change)


@mutant(ANSWERS)
def aborts_told_everywhere(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Each partition that is fetched is told with an aborted transaction."""
    change: Change = fixed(aborted_transactions=[AbortedTransaction(0, 0)])
    return answered(
        original, api_key, version, correlation_id, body, change if api_key == ApiKey.FETCH else lambda _, same: same
    )


@mutant(ANSWERS)
def transactions_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Each transaction is told to be Dead, and each producer with a transaction that no coordinator knows."""
    dead = fixed(transaction_state="Dead")
    strange = fixed(current_txn_start_offset=7, coordinator_epoch=-1)
    of_states = api_key in (ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS)
    change: Change = dead if of_states else strange if api_key == ApiKey.DESCRIBE_PRODUCERS else lambda _, same: same
    return answered(original, api_key, version, correlation_id, body, change)


# Requests


@mutant(REQUESTS)
def isolation_ignored(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """Every reader sees all records."""
    body = original(api_key, version, frame, offset)
    return asked(body, api_key, api_key if api_key in OF_READERS else -1, fixed(isolation_level=0))


@mutant(REQUESTS)
def isolation_for_all(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """Every reader sees committed records only."""
    body = original(api_key, version, frame, offset)
    return asked(body, api_key, api_key if api_key in OF_READERS else -1, fixed(isolation_level=1))


@mutant(REQUESTS)
def outcomes_swapped(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """A commit aborts, and an abort commits."""

    def swap(name: str, value: Any) -> Any:
        return not value if name == "committed" else value

    return asked(original(api_key, version, frame, offset), api_key, ApiKey.END_TXN, swap)


@mutant(REQUESTS)
def verify_only_ignored(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """Whoever asks whether a partition belongs to a transaction has added it."""
    body = original(api_key, version, frame, offset)
    return asked(body, api_key, ApiKey.ADD_PARTITIONS_TO_TXN, fixed(verify_only=False))


@mutant(REQUESTS)
def transaction_filters_ignored(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """ListTransactions lists all transactions, whatever is asked for."""
    none = fixed(state_filters=(), producer_id_filters=(), duration_filter=-1, transactional_id_pattern=None)
    return asked(original(api_key, version, frame, offset), api_key, ApiKey.LIST_TRANSACTIONS, none)


@mutant(REQUESTS)
def stability_ignored(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """OffsetFetch tells the offset before the pending one to those who require stable offsets."""
    body = original(api_key, version, frame, offset)
    return asked(body, api_key, ApiKey.OFFSET_FETCH, fixed(require_stable=False))


# The coordinator, and the leaders that ask it


@mutant("reference_broker.transactions.state.judging:judge_end")
def retried_ends_refused(
    original: Function, current: Any, owner: Any, *, commits: bool, client_version: int, is_changing: bool
) -> Any:
    """An end that comes again is refused, as if its producer had lost the thread."""
    verdict = original(current, owner, commits=commits, client_version=client_version, is_changing=is_changing)
    return ErrorCode.invalid_txn_state if verdict is Ending.NOTHING else verdict


@mutant("reference_broker.transactions.verification.verifier:Verifier.ask")
def coordinator_never_asked(original: Function, self: Any, question: Any, told: Any) -> None:
    """A leader takes batches and offsets of transactions without a word to the coordinator."""
    told({})


PLAYED: Mapping[str, tuple[str, ...]] = {
    "transaction_errors_hidden": ("transactions",),
    "owners_garbled": ("transactions/init",),
    "added_told_by_halves": ("transactions/add",),
    "raised_epochs_untold": ("transactions/end",),
    "aborts_told_everywhere": ("transactions/fetch", "transactions/end", "transactions/timeout"),
    "transactions_garbled": ("transactions/describe", "transactions/list", "transactions/producers"),
    "isolation_ignored": ("transactions/init", "transactions/fetch", "transactions/offsets"),
    "isolation_for_all": ("transactions/fetch", "transactions/offsets"),
    "outcomes_swapped": ("transactions/markers", "transactions/fetch", "transactions/group-offsets"),
    "verify_only_ignored": ("transactions/add",),
    "transaction_filters_ignored": ("transactions/list",),
    "stability_ignored": ("transactions/group-offsets",),
    "retried_ends_refused": ("transactions/end",),
    "coordinator_never_asked": ("transactions/produce", "transactions/group-offsets"),
    "offsets_visible_before_commit": ("transactions/group-offsets",),
    "offsets_kept_after_abort": ("transactions/group-offsets",),
    "transactional_generation_not_checked": ("transactions/group-offsets",),
}
"""As the table of ``wrong_habits``."""
