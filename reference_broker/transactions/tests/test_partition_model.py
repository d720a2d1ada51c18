"""Random transactions in a partition with three replicas, compared with a naive model of X-4, X-5, X-6 and X-9.

The machine plays a coordinator: it adds partitions, ends transactions, sends markers, moves to another node, and leaves
late markers behind. At each step the contents of the leader's log are read from its bytes.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from reference_broker.log.producer_state import ProducerStateEntry
from reference_broker.log.transaction_verification import VerificationGuard, VerificationStates
from reference_broker.log.unified_log import RecordsRefused, UnifiedLog
from reference_broker.records.batch import InvalidRecords, read_header
from reference_broker.records.record import Record, build
from reference_broker.replication.tests.timed_ports import START_MS
from reference_broker.transactions import markers
from reference_broker.transactions.markers import Marker, refusal_of
from reference_broker.transactions.tests.replicas import ReplayedLog, Replicas
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import AbortedTransaction

PRODUCERS = st.sampled_from([1, 2])
KEY = ("events", 0)


@dataclass
class ModelTransaction:
    """A transaction of one producer in its coordinator. ``marker``: it is prepared, and its marker is not replicated
    yet."""

    epoch: int = 0
    has_partition: bool = False
    marker: Marker | None = None


@dataclass
class Waiting:
    """A batch that the coordinator verifies. ``is_verified``: the result, once there is one."""

    producer: int
    epoch: int
    data: bytes
    guard: VerificationGuard | None
    is_verified: bool | None = None


@dataclass
class Seen:
    """The last stable offset of this leader."""

    epoch: int = 0
    offset: int = 0


@pytest.mark.clause("X-4", "X-5", "X-6", "X-9")
class PartitionBesideNaive(RuleBasedStateMachine):
    @initialize(version=st.sampled_from([1, 2]))
    def start(self, version: int) -> None:
        self.version = version
        self.replicas = Replicas()
        self.transactions = {producer: ModelTransaction() for producer in (1, 2)}
        self.coordinator_epoch = 0
        self.waiting: list[Waiting] = []
        self.sent: list[Marker] = []
        self.seen = Seen()

    # producers

    def batch(self, producer: int, epoch: int, records: int = 1) -> bytes:
        replayed = self.replicas.replayed()
        is_new = replayed.epochs.get(producer) != epoch
        values = [Record(timestamp_ms=START_MS, key=None, value=b"v" * 40)] * records
        return build(
            values,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=0 if is_new else replayed.sequences.get(producer, 0),
            is_transactional=True,
        )

    @rule(
        producer=PRODUCERS,
        back=st.sampled_from([0, 0, 0, 1]),
        records=st.integers(1, 3),
        adds=st.booleans(),
        verifies=st.booleans(),
    )
    def send(self, producer: int, back: int, records: int, adds: bool, verifies: bool) -> None:
        """``back``: a zombie of an older epoch. ``adds``: the producer adds the partition first, before version 2."""
        transaction = self.transactions[producer]
        if adds and self.version == 1 and transaction.marker is None:
            transaction.has_partition = True
        epoch = max(transaction.epoch - back, 0)
        waiting = self.begin(producer, epoch, self.batch(producer, epoch, records))
        if waiting is not None and verifies:
            self.verify(waiting)

    def begin(self, producer: int, epoch: int, data: bytes) -> Waiting | None:
        log = self.replicas.log
        known = self.replicas.replayed().epochs.get(producer, -1)
        state = log.producers.by_id.get(producer)
        try:
            guard = log.verification.begin(state, read_header(data), raises_epoch=self.version == 2, wall_ms=START_MS)
        except InvalidRecords as refused:
            guard, error = None, refused.error
        else:
            error = ErrorCode.none
        assert (error is ErrorCode.invalid_producer_epoch) is (epoch < known)
        if error:
            return None
        if guard is None:
            self.append(data, None)
            return None
        self.waiting.append(Waiting(producer, epoch, data, guard))
        return self.waiting[-1]

    def append(self, data: bytes, guard: VerificationGuard | None) -> Error:
        log, end = self.replicas.log, self.replicas.log.log_end_offset
        try:
            log.append(self.replicas.ports.now(), data, self.replicas.epoch, guard=guard)
        except RecordsRefused as refused:
            assert log.log_end_offset == end
            return refused.error
        return ErrorCode.none

    def verify(self, waiting: Waiting) -> bool:
        """Return the coordinator's result at this moment."""
        transaction = self.transactions[waiting.producer]
        is_open = transaction.marker is None and waiting.epoch == transaction.epoch
        if is_open and self.version == 2:
            transaction.has_partition = True
        waiting.is_verified = is_open and transaction.has_partition
        return waiting.is_verified

    @rule(at=st.integers(0, 3))
    def deliver(self, at: int) -> None:
        """Deliver the coordinator's response, whatever happened since, and whichever replica leads."""
        if self.waiting:
            one = self.waiting.pop(at % len(self.waiting))
            if self.verify(one) if one.is_verified is None else one.is_verified:
                self.append(one.data, one.guard)

    @rule(producer=PRODUCERS)
    def send_and_wait(self, producer: int) -> None:
        """Verify and append at once, without any step in between."""
        transaction = self.transactions[producer]
        end = self.replicas.log.log_end_offset
        one = self.begin(producer, transaction.epoch, self.batch(producer, transaction.epoch))
        if one is not None:
            self.waiting.remove(one)
            is_verified = self.verify(one)
            error = self.append(one.data, one.guard) if is_verified else ErrorCode.none
            assert error is ErrorCode.none
            assert (self.replicas.log.log_end_offset > end) is is_verified

    @rule(producer=PRODUCERS, records=st.integers(1, 2))
    def send_unverified(self, producer: int, records: int) -> None:
        """Append at a leader that verifies nothing."""
        transaction = self.transactions[producer]
        was_open = self.replicas.replayed().open.get(producer, (0, -1))[1] == transaction.epoch
        error = self.append(self.batch(producer, transaction.epoch, records), None)
        assert was_open or error

    # the coordinator

    @rule(
        producer=PRODUCERS,
        commits=st.booleans(),
        fences=st.sampled_from([False, False, True]),
        moves=st.sampled_from([False, False, True]),
        replicates=st.booleans(),
    )
    def end(self, producer: int, commits: bool, fences: bool, moves: bool, replicates: bool) -> None:
        """``fences``: the transaction exceeded its timeout, or the producer was replaced. ``moves``: to another
        coordinator, which sends the marker. A prepared transaction keeps its outcome."""
        self.coordinator_epoch += 1 if moves else 0
        transaction = self.transactions[producer]
        if transaction.marker is None:
            self.decide(producer, transaction, commits, fences)
        if transaction.marker is not None:
            self.write_marker(transaction, transaction.marker)
        if replicates:
            self.catch_up()

    def decide(self, producer: int, transaction: ModelTransaction, commits: bool, fences: bool) -> None:
        raised = transaction.epoch + (1 if fences or self.version == 2 else 0)
        if transaction.has_partition:
            transaction.marker = Marker(producer, raised, 0, commits and not fences, self.version)
        else:
            transaction.epoch = raised

    def write_marker(self, transaction: ModelTransaction, wanted: Marker) -> None:
        marker = replace(wanted, coordinator_epoch=self.coordinator_epoch)
        self.sent.append(marker)

        def written(errors: dict[tuple[str, int], Error]) -> None:
            if not errors[KEY] and transaction.marker is wanted:
                transaction.epoch, transaction.marker = wanted.producer_epoch, None
                transaction.has_partition = False

        self.write(marker, written)

    @rule(producer=PRODUCERS, commits=st.booleans(), starts_next=st.booleans())
    def cross(self, producer: int, commits: bool, starts_next: bool) -> None:
        """The coordinator's response and the end of the transaction cross, perhaps with the start of the next one."""
        before = len(self.waiting)
        self.send(producer, 0, 1, adds=True, verifies=True)
        self.end(producer, commits, fences=False, moves=False, replicates=True)
        if len(self.waiting) > before:
            if starts_next:
                self.send(producer, 0, 1, adds=False, verifies=False)
            self.deliver(before)

    @rule(at=st.integers(0, 20))
    def late_marker(self, at: int) -> None:
        """An earlier marker arrives again: from an older coordinator, or since version 2 from any."""
        if not self.sent:
            return
        marker = self.sent[at % len(self.sent)]
        is_older = marker.coordinator_epoch < self.replicas.replayed().coordinators.get(marker.producer_id, -1)
        if is_older or self.version == 2:
            self.write(marker, lambda _: None)

    def write(self, marker: Marker, written: Any) -> None:
        """X-6, and the epochs of KIP-890."""
        replayed, end = self.replicas.replayed(), self.replicas.log.log_end_offset
        known = replayed.epochs.get(marker.producer_id, -1)
        is_open = marker.producer_id in replayed.open
        expected = ErrorCode.none
        if marker.producer_epoch < known or (self.version == 2 and is_open and marker.producer_epoch == known):
            expected = ErrorCode.invalid_producer_epoch
        elif marker.coordinator_epoch < replayed.coordinators.get(marker.producer_id, -1):
            expected = ErrorCode.transaction_coordinator_fenced
        results: list[Error] = []

        def completed(errors: dict[tuple[str, int], Error]) -> None:
            results.append(errors[KEY])
            written(errors)

        self.replicas.writer.write(marker, [KEY], completed)
        if expected:
            assert results == [expected]
        assert self.replicas.log.log_end_offset == end + (0 if expected else 1)

    # the replicas

    @rule(follower=st.integers(0, 2), batches=st.integers(1, 4))
    def replicate(self, follower: int, batches: int) -> None:
        if follower != self.replicas.leader:
            self.replicas.replicate(follower, batches)

    @rule()
    def catch_up(self) -> None:
        for follower in range(3):
            self.replicate(follower, 1000)
        for follower in range(3):
            self.replicate(follower, 0)

    @rule(replica=st.integers(0, 2))
    def elect(self, replica: int) -> None:
        if self.replicas.logs[replica].log_end_offset >= self.replicas.log.high_watermark:
            self.replicas.elect(replica)

    @rule(follower=st.integers(0, 2))
    def restart(self, follower: int) -> None:
        if follower != self.replicas.leader:
            self.replicas.restart(follower)

    # invariants

    @invariant()
    def holds(self) -> None:
        replayed = self.replicas.replayed()
        self.check_stable(replayed)
        self.check_committed(replayed)
        self.check_hanging(replayed)
        self.check_replicas(replayed)

    def check_stable(self, replayed: ReplayedLog) -> None:
        """X-4"""
        log = self.replicas.log
        stable = log.last_stable_offset
        assert stable == replayed.last_stable_offset(log.high_watermark)
        if self.seen.epoch == self.replicas.epoch:
            assert stable >= self.seen.offset
        self.seen = Seen(self.replicas.epoch, stable)

    def check_committed(self, replayed: ReplayedLog) -> None:
        """X-5: a reader of committed records gets all of them and nothing else."""
        log, stable = self.replicas.log, self.seen.offset
        for offset in range(0, stable, 4):
            for end in (offset + 1, stable):
                aborted = [
                    (transaction.first_offset, transaction.producer_id)
                    for transaction in log.aborted_transactions(offset, end)
                ]
                assert aborted == replayed.aborted(offset, end)
        assert filtered(log, replayed, stable) == replayed.committed(stable)

    def check_hanging(self, replayed: ReplayedLog) -> None:
        """X-9"""
        for producer, (_, epoch) in replayed.open.items():
            transaction = self.transactions[producer]
            assert transaction.has_partition, f"producer {producer} is in a transaction that will never end"
            assert epoch == transaction.epoch

    def check_replicas(self, replayed: ReplayedLog) -> None:
        for log in self.replicas.logs:
            log.check_invariants()
            if log.log_end_offset == self.replicas.log.log_end_offset:
                state = {one: known.current_txn_first_offset for one, known in log.producers.by_id.items()}
                assert {one: first for one, first in state.items() if first >= 0} == {
                    one: first for one, (first, _) in replayed.open.items()
                }


