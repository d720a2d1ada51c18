"""Ordinary work without any fault. A client that fails here fails everywhere, or its adapter does."""

from crucible_kafka.clients.case import MUST, case
from crucible_kafka.clients.play import Play

DOCUMENTATION = "Kafka's documentation, Implementation"


@case("ordinary/read", MUST, DOCUMENTATION)
def read(at: Play) -> None:
    """Nothing fails: records of two partitions are read once and in order."""
    topic = at.topic(partitions=2)
    written = [*at.write(topic, 10), *at.write(topic, 10, partition=1)]
    consumer = at.consumer()
    consumer.assign(topic, 0, 1)
    at.reads(consumer, written)
    at.error("errors of the application", consumer.errors, [])


@case("ordinary/write", MUST, DOCUMENTATION, needs=("producer",))
def write(at: Play) -> None:
    """Nothing fails: records are written once and in order, and acknowledged with their offsets."""
    topic = at.topic()
    producer = at.producer()
    sent = producer.send(topic, *(f"value-{number}" for number in range(10)))
    at.writes(producer)
    offsets = [each.acknowledged.offset for each in sent if each.acknowledged]
    at.data("offsets that were acknowledged", [offset for offset in offsets if offset >= 0], sorted(range(10)))
    at.error("errors of the application", producer.errors, [])


@case("ordinary/group", MUST, DOCUMENTATION, needs=("groups",))
def group(at: Play) -> None:
    """Nothing fails: a member of a group reads, commits, and another one goes on from there."""
    topic = at.topic()
    first = at.write(topic, 5)
    member = at.consumer(group="readers")
    member.subscribe(topic)
    at.reads(member, first)
    at.data("the commit succeeds", member.commit(), True)
    member.close()
    at.data("committed offsets", at.kafka.committed("readers"), {(topic, 0): 5})
    second = at.write(topic, 5)
    other = at.consumer(group="readers")
    other.subscribe(topic)
    at.reads(other, second)


@case("ordinary/transaction", MUST, "KIP-98", needs=("transactions",))
def transaction(at: Play) -> None:
    """Nothing fails: of a committed and an aborted transaction, a reader with read_committed gets the first."""
    topic = at.topic()
    producer = at.producer(transactional_id="writer")
    producer.begin()
    producer.send(topic, "kept")
    at.data("the commit succeeds", producer.commit_transaction(), True)
    producer.begin()
    producer.send(topic, "aborted")
    producer.flush()
    at.data("the abort succeeds", producer.abort_transaction(), True)
    consumer = at.consumer(isolation="read_committed")
    consumer.assign(topic)
    at.reads(consumer, ["kept"])
    at.data(
        "committed values in the log",
        [record.value for record in at.kafka.records(topic) if record.committed],
        [b"kept"],
    )
