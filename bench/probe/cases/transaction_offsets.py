"""Offsets that a transaction commits: AddOffsetsToTxn, TxnOffsetCommit, and what OffsetFetch shows of them."""

from dataclasses import dataclass, field

from bench.probe.case import ANY, SHOULD, Versions, case, since_version
from bench.probe.cases.group_offsets import FETCH, commits, expect_offset, fetched, fetched_group
from bench.probe.cases.groups import NEEDS as OF_MEMBERS
from bench.probe.context import ProbeContext, Topic, single
from bench.probe.member import DESCRIBE, ProbeMember, settled
from bench.probe.transactional import (
    ADD_OFFSETS,
    COMMIT_OFFSETS,
    END,
    FENCED,
    OWNED,
    Transactional,
    needs_version_2,
    until,
)
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

KIP_98, KIP_447, KIP_890 = "KIP-98", "KIP-447", "KIP-890"
BY_OFFSET = "Apache Kafka's OffsetMetadataManager"
NEEDS: dict[int, Versions] = {
    **OWNED,
    ADD_OFFSETS: ANY,
    COMMIT_OFFSETS: (0, 4),
    END: (0, 4),
    FETCH: since_version(1),
    ApiKey.OFFSET_COMMIT: ANY,
    DESCRIBE: ANY,
    ApiKey.CREATE_TOPICS: ANY,
}
STABLE: dict[int, Versions] = {**NEEDS, FETCH: since_version(7)}
OF_GENERATIONS: dict[int, Versions] = {**OF_MEMBERS, **NEEDS, COMMIT_OFFSETS: (3, 4)}
ABORTABLE: dict[int, Versions] = {**NEEDS, COMMIT_OFFSETS: (4, 4)}
NEEDS_2: dict[int, Versions] = {**NEEDS, COMMIT_OFFSETS: since_version(5), END: since_version(5)}
BEFORE, AFTER = 3, 9


@dataclass(slots=True)
class _Worker:
    """A transactional producer, and a group whose offsets it commits."""

    at: ProbeContext
    topic: Topic = field(init=False)
    group: ProbeMember = field(init=False)
    producer: Transactional = field(init=False)

    def __post_init__(self) -> None:
        self.topic, self.group = self.at.topic(), ProbeMember(self.at, self.at.group())
        self.producer = Transactional(self.at).take()

    def add_group(self) -> None:
        code = self.producer.add_offsets(self.group.group_id)
        self.at.expect("error code of AddOffsetsToTxn", code, ErrorCode.none)

    def commit(self, offset: int = AFTER, **other: object) -> int:
        """Return the error code of TxnOffsetCommit."""
        return self.producer.commit_offset(self.group.on, self.group.group_id, self.topic, offset, **other)

    def begin(self) -> None:
        """Commit an offset in a transaction that stays open."""
        self.add_group()
        self.at.expect("error code of TxnOffsetCommit", self.commit(), ErrorCode.none)

    def ends(self, *, commits: bool) -> None:
        """End the transaction. The group's coordinator learns of it from a marker, a moment later."""
        self.producer.ends(commits=commits)

    def until_offset(self, offset: int) -> None:
        """Repeat OffsetFetch until it returns this offset, and check it."""
        until(self.at, lambda: self._unseen() == offset)
        expect_offset(self.group, self.topic, offset)

    def _unseen(self) -> int:
        request = {"groups": [{"group_id": self.group.group_id, "topics": self._named}]}
        response = self.at.call_unseen(FETCH, request, self.group.on)
        return int(single(response, "groups", "topics", "partitions").committed_offset)

    @property
    def _named(self) -> list[dict[str, object]]:
        return [{"name": self.topic.name, "partition_indexes": [0]}]

    def stable_code(self) -> int:
        """The partition's error code in an OffsetFetch that wants stable offsets."""
        result = fetched_group(self.group, [(self.topic.name, [0])], require_stable=True)
        return int(single(result, "topics", "partitions").error_code)

    def until_stable(self) -> None:
        """Wait until nothing is pending."""
        request = {"groups": [{"group_id": self.group.group_id, "topics": self._named}], "require_stable": True}

        def is_stable() -> bool:
            result = single(self.at.call_unseen(FETCH, request, self.group.on), "groups", "topics", "partitions")
            return int(result.error_code) == ErrorCode.none

        until(self.at, is_stable)


@case("transactions/group-offsets/committed", KIP_98, NEEDS, since="0.11")
def committed(at: ProbeContext) -> None:
    """An offset in a transaction is not returned before the commit, and is returned afterwards."""
    worker = _Worker(at)
    commits(worker.group, worker.topic, committed_offset=BEFORE)
    worker.begin()
    expect_offset(worker.group, worker.topic, BEFORE)
    worker.ends(commits=True)
    worker.until_offset(AFTER)


@case("transactions/group-offsets/aborted", KIP_98, STABLE, since="2.5")
def aborted(at: ProbeContext) -> None:
    """An offset of a transaction that is aborted is never returned."""
    worker = _Worker(at)
    commits(worker.group, worker.topic, committed_offset=BEFORE)
    worker.begin()
    worker.ends(commits=False)
    worker.until_stable()
    at.expect("error code", worker.stable_code(), ErrorCode.none)
    expect_offset(worker.group, worker.topic, BEFORE)


