"""A transactional producer for benchmarks. It sends ``LoadProducer``'s batches in one transaction after another.

A transaction begins with the first batch that is due and takes what is due next, until it has its number of records or
its time is over. Then the producer waits until all of its batches are settled, and commits, or aborts the planned
share. Meanwhile batches become due as ever, so a slow commit shows in the response latency. A batch counts as
acknowledged once its transaction is committed. A batch that fails takes its transaction with it, which is aborted.

``TransactionManager`` of the reference broker's client decides what is sent to the coordinator and what errors mean, in
both generations of transactions (KIP-98, KIP-890). Its requests are sent one at a time while nothing else is in flight,
except AddPartitionsToTxn of the old generation.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from bench.load.producer import (
    LONGEST_WAIT_US,
    PRODUCE_VERSION,
    LoadBatch,
    LoadLink,
    LoadPartition,
    LoadPlan,
    LoadProducer,
    Settled,
    monotonic_us,
)
from reference_broker.blocking.connections import ChannelConnections, NoDraftError
from reference_broker.blocking.transport import Connection, TransportError
from reference_broker.client.api_versions import API_VERSIONS, API_VERSIONS_REQUEST, API_VERSIONS_VERSION, Announced
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.producer import Next, ProducerBatch
from reference_broker.client.transaction_manager import Outcome, State, TransactionConfig, TransactionManager
from reference_broker.client.transaction_requests import Remedy, RequestKind, remedy_of
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode, error_name

NEWEST_PRODUCE_BY_NAME: Final = 12
_CODES: Final = {error_name(int(code)): code for code in ErrorCode}
_CALL_US: Final = 5_000_000
_CHANNEL: Final = "transaction"

TransactionEnded = Callable[[bool, int, int], None]
"""Takes whether it is committed, and when its end was requested and when it was known."""


class TransactionalLoadProducer(LoadProducer):
    """A ``LoadProducer`` for a plan with a ``transaction``. ``ended`` takes each transaction's end, if it is as
    planned."""

    def __init__(
        self,
        plan: LoadPlan,
        bootstrap: Sequence[tuple[str, int]],
        settled: Callable[[Settled], None],
        ended: TransactionEnded,
    ) -> None:
        assert plan.transaction is not None, "a transactional producer without a plan of its transactions"
        super().__init__(plan, bootstrap, settled)
        self._transaction = plan.transaction
        self._ended = ended
        self._announced = Announced()
        self._manager = self._new_manager()
        self._connections = ChannelConnections(plan.process, _CALL_US, self._learn)
        self._held: list[Settled] = []  # batches of this transaction whose records are written, or never will be
        self._first_us = 0  # when the transaction's first batch was made; 0: it has none
        self._records = 0  # of this transaction
        self._number = 0  # of this transaction
        self._tried = 0  # requests without a response; nodes take turns

    @property
    def is_ready(self) -> bool:
        """Whether it has a producer ID."""
        return self._manager.state not in (State.UNINITIALIZED, State.INITIALIZING, State.FATAL_ERROR)

    def prepare(self) -> None:
        """Get a producer ID before the load begins."""
        while not self.is_ready and not self._stopping:
            self._renew()
            if not self.is_ready:
                time.sleep(LONGEST_WAIT_US / 1e6)

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._connections.close_all()

    @property
    def _is_done(self) -> bool:
        return super()._is_done and not self._first_us

    def _step(self) -> None:
        manager = self._manager
        if manager.state is State.FATAL_ERROR or manager.state is State.UNINITIALIZED:
            self._renew()
        elif manager.has_failed:
            self._drop_unsent()
        if self._first_us and (manager.has_failed or self._is_full) and self._is_settled:
            self._end_transaction()
        super()._step()

    @property
    def _is_full(self) -> bool:
        """Whether the transaction takes no further batch."""
        own = self._transaction
        is_late = bool(own.duration_us) and monotonic_us() >= self._first_us + own.duration_us
        return is_late or self._stopping or bool(own.records and self._records >= own.records)

    def _wait_us(self) -> int:
        wait_us = super()._wait_us()
        end_us = self._first_us + self._transaction.duration_us
        if self._first_us and monotonic_us() < end_us:
            # After that it waits for the responses, as long as they need.
            wait_us = min(wait_us, end_us - monotonic_us())
        return max(wait_us, 0)

    # Batches

    @property
    def _may_add_batches(self) -> bool:
        if self._stopping or self._manager.state not in (State.READY, State.IN_TRANSACTION):
            return False
        return not (self._first_us and self._is_full)

    def _may_add(self, partition: LoadPartition) -> bool:
        if self._manager.state is State.READY:
            self._begin()
        return super()._may_add(partition) and self._takes_part(partition)

    def _begin(self) -> None:
        self._manager.begin()
        identity = self._manager.identity
        if (self._state.producer_id, self._state.producer_epoch) != (identity.producer_id, identity.epoch):
            self._state.assign(identity.producer_id, identity.epoch)
        for partition in self._partitions:
            self._unpark(partition)

    def _takes_part(self, partition: LoadPartition) -> bool:
        """Add a partition to the transaction. In the old generation this takes a request."""
        if not self._manager.may_send(partition.where):
            self._manager.add(partition.where)
            self._converse(lambda: self._manager.may_send(partition.where) or self._manager.has_failed, False)
        return self._manager.may_send(partition.where)

    def _make_batch(self, partition: LoadPartition, now_us: int) -> LoadBatch:
        self._first_us = self._first_us or now_us
        self._records += self.plan.batch_records
        return super()._make_batch(partition, now_us)

    def _produce_version(self, link: LoadLink) -> int:
        address, manager = link.address, self._manager
        version = self._announced.version(address.host, address.port, ApiKey.PRODUCE, manager.adds_by_itself)
        # Older versions than this name topics, too; no broker with transactions of either generation lacks it.
        return max(PRODUCE_VERSION, min(version, NEWEST_PRODUCE_BY_NAME))

    def _apply_response(self, batch: ProducerBatch, error_code: int, base_offset: int) -> Next:
        """Give up a batch whose transaction can only be aborted.

        Outside of transactions a new producer ID for one batch helps. Here it would take the batch out of its own.
        """
        is_hopeless = remedy_of(RequestKind.PRODUCE, error_code) is not Remedy.ABORT_AND_RAISE_EPOCH
        if error_code and (is_hopeless or error_code == ErrorCode.unknown_producer_id):
            return self._state.give_up(batch)
        return super()._apply_response(batch, error_code, base_offset)

    def _report_settled(self, settled: Settled) -> None:
        """Hold a batch until its transaction has ended."""
        self._held.append(settled)
        if settled.kind != "ok":
            self._manager.batch_failed(_CODES.get(settled.error or "", ErrorCode.network_exception))

    def _drop_unsent(self) -> None:
        """Drop what waits to be sent again in a transaction that cannot be committed any more."""
        now_us = monotonic_us()
        for partition in list(self._failing.values()):
            for batch in list(partition.failed):
                self._remove_failed(partition, batch)
                self._settle_or_retry(partition, batch, self._state.give_up(batch.batch), batch.error, now_us)
                self._manager.batch_dropped()

    # The transaction's end

    def _end_transaction(self) -> str:
        """Commit, or abort. All batches are settled. Return the kind of its records (``Settled``)."""
        manager, begin_us = self._manager, monotonic_us()
        if not manager.has_failed:
            self._send_offsets()
        kind = "fail" if manager.has_failed else "aborted"
        if not manager.has_failed and not self._aborts:
            manager.commit()
            self._converse(lambda: manager.outcome is not None)
            outcome = manager.outcome or manager.outcome_if_given_up
            kind = {Outcome.OK: "ok", Outcome.UNKNOWN: "info"}.get(outcome, "fail")
        error = self._error if kind in ("fail", "info") else None
        if manager.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            manager.abort()
            self._converse(lambda: manager.outcome is not None)
        end_us = monotonic_us()
        if kind in ("ok", "aborted"):
            self._ended(kind == "ok", begin_us, end_us)
        held, self._held = self._held, []
        self._first_us = self._records = 0
        self._number += 1
        for each in held:
            self._settled(replace(each, kind=kind, error=error, end_us=end_us))
        if manager.outcome is not None:
            self._converse(lambda: manager.state is State.READY)
        if manager.state is not State.READY:
            self._renew()
        return kind

    @property
    def _aborts(self) -> bool:
        """Whether the transaction is one of the planned share that is aborted."""
        ratio = self._transaction.abort_ratio
        return int((self._number + 1) * ratio) > int(self._number * ratio)

    def _send_offsets(self) -> None:
        """Let offsets of a group take part in the transaction: none here."""

    @property
    def _error(self) -> str:
        error = self._manager.error
        return error_name(int(error.error)) if error is not None else "transaction_not_ended"

    def _renew(self) -> None:
        """Restart as a new producer with the same transactional ID, which aborts its predecessor's open transaction."""
        if self._first_us and not self._is_settled:
            self._drop_unsent()
            return
        if self._first_us:
            self._end_transaction()
            return
        self._manager = self._new_manager()
        self._manager.init()
        self._converse(lambda: self._manager.state is not State.INITIALIZING)

    def _new_manager(self) -> TransactionManager:
        config = TransactionConfig(self._transaction.transactional_id, request_timeout_us=_CALL_US)
        return TransactionManager(config, self._announced)

    # Requests to the coordinator

    def _converse(self, is_done: Callable[[], bool], is_flushed: bool = True) -> None:
        """Send what the manager has to send, until ``is_done``, or until the delivery timeout has passed."""
        deadline_us = monotonic_us() + self.plan.delivery_timeout_us
        while not is_done() and monotonic_us() < deadline_us and self._manager.state is not State.FATAL_ERROR:
            request = self._manager.next_request(monotonic_us(), is_flushed)
            if request is None:
                wake_us = self._manager.wake_at_us(is_flushed) or monotonic_us() + LONGEST_WAIT_US
                time.sleep(min(LONGEST_WAIT_US, max(0, wake_us - monotonic_us())) / 1e6)
                if self._stopping and self._manager.state is State.INITIALIZING:
                    return
                continue
            if request.to is None:
                known = [*self._metadata.nodes.values(), *self._bootstrap]
                request = replace(request, to=known[self._tried % len(known)])
            body = None
            with suppress(TransportError, NoDraftError):
                self._connections.send(_CHANNEL, request)
                (outcome,) = self._connections.receive(time.monotonic() + request.timeout_us / 1e6)
                body = outcome.body
            if body is None:
                self._tried += 1
                self._manager.failed(monotonic_us())
            else:
                self._manager.responded(monotonic_us(), body)

    def _learn(self, node: NodeAddress, versions: object) -> None:
        self._announced.learn(node.host, node.port, versions)

    def _connected(self, address: NodeAddress, connection: Connection) -> None:
        self._learn(address, connection.call(API_VERSIONS, API_VERSIONS_VERSION, API_VERSIONS_REQUEST, _CALL_US))

    def _assign(self, connection: Connection) -> None:
        """The coordinator gives the producer ID."""
