"""What happens to transactional IDs of which nothing is heard: open transactions are aborted and their producers fenced
after their timeout (X-7), and IDs at rest are forgotten (X-10)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.coordination.scheduling import DueTimes, SliceQueue
from reference_broker.ports.node_ports import Ports, Slices, later
from reference_broker.transactions.endings import Endings
from reference_broker.transactions.state.states import EXPIRING, TransactionState
from reference_broker.transactions.state.transaction import Transaction, dead
from reference_broker.transactions.storage.partition import Held, TransactionsPartition
from reference_broker.wire.errors import Error

LOOKS_A_SLICE = 20
"""How many IDs are looked at in one event. Each may take a record, which costs some 100 us."""

_Look = Callable[[TransactionsPartition, Held, int], None]


@dataclass(slots=True)
class IdleTransactions:
    """Looks at the IDs that are due, and at no others. ``active`` returns the partitions that are led and loaded."""

    _ports: Ports
    _config: BrokerConfig
    _active: Callable[[], Sequence[TransactionsPartition]]
    _endings: Endings
    _work: SliceQueue = field(init=False)

    def __post_init__(self) -> None:
        self._work = SliceQueue(self._ports)

    def start(self) -> None:
        """The first looks come after one interval."""
        self._look_for_timeouts_later()
        self._look_for_expired_later()

    def _look_for_timeouts_later(self) -> None:
        interval_ms = self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        later(self._ports, interval_ms * 1000, self._look_for_timeouts)

    def _look_for_expired_later(self) -> None:
        interval_ms = self._config.transaction_remove_expired_transaction_cleanup_interval_ms
        later(self._ports, interval_ms * 1000, self._look_for_expired)

    def _look_for_timeouts(self) -> None:
        for target in self._active():
            self._look(target, target.timeouts, self._time_out)
        self._look_for_timeouts_later()

    def _look_for_expired(self) -> None:
        for target in self._active():
            self._look(target, target.expiries, self._expire)
        self._look_for_expired_later()

    def _look(self, target: TransactionsPartition, due: DueTimes, look: _Look) -> None:
        now_ms = self._ports.now().wall_ms
        if target.is_settled and due.is_due(now_ms):
            self._work.add(self._look_at_due(target, due, look, now_ms))

    def _look_at_due(self, target: TransactionsPartition, due: DueTimes, look: _Look, now_ms: int) -> Slices:
        """What is not done now is planned for the time after ``now_ms``, so that it comes with the next look."""
        count = 0
        while target.is_led and (transactional_id := due.due(now_ms)) is not None:
            held = target.held.get(transactional_id)
            if held is not None:
                look(target, held, now_ms)
            count += 1
            if count % LOOKS_A_SLICE == 0:
                yield

    # --- open for too long ------------------------------------------------------------------------------------------

    def _time_out(self, target: TransactionsPartition, held: Held, now_ms: int) -> None:
        current = held.current
        if current.state is not TransactionState.ONGOING:
            return
        due_ms = current.started_ms + current.timeout_ms + 1
        if due_ms > now_ms or held.is_changing:
            target.timeouts.schedule(current.transactional_id, max(due_ms, now_ms + 1))
            return
        self._note("transaction_timed_out", current)
        self._endings.fence(target, held, partial(self._fenced, target, current.transactional_id, now_ms))

    def _fenced(self, target: TransactionsPartition, transactional_id: str, now_ms: int, error: Error) -> None:
        if error:
            target.timeouts.schedule(transactional_id, now_ms + 1)

    # --- idle for too long ------------------------------------------------------------------------------------------

    def _expire(self, target: TransactionsPartition, held: Held, now_ms: int) -> None:
        current = held.current
        due_ms = current.updated_ms + self._config.transactional_id_expiration_ms
        if due_ms > now_ms or held.is_changing or current.state not in EXPIRING:
            target.expiries.schedule(current.transactional_id, max(due_ms, now_ms + 1))
            return
        self._note("transactional_id_expired", current)
        target.write(held, dead(current, now_ms), partial(self._expired, target, current.transactional_id, now_ms))

    def _expired(self, target: TransactionsPartition, transactional_id: str, now_ms: int, error: Error) -> None:
        if error:
            target.expiries.schedule(transactional_id, now_ms + 1)

    def _note(self, what: str, current: Transaction) -> None:
        self._ports.note(
            what,
            ("transactional_id", current.transactional_id),
            ("producer_id", current.producer_id),
            ("producer_epoch", current.producer_epoch),
        )
