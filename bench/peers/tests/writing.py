"""A writer that goes on through kills, for tests of readers."""

import threading
import time

import confluent_kafka

from bench.peers.tests.nodes import LIMIT_S

PAUSE_S = 0.002


class BackgroundWriter(threading.Thread):
    """librdkafka, idempotent, acks=all: numbers to all partitions in turn, without end until stopped."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged = 0
        self.failures: list[str] = []
        self._topic, self._partitions = topic, partitions
        self._ends = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        sent = 0
        while not self._ends.is_set():
            self._producer.produce(
                self._topic, str(sent).encode(), partition=sent % self._partitions, on_delivery=self._delivered
            )
            sent += 1
            self._producer.poll(0)
            time.sleep(PAUSE_S)
        left = self._producer.flush(LIMIT_S)
        if left:
            self.failures.append(f"{left} records had no answer at the end")

    def end(self) -> None:
        """Once all have been answered."""
        self._ends.set()
        self.join(LIMIT_S * 2)

    def await_progress(self, records: int) -> None:
        """So many more acknowledged."""
        wanted = self.acknowledged + records
        deadline = time.monotonic() + LIMIT_S
        while self.acknowledged < wanted:
            assert time.monotonic() < deadline, f"no progress: {self.failures}"
            time.sleep(0.02)

    def _delivered(self, error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failures.append(str(error))
