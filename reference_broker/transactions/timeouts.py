"""Timeouts of open transactions (X-7), and expiration of idle transactional IDs (X-10)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.coordination.scheduling import DueTimes
from reference_broker.ports.node_ports import Ports, later
from reference_broker.ports.slicing import DUE_TRANSACTIONS_PER_SLICE, Sliced, SliceQueue
from reference_broker.transactions.transaction_completion import TransactionCompletion
from reference_broker.transactions.transaction_metadata import (
    EXPIRATION_ALLOWED,
    TransactionMetadata,
    TransactionState,
    TxnTransitMetadata,
    prepare_dead,
)
from reference_broker.transactions.transaction_state_manager import TransactionStateManager
from reference_broker.wire.errors import Error

_Handler = Callable[[TransactionStateManager, TransactionMetadata, int], None]


@dataclass(slots=True)
class Timeouts:
    """Aborts transactions after their timeout, which fences their producers, and expires IDs at rest. Only IDs that are
    due are checked. ``active`` returns the partitions that are led and loaded."""

    _ports: Ports
    _config: BrokerConfig
    _active: Callable[[], Sequence[TransactionStateManager]]
    _completion: TransactionCompletion
    _work: SliceQueue = field(init=False)

    def __post_init__(self) -> None:
        self._work = SliceQueue(self._ports)

    def start(self) -> None:
        """The first checks come after one interval."""
        self._schedule_timeout_check()
        self._schedule_expiry_check()

    def _schedule_timeout_check(self) -> None:
        interval_ms = self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        later(self._ports, interval_ms * 1000, self._check_timeouts)

    def _schedule_expiry_check(self) -> None:
        interval_ms = self._config.transaction_remove_expired_transaction_cleanup_interval_ms
        later(self._ports, interval_ms * 1000, self._check_expired)

    def _check_timeouts(self) -> None:
        for state_manager in self._active():
            self._check(state_manager, state_manager.timeouts, self._time_out)
        self._schedule_timeout_check()

    def _check_expired(self) -> None:
        for state_manager in self._active():
            self._check(state_manager, state_manager.expiries, self._expire)
        self._schedule_expiry_check()

    def _check(self, state_manager: TransactionStateManager, due: DueTimes, handle: _Handler) -> None:
        now_ms = self._ports.now().wall_ms
        if state_manager.is_settled and due.is_due(now_ms):
            self._work.add(self._handle_due(state_manager, due, handle, now_ms))

    def _handle_due(
        self, state_manager: TransactionStateManager, due: DueTimes, handle: _Handler, now_ms: int
    ) -> Sliced[None]:
        """Handle the due IDs. One that cannot be handled now is scheduled after ``now_ms``, for the next
        check."""
        count = 0
        while state_manager.is_led and (transactional_id := due.pop(now_ms)) is not None:
            metadata = state_manager.entries.get(transactional_id)
            if metadata is not None:
                handle(state_manager, metadata, now_ms)
            count += 1
            if count % DUE_TRANSACTIONS_PER_SLICE == 0:
                yield

    # --- open for too long --------------------------------------------------------------------------------------------

    def _time_out(self, state_manager: TransactionStateManager, metadata: TransactionMetadata, now_ms: int) -> None:
        current = metadata.current
        if current.state is not TransactionState.ONGOING:  # Decision transaction-ended-before-timeout
            return
        due_ms = current.started_ms + current.timeout_ms + 1
        if due_ms > now_ms or metadata.pending_transition_in_progress:  # Decision transaction-timed-out
            state_manager.timeouts.schedule(current.transactional_id, max(due_ms, now_ms + 1))
            return
        self._note("transaction_timed_out", current)
        respond = partial(self._aborted, state_manager, current.transactional_id, now_ms)
        self._completion.fence_and_abort(state_manager, metadata, respond)

    def _aborted(
        self, state_manager: TransactionStateManager, transactional_id: str, now_ms: int, error: Error
    ) -> None:
        if error:  # Decision transaction-timeout-abort
            state_manager.timeouts.schedule(transactional_id, now_ms + 1)

    # --- idle for too long --------------------------------------------------------------------------------------------

    def _expire(self, state_manager: TransactionStateManager, metadata: TransactionMetadata, now_ms: int) -> None:
        current = metadata.current
        due_ms = current.updated_ms + self._config.transactional_id_expiration_ms
        may_expire = current.state in EXPIRATION_ALLOWED and not metadata.pending_transition_in_progress
        if due_ms > now_ms or not may_expire:  # Decision transactional-id-expired
            state_manager.expiries.schedule(current.transactional_id, max(due_ms, now_ms + 1))
            return
        self._note("transactional_id_expired", current)
        tombstone = state_manager.append_transaction_to_log(metadata, prepare_dead(current, now_ms))
        tombstone.error.add_done_callback(partial(self._expired, state_manager, current.transactional_id, now_ms))

    def _expired(
        self, state_manager: TransactionStateManager, transactional_id: str, now_ms: int, error: Error
    ) -> None:
        if error:
            state_manager.expiries.schedule(transactional_id, now_ms + 1)

    def _note(self, what: str, current: TxnTransitMetadata) -> None:
        self._ports.note(
            what,
            ("transactional_id", current.transactional_id),
            ("producer_id", current.producer_id),
            ("producer_epoch", current.producer_epoch),
        )
