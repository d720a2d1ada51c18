"""State of a broker after kill and restart. The cases are played where the probe can restart it."""

from typing import Any

from bench.probe.case import ANY, SHOULD, Versions, case, since_version
from bench.probe.cases.group_offsets import COMMIT, OFFSET, commits, expect_offset
from bench.probe.cases.group_offsets import FETCH as FETCH_OFFSETS
from bench.probe.cases.groups import NEEDS as OF_GROUPS
from bench.probe.cases.idempotence import NEEDS as IDEMPOTENT
from bench.probe.cases.idempotence import expect_known, expect_taken, new_producer, send
from bench.probe.cases.offsets import (
    DELETE,
    EARLIEST,
    EPOCHS,
    LATEST,
    LIST,
    delete_records,
    end_of_epoch,
    epoch_of,
    offset_at,
)
from bench.probe.context import ProbeContext, Topic, single
from bench.probe.data import FETCH, PRODUCE, batch, fetch_one, headers, log_end, values, wanted, write
from bench.probe.member import ProbeMember, settled
from bench.probe.transactional import COMMITTED, UNCOMMITTED, Transactional, latest, read
from bench.probe.transactional import NEEDS as TRANSACTIONAL
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

METADATA, CREATE = int(ApiKey.METADATA), int(ApiKey.CREATE_TOPICS)
LIMIT_S = 90.0
"""A broker on Java takes several seconds to start, and coordinators load afterwards."""
RECORDS: dict[int, Versions] = {PRODUCE: since_version(3), FETCH: since_version(4), CREATE: ANY}
EPOCHS_OF_LEADERS: dict[int, Versions] = {
    **RECORDS,
    METADATA: since_version(7),
    EPOCHS: since_version(3),
    LIST: since_version(4),
}
BY_ID: dict[int, Versions] = {METADATA: since_version(12), CREATE: ANY}
OFFSETS: dict[int, Versions] = {
    COMMIT: since_version(2),
    FETCH_OFFSETS: since_version(1),
    ApiKey.FIND_COORDINATOR: ANY,
    CREATE: ANY,
}
DOCUMENTATION = "Apache Kafka's documentation of acks"


def _restarted(at: ProbeContext, *topics: Topic) -> None:
    at.restart()
    for topic in topics:
        at.await_leader(topic)


def _described(at: ProbeContext, topic: Topic) -> Any:
    return single(at.call(METADATA, {"topics": [{"name": topic.name}], "allow_auto_topic_creation": False}), "topics")


@case("restarts/records/kept", "KIP-98, acks=all", RECORDS, since="0.8", restarts=True, limit_s=LIMIT_S)
def records_kept(at: ProbeContext) -> None:
    """Records that were acknowledged with acks=all are there after a restart, at the same offsets."""
    topic = at.topic()
    write(at, topic, batch(b"a", b"b"), batch(b"c"))
    _restarted(at, topic)
    found = fetch_one(at, topic)
    at.expect("values", values(found), [b"a", b"b", b"c"])
    at.expect("base offsets", [header.base_offset for header in headers(found)], [0, 2])
    write(at, topic, batch(b"d"))
    at.expect("log end after one more", log_end(at, topic), 4)


@case(
    "restarts/records/deleted",
    "KIP-107",
    {**RECORDS, LIST: since_version(1), DELETE: ANY},
    since="0.11",
    level=SHOULD,
    restarts=True,
    limit_s=LIMIT_S,
)
def records_deleted(at: ProbeContext) -> None:
    """What DeleteRecords deleted stays away after a restart, also inside a batch: the log starts where it did, and the
    offsets go on. Apache Kafka keeps the start once a minute, so a killed broker shows again what was deleted since."""
    topic = at.topic()
    write(at, topic, batch(b"a", b"b"), batch(b"c", b"d"))
    result = delete_records(at, topic, 3)
    at.expect("error code of DeleteRecords", result.error_code, ErrorCode.none)
    _restarted(at, topic)
    at.expect("earliest offset", offset_at(at, topic, EARLIEST).offset, 3)
    at.expect("error code below it", fetch_one(at, topic, wanted(offset=2)).error_code, ErrorCode.offset_out_of_range)
    found = fetch_one(at, topic, wanted(offset=3))
    at.expect("error code at it", found.error_code, ErrorCode.none)
    at.expect("log start", found.log_start_offset, 3, -1)
    at.expect("the batch that is left begins below it", [header.base_offset for header in headers(found)], [2])
    write(at, topic, batch(b"e"))
    at.expect("log end after one more", offset_at(at, topic, LATEST).offset, 5)