@case("transactions/group-offsets/unstable", KIP_447, STABLE, since="2.5")
def unstable(at: ProbeContext) -> None:
    """While an offset is pending, a client that requires stable offsets gets UNSTABLE_OFFSET_COMMIT."""
    worker = _Worker(at)
    worker.begin()
    at.expect("error code while it is pending", worker.stable_code(), ErrorCode.unstable_offset_commit)
    at.expect("offset for others", fetched(worker.group, worker.topic.name).committed_offset, -1)
    worker.ends(commits=True)
    worker.until_stable()
    at.expect("error code afterwards", worker.stable_code(), ErrorCode.none)
    expect_offset(worker.group, worker.topic, AFTER)


@case("transactions/group-offsets/last-counts", KIP_98, NEEDS, since="0.11")
def last_counts(at: ProbeContext) -> None:
    """Of several offsets in one transaction, the last one counts."""
    worker = _Worker(at)
    worker.begin()
    at.expect("error code of the second", worker.commit(AFTER + 1), ErrorCode.none)
    worker.ends(commits=True)
    worker.until_offset(AFTER + 1)


@case("transactions/group-offsets/plain-commit-later", BY_OFFSET, STABLE, since="4.0", level=SHOULD)
def plain_commit_later(at: ProbeContext) -> None:
    """A plain commit that came after the one in the transaction counts, also when the transaction commits later."""
    worker = _Worker(at)
    worker.begin()
    commits(worker.group, worker.topic, committed_offset=BEFORE)
    worker.ends(commits=True)
    worker.until_stable()
    at.expect("error code", worker.stable_code(), ErrorCode.none)
    expect_offset(worker.group, worker.topic, BEFORE)


@case("transactions/group-offsets/not-added", KIP_890, {**NEEDS, COMMIT_OFFSETS: (0, 3)}, since="3.6", alone=True)
def not_added(at: ProbeContext) -> None:
    """Offsets of a group that was not added to the transaction are refused with INVALID_TXN_STATE."""
    at.expect("error code", _Worker(at).commit(), ErrorCode.invalid_txn_state)


@case(
    "transactions/group-offsets/not-added-abortable",
    KIP_890,
    {**NEEDS, COMMIT_OFFSETS: (4, 4)},
    since="3.8",
    alone=True,
)
def not_added_abortable(at: ProbeContext) -> None:
    """Clients of version 4 get TRANSACTION_ABORTABLE instead."""
    at.expect("error code", _Worker(at).commit(), ErrorCode.transaction_abortable)


@case("transactions/group-offsets/added-by-itself", KIP_890, NEEDS_2, since="4.0")
def added_by_itself(at: ProbeContext) -> None:
    """From version 5 on, TxnOffsetCommit adds the group to the transaction."""
    needs_version_2(at)
    worker = _Worker(at)
    at.expect("error code", worker.commit(), ErrorCode.none)
    at.expect("offset before the commit", fetched(worker.group, worker.topic.name).committed_offset, -1)
    worker.ends(commits=True)
    worker.until_offset(AFTER)


@case("transactions/group-offsets/old-generation", KIP_447, OF_GENERATIONS, since="2.5")
def old_generation(at: ProbeContext) -> None:
    """A member with another generation than the group's is refused with ILLEGAL_GENERATION."""
    worker = _Worker(at)
    worker.group = settled(at)
    worker.add_group()
    generation, member_id = worker.group.generation, worker.group.member_id
    code = worker.commit(generation_id=generation + 1, member_id=member_id)
    at.expect("error code", code, ErrorCode.illegal_generation)
    code = worker.commit(generation_id=generation, member_id=member_id)
    at.expect("error code with the group's generation", code, ErrorCode.none)


@case("transactions/group-offsets/unknown-member", KIP_447, OF_GENERATIONS, since="2.5")
def unknown_member(at: ProbeContext) -> None:
    """A member that the group does not have is refused with UNKNOWN_MEMBER_ID."""
    worker = _Worker(at)
    worker.group = settled(at)
    worker.add_group()
    code = worker.commit(generation_id=worker.group.generation, member_id="nobody")
    at.expect("error code", code, ErrorCode.unknown_member_id)


@case("transactions/group-offsets/fenced", KIP_98, NEEDS, since="0.11")
def fenced(at: ProbeContext) -> None:
    """A producer whose ID another one took can commit no offsets."""
    worker = _Worker(at)
    worker.begin()
    worker.producer.successor()
    at.expect("error code", worker.commit(), *FENCED)


@case("transactions/group-offsets/add-other-producer-id", KIP_98, NEEDS, since="0.11")
def add_other_producer_id(at: ProbeContext) -> None:
    """AddOffsetsToTxn with a producer ID that is not that of the transactional ID: INVALID_PRODUCER_ID_MAPPING."""
    worker = _Worker(at)
    code = worker.producer.add_offsets(worker.group.group_id, producer_id=worker.producer.producer_id + 1_000_000)
    at.expect("error code", code, ErrorCode.invalid_producer_id_mapping)


@case("transactions/group-offsets/add-fenced", KIP_98, NEEDS, since="0.11")
def add_fenced(at: ProbeContext) -> None:
    """AddOffsetsToTxn of a producer whose ID another one took is fenced."""
    worker = _Worker(at)
    worker.producer.successor()
    at.expect("error code", worker.producer.add_offsets(worker.group.group_id), *FENCED)