def filtered(log: UnifiedLog, replayed: ReplayedLog, end: int) -> list[int]:
    """Return the records that a read_committed consumer keeps. It drops the batches of aborted producers, from the
    first
    offset in the response until the marker."""
    aborted = [(transaction.first_offset, transaction.producer_id) for transaction in log.aborted_transactions(0, end)]
    dropping: dict[int, None] = {}
    kept = []
    for header, _ in replayed.batches:
        if header.base_offset >= end:
            break
        while aborted and aborted[0][0] <= header.base_offset:
            dropping[aborted.pop(0)[1]] = None
        if header.is_control:
            dropping.pop(header.producer_id, None)
        elif header.producer_id not in dropping:
            kept.append(header.base_offset)
    return kept


TestPartitionBesideNaive = pytest.mark.thorough(PartitionBesideNaive.TestCase)
TestPartitionBesideNaive.settings = settings(max_examples=40, stateful_step_count=50, deadline=None, derandomize=True)


def without_fencing(marker: Marker, known: ProducerStateEntry | None) -> Error:
    return refusal_of(replace(marker, coordinator_epoch=2**31 - 1), known)


def without_raised_epochs(marker: Marker, known: ProducerStateEntry | None) -> Error:
    return refusal_of(replace(marker, transaction_version=0), known)


