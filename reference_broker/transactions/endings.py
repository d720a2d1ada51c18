"""How transactions end: they are decided, their partitions get the markers, and they are complete.

It is told of a decision only when that is durable. From then on it goes on by itself, also on a node that takes over
(X-3): markers are sent until each partition has one, and then the completion is written until it is durable.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from reference_broker.metadata.features import transaction_version
from reference_broker.metadata.image import MetadataImage
from reference_broker.metrics.metrics import Gauge
from reference_broker.ports.node_ports import Ports, Slices, later, run_slices
from reference_broker.records.batch import NO_PRODUCER_ID
from reference_broker.transactions.markers.marker import EPOCH_RAISED_FROM, Marker
from reference_broker.transactions.markers.sending import Delivery, MarkerSender
from reference_broker.transactions.producer_ids import COME_AGAIN, ProducerIds
from reference_broker.transactions.state.states import DECIDED
from reference_broker.transactions.state.transaction import Transaction, completed, decided, fenced
from reference_broker.transactions.storage.partition import Held, TransactionsPartition
from reference_broker.wire.errors import Error

WRITE_AGAIN_US = 1_000_000
"""A completion that could not be written is written again after this time."""
RESUMED_A_SLICE = 100


@dataclass(slots=True)
class Endings:
    """``image`` returns the metadata as this node knows it. ``unwritten`` counts completions that wait to be written
    again."""

    _ports: Ports
    _image: Callable[[], MetadataImage]
    _producer_ids: ProducerIds
    _sender: MarkerSender
    _unwritten: Gauge

    def decide(
        self,
        target: TransactionsPartition,
        held: Held,
        client_version: int,
        told: Callable[[Error], None],
        *,
        commits: bool,
    ) -> None:
        """Commits or aborts for the owner. Tells once the decision is durable, or an error:
        COORDINATOR_LOAD_IN_PROGRESS while there is no producer ID for a producer whose epochs are used up, else those
        of the log."""
        next_id = self._next_id(held.current, client_version)
        if next_id is None:
            told(COME_AGAIN)
            return
        now_ms = self._ports.now().wall_ms
        step = decided(held.current, now_ms, commits=commits, client_version=client_version, next_producer_id=next_id)
        self._write(target, held, step, told)

    def fence(self, target: TransactionsPartition, held: Held, told: Callable[[Error], None]) -> None:
        """Aborts an open transaction with an epoch that no producer has. The errors are those of ``decide``."""
        version = transaction_version(self._image())
        next_id = self._next_id(held.current, version)
        if next_id is None:
            told(COME_AGAIN)
            return
        step = fenced(held.current, self._ports.now().wall_ms, version=version, next_producer_id=next_id)
        self._write(target, held, step, told)

    def _next_id(self, current: Transaction, client_version: int) -> int | None:
        """Returns -1 where no new producer ID is needed."""
        if client_version < EPOCH_RAISED_FROM or not current.is_exhausted:
            return NO_PRODUCER_ID
        return self._producer_ids.take()

    def _write(
        self, target: TransactionsPartition, held: Held, step: Transaction, told: Callable[[Error], None]
    ) -> None:
        target.write(held, step, told, lambda: self._send(target, held))

    def resume(self, target: TransactionsPartition) -> None:
        """Goes on with what the former coordinator has decided."""
        run_slices(self._ports, self._resume(target))

    def _resume(self, target: TransactionsPartition) -> Slices:
        open_ends = [each for each in target.held.values() if each.current.state in DECIDED and each.changing is None]
        for number, held in enumerate(open_ends, 1):
            if not target.is_led:
                return
            if held.current.state in DECIDED and held.changing is None:
                self._send(target, held)
            if number % RESUMED_A_SLICE == 0:
                yield

    def _send(self, target: TransactionsPartition, held: Held) -> None:
        """Only once: a transaction may be decided while what was loaded goes on. Both would complete it."""
        if held.is_sent:
            return
        held.is_sent = True
        current = held.current
        assert current.state in DECIDED, f"markers of {current.transactional_id}, which is {current.state.value}"
        self._ports.note(
            "transaction_decided",
            ("transactional_id", current.transactional_id),
            ("producer_id", current.producer_id),
            ("producer_epoch", current.producer_epoch),
            ("outcome", "commit" if DECIDED[current.state] else "abort"),
            ("partitions", len(current.partitions)),
        )
        marker = Marker(
            producer_id=current.producer_id,
            producer_epoch=current.producer_epoch,
            coordinator_epoch=target.coordinator_epoch,
            is_commit=DECIDED[current.state],
            transaction_version=current.client_version,
        )
        held.missing = dict(current.partitions)
        self._sender.deliver(
            Delivery(
                marker,
                held.missing,
                is_wanted=lambda: target.is_led and held.current is current,
                delivered=partial(self._complete, target, held),
            )
        )

    def _complete(self, target: TransactionsPartition, held: Held) -> None:
        """Every partition has its marker. What is in the log already becomes durable by itself."""
        if not target.is_led:
            return

        def told(error: Error) -> None:
            if error and target.is_led and held.changing is None:
                self._unwritten.value += 1
                later(self._ports, WRITE_AGAIN_US, write_again)

        def write_again() -> None:
            self._unwritten.value -= 1
            self._complete(target, held)

        target.write(held, completed(held.current, self._ports.now().wall_ms), told)
