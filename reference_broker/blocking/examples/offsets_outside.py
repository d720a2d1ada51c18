"""Counts the words of a topic in SQLite, with the offsets beside the counts: each record counts exactly once.

    python -m reference_broker.blocking.examples.offsets_outside BOOTSTRAP TOPIC DATABASE [--records N] [--reset none]

Kafka's group does not store the position. With every batch of records the offsets *and* ``metadata_epoch()`` are stored
in the same transaction as the result; after a start ``wait_for_metadata_update`` waits for that epoch before ``seek``
(KIP-232, spec M-13). Without the wait the consumer might take its first metadata from a broker that missed a change of
leader, and get OFFSET_OUT_OF_RANGE from the old leader.
"""

import argparse
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from reference_broker.blocking.consumer import BlockingConsumer, ConsumerError
from reference_broker.client.consumer_partitions import RESET_POLICIES, ConsumerRecord
from reference_broker.client.group_consumer import ConsumerConfig
from reference_broker.client.leader_fetches import FetchSettings
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.errors import ErrorCode

WAIT_MS = 30_000
POLL_MS = 500
_TABLES = """
CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, count INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS offsets (
    topic TEXT, partition INTEGER, next_offset INTEGER NOT NULL, metadata_epoch INTEGER NOT NULL,
    PRIMARY KEY (topic, partition)
);
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """The position of a partition, and the epochs of the metadata that led to it."""

    offset: int
    metadata_epoch: int


class WordCounts:
    """The database: results and offsets change together or not at all. :raises sqlite3.Error:"""

    def __init__(self, file: Path) -> None:
        self._database = sqlite3.connect(file)
        self._database.executescript(_TABLES)

    def close(self) -> None:
        self._database.close()

    def stored(self, partition: TopicPartition) -> Stored:
        """Offset 0 and no epoch where nothing is stored."""
        row = self._database.execute(
            "SELECT next_offset, metadata_epoch FROM offsets WHERE topic = ? AND partition = ?", partition
        ).fetchone()
        return Stored(*row) if row is not None else Stored(0, -1)

    def add(self, records: Sequence[ConsumerRecord], metadata_epoch: int) -> None:
        """Count these, and go on behind them next time."""
        words = Counter(word for record in records for word in (record.value or b"").decode(errors="replace").split())
        after = {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}
        with self._database:
            self._database.executemany(
                "INSERT INTO words VALUES (?, ?) ON CONFLICT (word) DO UPDATE SET count = count + excluded.count",
                words.items(),
            )
            self._database.executemany(
                "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?)",
                [(*partition, offset, metadata_epoch) for partition, offset in after.items()],
            )

    def counts(self) -> dict[str, int]:
        """All of them."""
        return dict(self._database.execute("SELECT word, count FROM words ORDER BY word"))


def resume(consumer: BlockingConsumer, partitions: Iterable[TopicPartition], counts: WordCounts) -> bool:
    """Assign and seek to what is stored; False: metadata as new as that did not come within WAIT_MS."""
    stored = {partition: counts.stored(partition) for partition in partitions}
    consumer.assign(stored)
    newest = max((each.metadata_epoch for each in stored.values()), default=-1)
    if not consumer.wait_for_metadata_update(newest, WAIT_MS):
        return False
    for topic_partition, each in stored.items():
        consumer.seek(topic_partition, each.offset)
    return True


def count(bootstrap: NodeAddress, topic: str, database: Path, records: int | None, reset: str) -> dict[str, int]:
    """Count ``records`` more records, or without end if it is None.

    :raises ConsumerError: the topic does not exist, its metadata stays too old, or reading it fails.
    """
    counts = WordCounts(database)
    config = ConsumerConfig((bootstrap,), fetch=FetchSettings(reset=reset))
    try:
        with BlockingConsumer(config, "offsets-outside") as consumer:
            partitions = consumer.partitions_for(topic)
            if not partitions:
                raise ConsumerError(ErrorCode.unknown_topic_or_partition, f": {topic}")
            if not resume(consumer, partitions, counts):
                raise ConsumerError(ErrorCode.request_timed_out, ": no metadata as new as the stored offsets")
            done = 0
            while records is None or done < records:
                batch = consumer.poll(POLL_MS)
                if batch:
                    counts.add(batch, consumer.metadata_epoch())
                    done += len(batch)
        return counts.counts()
    finally:
        counts.close()


def main(words: Sequence[str]) -> int:
    """0, or 2 with one sentence where it cannot go on."""
    parser = argparse.ArgumentParser(prog="offsets_outside", description="Counts words, with offsets kept in SQLite.")
    parser.add_argument("bootstrap", help="HOST:PORT of a broker")
    parser.add_argument("topic")
    parser.add_argument("database", type=Path, help="SQLite file, made if missing")
    parser.add_argument("--records", type=int, help="end after so many")
    parser.add_argument("--reset", choices=RESET_POLICIES, default="none", help="where an offset is out of range")
    options = parser.parse_args(words)
    host, _, port = options.bootstrap.rpartition(":")
    try:
        node = NodeAddress(-1, host, int(port))
        counts = count(node, options.topic, options.database, options.records, options.reset)
    except (ConsumerError, sqlite3.Error, ValueError) as error:
        print(f"offsets_outside: {error}", file=sys.stderr)  # noqa: T201 - a command
        return 2
    for word, number in counts.items():
        print(f"{number:8} {word}")  # noqa: T201 - a command
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