@case("restarts/epochs/of-leader", "KIP-101, KIP-320", EPOCHS_OF_LEADERS, since="2.8", restarts=True, limit_s=LIMIT_S)
def leader_epochs(at: ProbeContext) -> None:
    """The leader epoch does not go back. OffsetForLeaderEpoch returns for the epoch of before where it ended, and
    ListOffsets the newer epoch for the log's end."""
    topic = at.topic()
    write(at, topic, batch(b"a", b"b"))
    before = epoch_of(at, topic)
    _restarted(at, topic)
    after = epoch_of(at, topic)
    at.expect("the epoch is not lower", after >= before, True)
    write(at, topic, batch(b"c"))
    result = end_of_epoch(at, topic.name, before)
    at.expect_no_error(result)
    at.expect("it returns the epoch", result.leader_epoch == before, True)
    at.expect("end offset of the epoch", result.end_offset, 2 if after > before else 3)
    at.expect("ListOffsets returns the newer epoch", offset_at(at, topic, LATEST).leader_epoch == after, True)
    found = [header.leader_epoch for header in headers(fetch_one(at, topic))]
    at.expect("the batches have their leader's epoch", found == [before, after], True)


@case(
    "restarts/epochs/below-start",
    "Apache Kafka's LeaderEpochFileCache",
    {**EPOCHS_OF_LEADERS, DELETE: ANY},
    since="2.8",
    level=SHOULD,
    restarts=True,
    limit_s=LIMIT_S,
)
def epoch_below_start(at: ProbeContext) -> None:
    """An epoch whose records were all deleted ends where the log starts."""
    topic = at.topic()
    write(at, topic, batch(b"a", b"b"))
    before = epoch_of(at, topic)
    _restarted(at, topic)
    write(at, topic, batch(b"c", b"d"))
    at.expect("error code of DeleteRecords", delete_records(at, topic, 3).error_code, ErrorCode.none)
    result = end_of_epoch(at, topic.name, before)
    at.expect_no_error(result)
    wanted = (before, 3) if epoch_of(at, topic) > before else (before, 4)
    at.expect("epoch and end offset", (int(result.leader_epoch), int(result.end_offset)) == wanted, True)


@case("restarts/topics/ids", "KIP-516", BY_ID, since="3.1", restarts=True, limit_s=LIMIT_S)
def topic_ids(at: ProbeContext) -> None:
    """A topic keeps its ID and partitions."""
    topic = at.topic(3)
    _restarted(at, topic)
    result = _described(at, topic)
    at.expect("the ID is the same", result.topic_id.bytes == topic.id, True)
    at.expect("number of partitions", len(result.partitions), 3)


@case("restarts/topics/deleted", "KIP-516", BY_ID, since="3.1", restarts=True, limit_s=LIMIT_S)
def topic_deleted(at: ProbeContext) -> None:
    """A topic that was deleted stays away, and one that was made again under its name stays empty."""
    gone, renewed = at.topic(), at.topic()
    write(at, renewed, batch(b"of the first"))
    at.delete(gone)
    at.delete(renewed)
    second = at.create(renewed.name)
    _restarted(at, second)
    at.expect("error code of the one", _described(at, gone).error_code, ErrorCode.unknown_topic_or_partition)
    at.expect("the other has its second ID", _described(at, second).topic_id.bytes == second.id, True)
    at.expect("log end of the other", log_end(at, second), 0)


