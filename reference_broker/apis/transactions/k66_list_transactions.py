"""ListTransactions: returns the transactional IDs that this node coordinates.

* A request may filter by states and producer IDs. A state that does not exist is returned as unknown.
* COORDINATOR_LOAD_IN_PROGRESS while a partition of ``__transaction_state`` that is led here is not loaded.

Version notes:
* v1: a request may filter by a least duration.
* v2: a request may filter IDs by a regular expression in RE2's syntax, which must match the whole ID.
  INVALID_REGULAR_EXPRESSION for what is none, or compiles to more than ``MAX_PATTERN_BYTES``.

KIPs: 664, 994, 1152.
"""

from itertools import islice
from typing import Any

import re2
from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from kio.schema.list_transactions.v2.response import ListTransactionsResponse, TransactionState
from kio.schema.types import ProducerId, TransactionalId

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, run_in_slices
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.ports.slicing import LISTED_PER_SLICE, MATCHED_TRANSACTIONS_PER_SLICE, Sliced
from reference_broker.transactions import transaction_metadata
from reference_broker.transactions.transaction_metadata import TxnTransitMetadata
from reference_broker.wire.errors import Error, ErrorCode

MAX_PATTERN_BYTES = 1 << 17  # compiled; one match against the longest ID takes at most some 25 ms
_STATES = {state.value: state for state in transaction_metadata.TransactionState}
_OPTIONS: Any = re2.Options()
_OPTIONS.log_errors, _OPTIONS.max_mem = False, MAX_PATTERN_BYTES


def handle(broker: Broker, call: Call, body: ListTransactionsRequest) -> ListTransactionsResponse | None:
    """The transactions are sent through ``call``."""
    if broker.transactions.loading():
        return _response(ErrorCode.coordinator_load_in_progress, (), [])
    unknown = tuple(name for name in dict.fromkeys(body.state_filters) if name not in _STATES)
    states = tuple(_STATES[name] for name in body.state_filters if name in _STATES)
    producer_ids = frozenset(body.producer_id_filters)
    now_ms, duration_ms = broker.now.wall_ms, int(body.duration_filter)

    try:
        pattern = re2.compile(body.transactional_id_pattern, _OPTIONS) if body.transactional_id_pattern else None
    except re2.error:
        return _response(ErrorCode.invalid_regular_expression, (), [])

    def matches(transaction: TxnTransitMetadata) -> bool:
        return (
            (not producer_ids or transaction.producer_id in producer_ids)
            and (not body.state_filters or transaction.state in states)
            and (duration_ms < 0 or now_ms - transaction.started_ms > duration_ms)
            and (pattern is None or pattern.fullmatch(transaction.transactional_id) is not None)
        )

    transactions = (each.current for shard in broker.transactions.active() for each in tuple(shard.entries.values()))

    def list_all() -> Sliced[None]:
        listed: list[TransactionState] = []
        while not call.closed:
            batch = tuple(islice(transactions, LISTED_PER_SLICE if pattern is None else MATCHED_TRANSACTIONS_PER_SLICE))
            listed += [_listed(transaction) for transaction in batch if matches(transaction)]
            if not batch:
                call.respond(_response(ErrorCode.none, unknown, listed))
                return
            yield

    run_in_slices(broker, call, list_all())
    return None


API = Api.of(ListTransactionsRequest, handle)


def _listed(transaction: TxnTransitMetadata) -> TransactionState:
    return TransactionState(
        transactional_id=TransactionalId(transaction.transactional_id),
        producer_id=ProducerId(transaction.producer_id),
        transaction_state=transaction.state.value,
    )


def _response(error: Error, unknown: tuple[str, ...], listed: list[TransactionState]) -> ListTransactionsResponse:
    return ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(error),
        unknown_state_filters=unknown,
        transaction_states=tuple(listed),
    )
