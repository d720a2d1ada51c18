"""One client that reads, writes what it has read, and commits both in transactions: librdkafka with its defaults."""

import time

import confluent_kafka

from bench.peers.node import PeerError

TRANSFORM_LIMIT_S = 60.0


def transformed_s(bootstrap: str, source: str, target: str, own_id: str, records: int, at_once: int) -> float:
    """Returns the seconds from the first record to the last commit. Each transaction has ``at_once`` records at most,
    and the place in partition 0 of ``source`` where reading goes on. Raises PeerError."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": own_id,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": own_id})
    where = [confluent_kafka.TopicPartition(source, 0, 0)]
    try:
        producer.init_transactions(TRANSFORM_LIMIT_S)
        consumer.assign(where)
        done, began = 0, 0.0
        while done < records:
            messages = consumer.consume(min(at_once, records - done), timeout=TRANSFORM_LIMIT_S if not done else 1.0)
            if not messages or any(each.error() for each in messages):
                raise PeerError(f"librdkafka read nothing more: {[each.error() for each in messages][:1]}")
            began = began or time.perf_counter()
            producer.begin_transaction()
            for each in messages:
                producer.produce(target, each.value())
            producer.send_offsets_to_transaction(consumer.position(where), consumer.consumer_group_metadata(), TRANSFORM_LIMIT_S)
            producer.commit_transaction(TRANSFORM_LIMIT_S)
            done += len(messages)
        return time.perf_counter() - began
    except confluent_kafka.KafkaException as failure:
        raise PeerError(f"librdkafka could not go on: {failure}") from failure
    finally:
        consumer.close()