@case("restarts/producers/known", "KIP-98", IDEMPOTENT, since="0.11", restarts=True, limit_s=LIMIT_S)
def producers_known(at: ProbeContext) -> None:
    """A batch that an idempotent producer sends again after a restart is not written again. The next one is taken."""
    topic, producer = at.topic(), new_producer(at)
    for sequence in range(3):
        expect_taken(at, send(at, topic, producer, sequence), sequence)
    _restarted(at, topic)
    expect_known(at, send(at, topic, producer, 2), 2)
    at.expect("log end", log_end(at, topic), 3)
    expect_taken(at, send(at, topic, producer, 3), 3)
    code = send(at, topic, producer, 5).error_code
    at.expect("error code behind a gap", code, ErrorCode.out_of_order_sequence_number)


@case("restarts/groups/offsets", "Kafka protocol guide", OFFSETS, since="0.9", restarts=True, limit_s=LIMIT_S)
def group_offsets(at: ProbeContext) -> None:
    """Committed offsets are there once the coordinator has loaded them."""
    topic, group = at.topic(), at.group()
    commits(ProbeMember(at, group), topic)
    _restarted(at, topic)
    expect_offset(ProbeMember(at, group), topic, OFFSET)


@case(
    "restarts/groups/members",
    "Apache Kafka's GroupMetadataManager",
    OF_GROUPS,
    since="0.9",
    level=SHOULD,
    restarts=True,
    limit_s=LIMIT_S,
)
def group_members(at: ProbeContext) -> None:
    """A member of a stable group goes on in its generation, with the assignment that it had."""
    before = settled(at)
    at.restart()
    after = ProbeMember(at, before.group_id, member_id=before.member_id, generation=before.generation)
    after.protocol = before.protocol
    at.expect("error code of a heartbeat", after.heartbeat(), ErrorCode.none)
    at.expect("assignment", bytes(after.sync().assignment), b"mine")


@case("restarts/transactions/open", "KIP-98", TRANSACTIONAL, since="0.11", restarts=True, limit_s=LIMIT_S)
def transaction_open(at: ProbeContext) -> None:
    """A transaction that is open at a restart stays open, and its producer can go on and commit it."""
    topic, producer = at.topic(), Transactional(at).take()
    producer.begins(topic, b"a")
    write(at, topic, batch(b"plain"))
    _restarted(at, topic)
    at.expect("committed before", values(read(at, topic, COMMITTED)), [])
    at.expect("last stable offset", latest(at, topic, COMMITTED), 0)
    producer.reconnect()
    producer.writes(topic, b"b")
    producer.commits(topic)
    at.expect("committed afterwards", values(read(at, topic, COMMITTED))[:3], [b"a", b"plain", b"b"])


@case("restarts/transactions/aborted", "KIP-98", TRANSACTIONAL, since="0.11", restarts=True, limit_s=LIMIT_S)
def transaction_aborted(at: ProbeContext) -> None:
    """Readers of committed records still get the aborted transactions."""
    topic, producer = at.topic(), Transactional(at).take()
    producer.begins(topic, b"a")
    producer.aborts(topic)
    _restarted(at, topic)
    found = read(at, topic, COMMITTED)
    aborted = [
        (int(transaction.producer_id), int(transaction.first_offset))
        for transaction in found.aborted_transactions or ()
    ]
    at.expect("the aborted transaction is returned", aborted == [(producer.producer_id, 0)], True)
    at.expect("last stable offset", latest(at, topic, COMMITTED) == latest(at, topic, UNCOMMITTED), True)


@case("restarts/transactions/ids", "KIP-98", TRANSACTIONAL, since="0.11", restarts=True, limit_s=LIMIT_S)
def transactional_ids(at: ProbeContext) -> None:
    """A transactional ID keeps its producer ID, and the next producer that takes it gets a higher epoch."""
    first = Transactional(at).take()
    at.restart()
    second = Transactional(at, first.name).take()
    at.expect("the producer ID is the same", second.producer_id == first.producer_id, True)
    at.expect("the epoch is higher", second.epoch > first.epoch, True)
