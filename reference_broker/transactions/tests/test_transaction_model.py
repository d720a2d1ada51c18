"""Random histories of a transactional ID compared with the naive model, with coordinators that move at any time."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reference_broker.coordination.partitioner import partition_of
from reference_broker.transactions.coordinator import NO_ID_AND_EPOCH
from reference_broker.transactions.tests.transaction_model import LAST_EPOCH, Model, Pair
from reference_broker.transactions.tests.transaction_world import PARTITIONS, TransactionWorld
from reference_broker.transactions.transaction_metadata import TransactionState, TxnTransitMetadata
from reference_broker.wire.errors import Error, ErrorCode

ID = "payments"
TIMEOUT_MS = 10_000
PARTITION_INDEXES = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)
OUTCOMES = st.sampled_from(["commit", "abort"])
UNKNOWN_PRODUCER = (77, 5)
WHO = st.sampled_from(["owner", "before", "older", "none"])


def undefined_merged(error: Error) -> Error:
    """The KIPs do not define which of the two errors a producer with an earlier producer ID gets."""
    return ErrorCode.producer_fenced if error is ErrorCode.invalid_producer_id_mapping else error


class TransactionMachine(RuleBasedStateMachine):
    """Partitions 2 and 3 of ``events`` are led by another broker, whose responses arrive when the machine says so."""

    def __init__(self) -> None:
        super().__init__()
        self.world = TransactionWorld(leaders=(1, 1, 2, 2))
        self.model = Model()
        self.expected: dict[int, list[tuple[str, int, int]]] = {0: [], 1: []}
        self.index = partition_of(ID, PARTITIONS)
        self.world.coordinate(self.index)
        self.world.ids.generate(lambda _: None)  # The block of IDs is allocated.
        self.world.pass_ms(0)
        self.owners: list[Pair] = []
        self.is_modern = True
        self.missing: dict[int, None] = {}
        self.sent_to_others: dict[tuple[str, Pair], None] = {}

    @initialize(is_modern=st.booleans())
    def clients_are_of_one_generation(self, is_modern: bool) -> None:
        self.is_modern = is_modern

    def pair(self, who: str) -> Pair:
        place = {"owner": 1, "before": 2, "older": 3}.get(who, 1 << 30)
        return self.owners[-place] if place <= len(self.owners) else UNKNOWN_PRODUCER

    def add_owner(self, owner: Pair) -> None:
        """Give a producer this pair, if no other had it. No client gets a pair that only fences."""
        if owner not in self.owners:
            self.owners.append(owner)

    # steps

    @precondition(lambda self: self.model.owner is None)
    @rule()
    def an_earlier_coordinator_has_almost_used_up_the_epochs(self) -> None:
        owner = (5, LAST_EPOCH - 3)
        now_ms = self.world.now().wall_ms
        self.world.stop_leading(self.index)
        self.world.load_transaction(
            TxnTransitMetadata(ID, 5, TIMEOUT_MS, now_ms, TransactionState.COMPLETE_ABORT, owner[1], started_ms=now_ms)
        )
        self.model.assign_owner(owner)
        self.add_owner(owner)
        self.model.outcome = "abort"

    @rule(who=st.sampled_from(["none", "owner", "before", "older"]))
    def a_producer_initializes_its_id(self, who: str) -> None:
        expected = None if who == "none" else self.pair(who)
        result = self.model.init_producer_id(expected)
        ((error, owner),) = self.world.init_producer_id(ID, expected, TIMEOUT_MS)
        if isinstance(result, Error):
            assert (undefined_merged(error), owner) == (undefined_merged(result), NO_ID_AND_EPOCH)
        elif result == "abort":
            assert (error, owner) == (ErrorCode.concurrent_transactions, NO_ID_AND_EPOCH)
            self.decided("abort", self.model.owner, self.fenced())
        elif result == "again":
            assert (error, owner) == (ErrorCode.none, self.model.owner)
            self.add_owner(owner)
            self.model.outcome = self.model.ended = None
        else:
            assert error is ErrorCode.none, error
            before = self.model.owner
            if before is not None and before[1] < LAST_EPOCH:
                assert owner == (before[0], before[1] + 1)
            else:
                assert owner[1] == 0
            self.model.assign_owner(owner)
            self.add_owner(owner)
            self.model.requester = before if expected is not None and before is not None else None
            self.model.outcome = self.model.ended = None

    @rule(who=WHO, partitions=PARTITION_INDEXES)
    def a_producer_adds_partitions(self, who: str, partitions: list[int]) -> None:
        pair = self.pair(who)
        result = self.model.add_partitions(pair)
        (error,) = self.world.add_partitions(ID, pair, *partitions, version=2 if self.is_modern else 0)
        if isinstance(result, Error):
            assert undefined_merged(error) is undefined_merged(result)
        else:
            assert error is ErrorCode.none
            self.model.begin(partitions)

    @precondition(lambda self: self.is_modern)
    @rule(who=WHO, outcome=OUTCOMES)
    def a_producer_ends(self, who: str, outcome: str) -> None:
        pair = self.pair(who)
        result = self.model.end(pair, outcome)
        ((error, owner),) = self.world.end_transaction(ID, pair, commits=outcome == "commit")
        if isinstance(result, Error):
            assert (undefined_merged(error), owner) == (undefined_merged(result), NO_ID_AND_EPOCH)
        elif result == "done":
            assert (error, owner) == (ErrorCode.none, self.model.owner)
            self.add_owner(owner)
        else:
            assert error is ErrorCode.none
            assert owner[1] == 0 if pair[1] == LAST_EPOCH else owner == (pair[0], pair[1] + 1)
            self.add_owner(owner)
            self.decided(outcome, pair, owner, marked=(pair[0], pair[1] + 1))

    @precondition(lambda self: not self.is_modern)
    @rule(who=WHO, outcome=OUTCOMES)
    def an_older_producer_ends(self, who: str, outcome: str) -> None:
        pair = self.pair(who)
        result = self.model.end_as_before(pair, outcome)
        ((error, owner),) = self.world.end_transaction(ID, pair, commits=outcome == "commit", version=0)
        assert owner == NO_ID_AND_EPOCH
        if self.model.pending is not None:
            assert error is not ErrorCode.none  # No client knows which pair is valid while markers are written.
        elif isinstance(result, Error):
            assert undefined_merged(error) is undefined_merged(result)
        elif result == "done":
            assert error is ErrorCode.none
        else:
            assert error is ErrorCode.none
            self.decided(outcome, pair, None, marked=pair)

    @rule()
    def time_passes(self) -> None:
        was_open = self.model.open is not None
        self.world.pass_ms(TIMEOUT_MS + 2000)
        if was_open:
            self.decided("abort", self.model.owner, self.fenced())

    @precondition(lambda self: self.world.sent)
    @rule(error=st.sampled_from([ErrorCode.none, ErrorCode.not_leader_or_follower, ErrorCode.request_timed_out]))
    def another_broker_responds(self, error: ErrorCode) -> None:
        body = self.world.reply(error)
        if error is ErrorCode.none:
            for marker in body.markers:
                for topic in marker.topics:
                    for index in topic.partition_indexes:
                        self.missing.pop(int(index), None)
        self.settle()

    @precondition(lambda self: self.world.sent)
    @rule()
    def another_broker_is_lost(self) -> None:
        self.world.sent.pop(0)[3]()
        self.settle()

    @rule()
    def another_node_coordinates(self) -> None:
        log = self.world.stop_leading(self.index)
        self.world.sent.clear()
        self.world.boot()
        self.world.ids.generate(lambda _: None)
        self.world.coordinate(self.index, log, epoch=log.latest_epoch + 1)
        self.world.pass_ms(0)
        # What is not written cannot be requested again: last epochs and partitions that have their marker.
        self.model.requester = None
        metadata = self.world.transactions.find_metadata(ID)
        if not isinstance(metadata, Error) and metadata.partitions_without_marker:
            self.missing = dict.fromkeys(index for _, index in metadata.partitions_without_marker if index >= 2)
        self.settle()

    # outcomes

    def fenced(self) -> Pair:
        """Return the pair that no client has: the next one, or the first of a new producer ID."""
        state = self.world.transaction(ID)
        if state.next_producer_id >= 0:
            return state.next_producer_id, 0
        return state.producer_id, state.producer_epoch

    def decided(self, outcome: str, by: Pair | None, then: Pair | None, marked: Pair | None = None) -> None:
        partitions = self.model.open or {}
        assert self.model.owner is not None
        marked = marked or (self.model.owner[0], self.model.owner[1] + 1)
        self.model.decide(outcome, by, then)
        for index in partitions:
            if index < 2:
                self.expected[index].append((outcome, *marked))
        self.missing = dict.fromkeys(index for index in partitions if index >= 2)
        self.settle()

    def settle(self) -> None:
        if self.model.pending is not None and not self.missing:
            self.model.complete()

    @invariant()
    def each_partition_has_exactly_the_markers_of_its_transactions(self) -> None:
        for index, wanted in self.expected.items():
            found = list(dict.fromkeys(marker[:3] for marker in self.world.markers(index)))
            assert found == list(dict.fromkeys(wanted))

    @invariant()
    def markers_sent_to_other_brokers_match_the_outcome(self) -> None:
        for _, body, _, _ in self.world.sent:
            for marker in body.markers:
                pair = int(marker.producer_id), int(marker.producer_epoch)
                outcome = "commit" if marker.transaction_result else "abort"
                assert (("abort" if outcome == "commit" else "commit"), pair) not in self.sent_to_others
                self.sent_to_others[outcome, pair] = None

    @invariant()
    def the_coordinator_is_consistent(self) -> None:
        self.world.transactions.validate()
        if self.model.open is not None:
            state = self.world.transaction(ID)
            assert state.state is TransactionState.ONGOING
            assert sorted(index for _, index in state.partitions) == sorted(self.model.open)


TestTransactions: Any = pytest.mark.thorough(TransactionMachine.TestCase)
TestTransactions.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