def any_guard(self: VerificationStates, known: Any, batch: Any, guard: VerificationGuard | None) -> None:
    """A producer that was verified once may write, even after its transaction ended."""
    if guard is None:
        honest_check(self, known, batch, guard)


def only_open_ones(log: UnifiedLog) -> int:
    return min([log.high_watermark, *log.producers.open_transactions.values()])


def only_those_that_begin_there(log: UnifiedLog, offset: int, end_offset: int) -> list[AbortedTransaction]:
    return [each for each in honest_aborted(log, offset, end_offset) if each.first_offset >= offset]


def nothing(*_: object, **__: object) -> None:
    pass


honest_check = VerificationStates.check
honest_aborted = UnifiedLog.aborted_transactions
BROKEN: tuple[tuple[object, str, object], ...] = (
    (markers, "refusal_of", without_fencing),
    (markers, "refusal_of", without_raised_epochs),
    (VerificationStates, "check", nothing),
    (VerificationStates, "check", any_guard),
    (VerificationStates, "note_written", nothing),
    (UnifiedLog, "last_stable_offset", property(only_open_ones)),
    (UnifiedLog, "aborted_transactions", only_those_that_begin_there),
)


@pytest.mark.thorough
@pytest.mark.parametrize(("owner", "name", "broken"), BROKEN)
def test_model_detects_each_defect(owner: object, name: str, broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, broken)
    found = settings(
        max_examples=1000, stateful_step_count=50, deadline=None, derandomize=True, phases=[Phase.generate]
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(PartitionBesideNaive, settings=found)
