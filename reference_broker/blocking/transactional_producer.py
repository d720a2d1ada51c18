"""The blocking transactional producer for applications. It drives ``client.transactional_producer`` over sockets.

    with BlockingTransactionalProducer(ProducerConfig((node,), TransactionConfig("my-id"))) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(TopicPartition("t", 0), b"value")
            producer.send_offsets(consumer.positions(), consumer.group_identity())

The ``with`` of a transaction commits at its end, and aborts after an exception. Nothing runs between the calls: what
was sent goes out in the next call, at the latest in ``commit``. One thread may use a producer.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from reference_broker.blocking.connections import ChannelConnections, NoDraftError
from reference_broker.blocking.transport import TransportError
from reference_broker.client.group_requests import MemberIdentity
from reference_broker.client.offset_commits import OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.transaction_manager import OffsetsSend, Outcome, State
from reference_broker.client.transactional_producer import Delivery, ProducerConfig, TransactionalProducer
from reference_broker.records.record import HeaderPair, Record

_IDLE_US: Final = 50_000
TIMEOUT_MS: Final = 60_000


class TransactionTimeoutError(Exception):
    """The timeout passed. ``outcome`` is what is known: FAILED if nothing was committed, else UNKNOWN. The same method
    may be called again, to go on waiting."""

    def __init__(self, waited_for: str, outcome: Outcome) -> None:
        super().__init__(f"no end of {waited_for} in time")
        self.outcome = outcome


class BlockingTransactionalProducer:
    """A transactional producer and context manager. Its methods raise ``TransactionError``: if ``is_abortable``, call
    ``abort`` and go on; otherwise this producer is of no more use. They raise ``IllegalStepError`` if they are called
    in the wrong order."""

    def __init__(
        self, config: ProducerConfig, client_id: str = "crucible-producer", connect_timeout_ms: int = 2000
    ) -> None:
        self.producer = TransactionalProducer(config)
        self._connections = ChannelConnections(
            client_id, connect_timeout_ms * 1000, learned=self.producer.learn_versions
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what an application does -------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self.producer.state

    def init_transactions(self, timeout_ms: int = TIMEOUT_MS) -> None:
        """Get a producer ID, and fence older producers with the same transactional ID. What they left open is
        aborted. Raise TransactionTimeoutError, as ``commit`` and ``abort`` do."""
        if self.state is not State.INITIALIZING:
            self.producer.init()
        self._wait(lambda: self.state is not State.INITIALIZING, timeout_ms, "the initialisation", Outcome.FAILED)
        self._raise_error()

    def begin(self, timeout_ms: int = TIMEOUT_MS) -> None:
        """Begin a transaction. Wait for a higher epoch if the one before has requested that."""
        self._wait(lambda: self.state is not State.INITIALIZING, timeout_ms, "the initialisation", Outcome.FAILED)
        self.producer.begin()

    @contextmanager
    def transaction(self, timeout_ms: int = TIMEOUT_MS) -> Iterator[Self]:
        """A transaction that commits at the end of the block. After an exception it is aborted, if that is possible,
        and the exception goes on."""
        self.begin()
        try:
            yield self
            self.commit(timeout_ms)
        except BaseException:
            if self.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
                self.abort(timeout_ms)
            raise

    def send(
        self,
        partition: TopicPartition,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[HeaderPair] = (),
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Send one record as part of the transaction. The delivery has its offset once it is written."""
        now_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        record = Record(timestamp_ms=now_ms, key=key, value=value, headers=tuple(headers))
        delivery = self.producer.send(_now_us(), partition, [record])
        self._turn(_now_us())
        return delivery

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetToCommit], identity: MemberIdentity) -> OffsetsSend:
        """Make a consumer's offsets part of the transaction: ``BlockingConsumer.positions`` and ``group_identity``.
        The consumer itself must not commit."""
        send = self.producer.send_offsets(offsets, identity)
        self._turn(_now_us())
        return send

    def flush(self, timeout_ms: int = TIMEOUT_MS) -> None:
        """Wait until everything that was sent is written."""
        self._wait(lambda: self.producer.is_flushed, timeout_ms, "the flush", Outcome.FAILED)
        self._raise_error()

    def commit(self, timeout_ms: int = TIMEOUT_MS) -> None:
        """Commit. If it raises TransactionError, ``producer.outcome`` says whether it is known to have failed."""
        if self.state is not State.COMMITTING:
            self.producer.commit()
        self._end(timeout_ms, "the commit")
        self._raise_error()

    def abort(self, timeout_ms: int = TIMEOUT_MS) -> None:
        """Aborts. Also after an error that is abortable."""
        if self.state is not State.ABORTING:
            self.producer.abort()
        self._end(timeout_ms, "the abort")
        self._raise_error()

    def partitions_for(self, topic: str, timeout_ms: int = 5000) -> list[TopicPartition]:
        """Return all partitions of a topic, or none if it does not exist within the time."""
        deadline_us = _now_us() + timeout_ms * 1000
        self.producer.look_up(topic)
        while True:
            info = self.producer.metadata.cache.topics.get(topic)
            if info is not None or _now_us() >= deadline_us:
                return (
                    [TopicPartition(topic, partition) for partition in sorted(info.partitions)]
                    if info is not None
                    else []
                )
            self._turn(deadline_us)

    def close(self) -> None:
        """Close the connections. An open transaction is aborted by the next producer with this ID, or by its
        timeout."""
        self._connections.close_all()

    # -- the loop -----------------------------------------------------------------------------------------------

    def _raise_error(self) -> None:
        error = self.producer.error
        if error is not None:
            raise error

    def _end(self, timeout_ms: int, waited_for: str) -> None:
        busy, transactions = (State.COMMITTING, State.ABORTING), self.producer.transactions
        self._wait(lambda: self.state not in busy, timeout_ms, waited_for, lambda: transactions.outcome_if_given_up)

    def _wait(
        self, is_done: Callable[[], bool], timeout_ms: int, waited_for: str, outcome: Outcome | Callable[[], Outcome]
    ) -> None:
        deadline_us = _now_us() + timeout_ms * 1000
        while not is_done():
            if _now_us() >= deadline_us:
                raise TransactionTimeoutError(waited_for, outcome if isinstance(outcome, Outcome) else outcome())
            self._turn(deadline_us)

    def _turn(self, deadline_us: int) -> None:
        """Send the requests that are due, then handle responses until the deadline."""
        for channel, request in self.producer.next_requests(_now_us()):
            try:
                self._connections.send(channel, request)
            except (TransportError, NoDraftError):
                self.producer.failed(channel, _now_us())
        wake_us = self.producer.wake_at_us
        until_us = min(deadline_us, wake_us if wake_us is not None else deadline_us, _now_us() + _IDLE_US)
        for outcome in self._connections.receive(until_us / 1e6):
            if outcome.body is None:
                self.producer.failed(outcome.channel, _now_us())
            else:
                self.producer.responded(outcome.channel, _now_us(), outcome.body)


def _now_us() -> int:
    return time.monotonic_ns() // 1000
