"""A compacted partition with transactions: aborted records go, markers stay for a while, and the last batch of each
producer stays, too."""

import pytest

from chaos.checks.log.tests.compacted_logs import CompactedLog, keyed
from chaos.checks.replication.tests.replicated import KEY, SECOND_US, Cluster
from reference_broker.records.record import Record, build

ABORT, COMMIT = 0, 1


def sent(offset: int, key: bytes, producer_id: int, sequence: int, value: bytes | None = b"v") -> bytes:
    record = [Record(timestamp_ms=0, key=key, value=value)]
    made = build(
        record,
        leader_epoch=0,
        producer_id=producer_id,
        producer_epoch=1,
        base_sequence=sequence,
        is_transactional=True,
    )
    return offset.to_bytes(8, "big") + bytes(made)[8:]


def marker(offset: int, producer_id: int, kind: int, producer_epoch: int = 1) -> bytes:
    record = [Record(timestamp_ms=0, key=bytes((0, 0, 0, kind)), value=bytes(6))]
    made = build(
        record,
        leader_epoch=0,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_control=True,
        is_transactional=True,
    )
    return offset.to_bytes(8, "big") + bytes(made)[8:]


def world(*batches: bytes) -> Cluster:
    """All are committed everywhere, and the last one is in the active segment."""
    made = Cluster()
    made.logs = [CompactedLog() for _ in range(3)]
    made.append(*batches)
    for log in made.logs:
        log.bases = [0, len(batches) - 1]
    made.commit(len(batches))
    return made


def decided() -> Cluster:
    """Key a is written, and again in transactions of two producers: 7 aborts, 8 commits. Then each writes key b or c,
    and commits."""
    return world(
        keyed(0, b"a"),
        sent(1, b"a", 7, 0),
        sent(2, b"a", 8, 0),
        marker(3, 7, ABORT),
        marker(4, 8, COMMIT),
        sent(5, b"b", 7, 1),
        sent(6, b"c", 8, 1),
        marker(7, 7, COMMIT),
        marker(8, 8, COMMIT),
        keyed(9, b"d"),
    )


def after_cleaning(cluster: Cluster, *gone: int, node: int = 1) -> list[str]:
    """Violations reported of a replica that was cleaned and lacks these batches."""
    log = cluster.logs[node]
    assert isinstance(log, CompactedLog)
    log.clean(*gone)
    cluster.observe(node)
    return [
        violation.explanation.partition(f"node {node} ")[2]
        for check in cluster.checks
        for violation in check.violations
    ]


def test_aborted_and_superseded_records_go_and_their_markers_stay() -> None:
    cluster = decided()
    assert after_cleaning(cluster, 0, 1) == []
    assert cluster.broken() == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("gone", "explanation"),
    [
        ((0,), "is cleaned up to 9, and has offset 1, which was aborted"),
        ((0, 1, 2), "lacks the record at offset 2, which is the newest of its key; cleaners may work below 9"),
        ((1,), "is cleaned up to 9, and has offset 0, which 2 supersedes"),
        ((0, 1, 3), "lacks the marker at offset 3, which stays for delete.retention.ms"),
        ((0, 1, 5), "lacks the record at offset 5, which is the newest of its key; cleaners may work below 9"),
    ],
)
def test_wrongly_cleaned_replica_with_transactions_is_a_violation(gone: tuple[int, ...], explanation: str) -> None:
    assert after_cleaning(decided(), *gone) == [explanation]


def test_marker_goes_when_its_time_is_over_and_its_batches_are_gone() -> None:
    cluster = decided()
    cluster.now_us += 2 * SECOND_US
    assert after_cleaning(cluster, 0, 1, 3) == []


def test_marker_stays_while_a_batch_of_its_transaction_is_there() -> None:
    cluster = decided()
    cluster.now_us += 2 * SECOND_US
    assert after_cleaning(cluster, 0, 1, 3, 4) == [
        "lacks the marker at offset 4, although the batch at 2 of its transaction is left"
    ]


def test_last_batch_of_a_producer_stays() -> None:
    """The record of the last batch is superseded, and the batch has the producer's last sequence."""
    batches = (keyed(0, b"x"), sent(1, b"a", 7, 0), marker(2, 7, COMMIT), keyed(3, b"a"), keyed(4, b"d"))
    assert after_cleaning(world(*batches), 1) == ["lacks the batch that ends at offset 1, the last one of producer 7"]


def test_marker_with_a_new_epoch_stays_in_place_of_the_last_batch() -> None:
    batches = (keyed(0, b"x"), sent(1, b"a", 7, 0), marker(2, 7, ABORT, 2), keyed(3, b"a"), keyed(4, b"d"))
    assert after_cleaning(world(*batches), 1) == []
    late = world(*batches)
    late.now_us += 2 * SECOND_US
    assert after_cleaning(late, 1, 2) == ["lacks the batch that ends at offset 2, the last one of producer 7"]


def test_nothing_is_cleaned_above_an_open_transaction() -> None:
    cluster = world(keyed(0, b"a"), sent(1, b"a", 7, 0), keyed(2, b"b"), keyed(3, b"d"))
    explanations = after_cleaning(cluster)
    assert explanations == ["was cleaned up to 3, and a transaction is open from offset 1"]
    partition = cluster.view.partitions[KEY]
    assert partition.compacted is not None
    assert partition.compacted.cleanable_end == 1


def test_open_record_supersedes_nothing() -> None:
    cluster = world(keyed(0, b"a"), sent(1, b"a", 7, 0), keyed(2, b"b"), keyed(3, b"d"))
    log = cluster.logs[1]
    assert isinstance(log, CompactedLog)
    log.gone = {0: None}
    cluster.restart(1)
    cluster.logs[1] = CompactedLog(held=log.held, gone={0: None}, high_watermark=4, bases=[0, 3])
    cluster.observe(1)
    assert cluster.broken() == ["replicas-equal"]


def test_commit_marker_in_place_of_an_abort_marker_is_a_violation() -> None:
    cluster = decided()
    cluster.restart(1)
    cluster.logs[1].held[3] = marker(3, 7, COMMIT)
    cluster.observe(1)
    assert cluster.broken() == ["replicas-equal"]
