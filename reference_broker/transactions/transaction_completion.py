"""The end of a transaction: the decision is written, the partitions get their markers, the completion is written."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from reference_broker.metadata.features import transaction_version
from reference_broker.metadata.image import MetadataImage
from reference_broker.metrics.metrics import Gauge
from reference_broker.ports.coroutines import Wait, pause, run_coroutine
from reference_broker.ports.node_ports import Ports
from reference_broker.ports.slicing import RESUMED_TRANSACTIONS_PER_SLICE, Sliced, run_slices
from reference_broker.records.batch import NO_PRODUCER_ID
from reference_broker.transactions.marker_sender import Delivery, MarkerSender
from reference_broker.transactions.markers import EPOCH_RAISED_FROM, Marker
from reference_broker.transactions.producer_ids import NO_BLOCK, ProducerIdManager
from reference_broker.transactions.transaction import DECIDED, Transaction, completed, decided, fenced
from reference_broker.transactions.transactions_partition import TransactionEntry, TransactionsPartition
from reference_broker.wire.errors import Error

COMPLETION_RETRY_US = 1_000_000
"""The delay before a completion that could not be written is retried."""


@dataclass(slots=True)
class TransactionCompletion:
    """Ends transactions: they are decided, their partitions get the markers, and they are complete.

    A decision is final once it is replicated. From then on this node, or one that takes over, ends the transaction
    (X-3): it sends markers until each partition has one, and then writes the completion until that is replicated.
    """

    _ports: Ports
    _image: Callable[[], MetadataImage]
    _producer_ids: ProducerIdManager
    _sender: MarkerSender
    _unwritten: Gauge
    """Completions that wait for a retry."""

    def decide(
        self,
        shard: TransactionsPartition,
        entry: TransactionEntry,
        client_version: int,
        done: Callable[[Error], None],
        *,
        commits: bool,
    ) -> None:
        """Commit or abort for the owner. ``done`` is called once the decision is replicated, or with an error:
        COORDINATOR_LOAD_IN_PROGRESS while there is no producer ID for a producer whose epochs are used up, else those
        of the log."""
        next_id = self._next_id(entry.current, client_version)
        if next_id is None:
            done(NO_BLOCK)
            return
        now_ms = self._ports.now().wall_ms
        step = decided(entry.current, now_ms, commits=commits, client_version=client_version, next_producer_id=next_id)
        self._write(shard, entry, step, done)

    def fence(self, shard: TransactionsPartition, entry: TransactionEntry, done: Callable[[Error], None]) -> None:
        """Abort an open transaction with an epoch that no producer has. The errors are those of ``decide``."""
        version = transaction_version(self._image())
        next_id = self._next_id(entry.current, version)
        if next_id is None:
            done(NO_BLOCK)
            return
        step = fenced(entry.current, self._ports.now().wall_ms, version=version, next_producer_id=next_id)
        self._write(shard, entry, step, done)

    def _next_id(self, current: Transaction, client_version: int) -> int | None:
        """Return the producer ID after this transaction, -1 where no new one is needed, or None while there is none."""
        if client_version < EPOCH_RAISED_FROM or not current.is_exhausted:
            return NO_PRODUCER_ID
        return self._producer_ids.take()

    def _write(
        self, shard: TransactionsPartition, entry: TransactionEntry, step: Transaction, done: Callable[[Error], None]
    ) -> None:
        shard.write(entry, step, done, lambda: self._send(shard, entry))

    def resume(self, shard: TransactionsPartition) -> None:
        """Continue the transactions that the former coordinator has decided."""
        run_slices(self._ports, self._resume(shard))

    def _resume(self, shard: TransactionsPartition) -> Sliced[None]:
        decided_entries = [
            each for each in shard.entries.values() if each.current.state in DECIDED and each.pending is None
        ]
        for number, entry in enumerate(decided_entries, 1):
            if not shard.is_led:
                return
            if entry.current.state in DECIDED and entry.pending is None:  # Decision transaction-ending-resumed
                self._send(shard, entry)
            if number % RESUMED_TRANSACTIONS_PER_SLICE == 0:
                yield

    def _send(self, shard: TransactionsPartition, entry: TransactionEntry) -> None:
        """Send the markers, unless they are on their way: a transaction that is decided while the loaded ones are
        resumed comes here twice."""
        if entry.is_sent:
            return
        current = entry.current
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
            coordinator_epoch=shard.coordinator_epoch,
            is_commit=DECIDED[current.state],
            transaction_version=current.client_version,
        )
        self._sender.deliver(
            Delivery(
                marker,
                entry.begin_delivery(),
                is_coordinated=lambda: shard.is_led and entry.current is current,
                delivered=lambda: run_coroutine(self._complete(shard, entry)),
            )
        )

    async def _complete(self, shard: TransactionsPartition, entry: TransactionEntry) -> None:
        """Write the completion, since every partition has its marker. A completion that is in the log already is
        replicated by itself; one that is not is written again."""
        while shard.is_led:  # Decision transaction-completion-lost
            step = completed(entry.current, self._ports.now().wall_ms)
            error = await Wait[Error](partial(shard.write, entry, step))
            if not error or not shard.is_led or entry.pending is not None:  # Decision transaction-completion-failed
                return
            self._unwritten.value += 1
            await pause(self._ports, COMPLETION_RETRY_US)
            self._unwritten.value -= 1
