"""One partition of ``__transaction_state`` that this node leads: its transactional IDs, and the writing of their
steps."""

from collections.abc import Callable
from dataclasses import dataclass, field

from reference_broker.coordination.led_partitions import LedPartition
from reference_broker.coordination.log import CoordinatorLog, Written, client_error
from reference_broker.coordination.scheduling import DueTimes, Steps
from reference_broker.ports.node_ports import Ports, later
from reference_broker.transactions.markers.marker import TopicPartition
from reference_broker.transactions.state.states import DECIDED, TransactionState
from reference_broker.transactions.state.transaction import Transaction
from reference_broker.transactions.storage.codec import transaction_key, transaction_value
from reference_broker.wire.errors import Error, ErrorCode

ASK_AGAIN_US = 100_000
SPARE_BYTES = 64
"""By so much the record of a decision may be longer than that of the open transaction. A transaction whose decision
does not fit into a batch would never end."""


@dataclass(slots=True, eq=False)
class Held:
    """One transactional ID. ``current`` is what is durable. ``changing`` is the step that is being written: until it is
    durable nothing of it shows, and no other step begins (X-2). ``missing`` are the partitions of a decided transaction
    that have no marker yet. ``is_sent`` says that its markers are on their way from this node."""

    current: Transaction
    changing: Transaction | None = None
    missing: dict[TopicPartition, None] = field(default_factory=dict)
    is_sent: bool = False

    @property
    def is_changing(self) -> bool:
        """A step is being written, or markers are. Who asks for another step is told to come again."""
        return self.changing is not None or self.current.state in DECIDED


class TransactionsPartition(LedPartition):
    """``feature_level`` returns the finalized ``transaction.version``."""

    def __init__(
        self, ports: Ports, log: CoordinatorLog, steps: Steps, feature_level: Callable[[], int], expiration_ms: int
    ) -> None:
        super().__init__(log.led)
        self.held: dict[str, Held] = {}
        """All transactional IDs of the partition."""
        self.timeouts = DueTimes()
        """When to look whether a transaction is open for too long (X-7)."""
        self.expiries = DueTimes()
        """When to look whether an ID is idle for too long (X-10)."""
        self._ports = ports
        self._log = log
        self._steps = steps
        self._feature_level = feature_level
        self._expiration_ms = expiration_ms
        self._is_settled = False

    @property
    def coordinator_epoch(self) -> int:
        """What markers carry, so that those of an older coordinator are refused (X-6)."""
        return self.led.leader_epoch

    @property
    def is_settled(self) -> bool:
        """What was loaded is replicated. Before that, a coordinator that takes over could show or do what a third one
        would never hear of (X-2). Kafka does not wait."""
        self._is_settled = self._is_settled or self.led.log.high_watermark >= self.loaded_end
        return self._is_settled

    @property
    def lacks_replicas(self) -> bool:
        """So few replicas are in sync that nothing is replicated for now."""
        return self._log.lacks_replicas

    def when_settled(self, then: Callable[[], None]) -> None:
        """Calls ``then`` once what was loaded is replicated. Nothing is called if another node leads by then."""

        def asked(error: Error) -> None:
            if not self.is_led:
                return
            if error and not self.is_settled:
                later(self._ports, ASK_AGAIN_US, lambda: self.when_settled(then))
            else:
                self._is_settled = True
                self._steps.add(then)

        if self.is_led:
            self._log.when_replicated(self.loaded_end, asked)

    # --- steps ------------------------------------------------------------------------------------------------------

    def add(self, transaction: Transaction) -> Held:
        """A new transactional ID, of which nothing is written yet."""
        held = self.held[transaction.transactional_id] = Held(transaction)
        return held

    def write(self, held: Held, step: Transaction, told: Written, then: Callable[[], None] = lambda: None) -> None:
        """Writes the next step. Once it is durable it holds. Then ``told`` hears NONE, and ``then`` is called, both
        when all else of the event is done.

        ``told`` is called exactly once, with NONE or an error of CoordinatorOperationExceptionHelper. With an error the
        step may be in the log. Deliberately unlike Kafka it is not taken back then. Whoever it was written for hears of
        an error, but as soon as it is replicated it holds, and ``then`` is called. Another step that came between could
        decide the transaction twice (X-3).
        """
        assert self.is_led, f"partition {self.index} is written and lost"
        assert held.changing is None, f"{held.current.transactional_id}: two steps at once"
        step.validate()
        held.changing = step
        end_offset: int | None = None

        def taken(end: int) -> None:
            nonlocal end_offset
            end_offset = end

        def written(error: Error) -> None:
            """It may be called in the midst of a follower's fetch, which is no time to append elsewhere. So all that
            follows comes when the fetch is done."""
            if not error and self.is_led:
                self._hold(held, step)
                self._steps.add(tell)
                return
            if end_offset is None:
                self._take_back(held)
            elif self.is_led:
                self._hold_when_replicated(held, step, end_offset, then)
            self._steps.add(lambda: told(client_error(error) if error else ErrorCode.not_coordinator))

        def tell() -> None:
            told(ErrorCode.none)
            if self.is_led:
                then()

        key = transaction_key(step.transactional_id)
        value = None if step.state is TransactionState.DEAD else transaction_value(step, self._feature_level())
        spare_bytes = SPARE_BYTES if step.state is TransactionState.ONGOING else 0
        self._log.append([(key, value)], taken, written, spare_bytes=spare_bytes)

    def _hold_when_replicated(self, held: Held, step: Transaction, end_offset: int, then: Callable[[], None]) -> None:
        def asked(error: Error) -> None:
            if not self.is_led:
                return
            if error:
                later(self._ports, ASK_AGAIN_US, ask)
            else:
                self._hold(held, step)
                self._steps.add(lambda: then() if self.is_led else None)

        def ask() -> None:
            if self.is_led:
                self._log.when_replicated(end_offset, asked)

        later(self._ports, ASK_AGAIN_US, ask)

    def _hold(self, held: Held, step: Transaction) -> None:
        held.current, held.changing, held.missing, held.is_sent = step, None, {}, False
        if step.state is TransactionState.DEAD:
            del self.held[step.transactional_id]
        else:
            self.plan(step)

    def _take_back(self, held: Held) -> None:
        """Nothing was written. An ID that was never written is not there."""
        held.changing = None
        if held.current.producer_epoch < 0:
            self.held.pop(held.current.transactional_id, None)

    def plan(self, transaction: Transaction) -> None:
        """Plans when to look at the ID again."""
        if transaction.state is TransactionState.ONGOING:
            self.timeouts.schedule(transaction.transactional_id, transaction.started_ms + transaction.timeout_ms + 1)
        self.expiries.schedule(transaction.transactional_id, transaction.updated_ms + self._expiration_ms)

    def validate(self) -> None:
        for transactional_id, held in self.held.items():
            assert held.current.transactional_id == transactional_id, f"{held.current} stands under {transactional_id}"
            held.current.validate()
            if held.current.producer_epoch < 0:
                assert held.changing is not None, f"{transactional_id} was never written"
