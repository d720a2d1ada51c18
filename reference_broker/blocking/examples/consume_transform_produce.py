"""Writes each word of a topic to another topic in capitals, exactly once.

    python -m reference_broker.blocking.examples.consume_transform_produce BOOTSTRAP SOURCE TARGET GROUP [--records N]

What is read, what is written and where reading goes on belong to one transaction (KIP-98, KIP-447). If it is aborted,
the consumer goes back to where the transaction began. Readers of the target with ``read_committed`` see each record
once, whatever dies. Each running copy needs a transactional ID of its own (``--id``).
"""

import argparse
import sys
from collections.abc import Mapping, Sequence

from reference_broker.blocking.consumer import BlockingConsumer, ConsumerError
from reference_broker.blocking.transactional_producer import BlockingTransactionalProducer, TransactionTimeoutError
from reference_broker.client.consumer_partitions import ConsumerRecord
from reference_broker.client.group_consumer import ConsumerConfig
from reference_broker.client.group_membership import GroupConfig
from reference_broker.client.leader_fetches import FetchSettings
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.offset_commits import OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.transaction_manager import TransactionConfig
from reference_broker.client.transaction_requests import TransactionError
from reference_broker.client.transactional_producer import ProducerConfig
from reference_broker.wire.errors import ErrorCode

POLL_MS = 500


def transform(record: ConsumerRecord) -> bytes:
    """Return the record that is produced for one consumed record."""
    return (record.value or b"").upper()


def go_back(consumer: BlockingConsumer, before: Mapping[TopicPartition, OffsetToCommit]) -> None:
    """Read again what an aborted transaction had read."""
    for partition in consumer.assignment():
        if partition in before:
            consumer.seek(partition, before[partition].offset)


def work(consumer: BlockingConsumer, producer: BlockingTransactionalProducer, target: str, records: int | None) -> int:
    """Work until ``records`` records are through, or without end if it is None. Return how many were.

    :raises TransactionError: another copy with the same transactional ID has begun, or something needs a person.
    """
    partitions = producer.partitions_for(target)
    if not partitions:
        raise ConsumerError(ErrorCode.unknown_topic_or_partition, f": {target}")
    done = 0
    while records is None or done < records:
        before = consumer.positions()
        batch = consumer.poll(POLL_MS)
        if not batch:
            continue
        try:
            with producer.transaction():
                for each in batch:
                    producer.send(partitions[each.partition % len(partitions)], transform(each), each.key)
                producer.send_offsets(consumer.positions(), consumer.group_identity())
            done += len(batch)
        except TransactionError as error:
            if not error.is_abortable:
                raise
            # ``transaction`` has aborted. A partition that is new since ``before`` is placed by its committed offset.
            go_back(consumer, before)
    return done


def run(bootstrap: NodeAddress, source: str, target: str, group: str, own_id: str, records: int | None) -> int:
    """As ``work``, with a consumer and a producer of its own."""
    reading = ConsumerConfig(
        (bootstrap,), GroupConfig(group, ()), metadata_epoch=False, fetch=FetchSettings(read_committed=True)
    )
    writing = ProducerConfig((bootstrap,), TransactionConfig(own_id))
    with BlockingConsumer(reading, own_id) as consumer, BlockingTransactionalProducer(writing, own_id) as producer:
        producer.init_transactions()
        consumer.subscribe([source])
        return work(consumer, producer, target, records)


def main(words: Sequence[str]) -> int:
    """0, or 2 with one sentence where it cannot go on."""
    parser = argparse.ArgumentParser(prog="consume_transform_produce", description="Capitals, exactly once.")
    parser.add_argument("bootstrap", help="HOST:PORT of a broker")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("group")
    parser.add_argument("--id", default="capitals-0", help="the transactional ID of this copy")
    parser.add_argument("--records", type=int, help="end after so many")
    options = parser.parse_args(words)
    host, _, port = options.bootstrap.rpartition(":")
    try:
        node = NodeAddress(-1, host, int(port))
        done = run(node, options.source, options.target, options.group, options.id, options.records)
    except (ConsumerError, TransactionError, TransactionTimeoutError, ValueError) as error:
        print(f"consume_transform_produce: {error}", file=sys.stderr)  # noqa: T201 - a command
        return 2
    print(f"{done} records")  # noqa: T201 - a command
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
