"""A writer that goes on through kills, for tests of readers."""

import threading
import time

import confluent_kafka

from bench.peers.tests.nodes import LIMIT_S

PAUSE_S = 0.002


class BackgroundWriter(threading.Thread):
    """librdkafka, idempotent, acks=all: numbers to all partitions in turn, without end until stopped."""

    def __init__(self, bootstrap: str, topic: str, partitions: int = 1) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self.acknowledged: list[int] = []  # in the order of their acknowledgements
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
        while not self._ends.is_set():
            self._producer.produce(
                self._topic,
                str(self.sent).encode(),
                partition=self.sent % self._partitions,
                on_delivery=self._delivered,
            )
            self.sent += 1
            self._producer.poll(0)
            time.sleep(PAUSE_S)
        left = self._producer.flush(LIMIT_S)
        if left:
            self.failures.append(f"{left} records had no response at the end")

    def end(self) -> None:
        """End the thread once all records have their response."""
        self._ends.set()
        self.join(LIMIT_S * 2)

    def await_progress(self, records: int) -> None:
        """Wait until this many more records are acknowledged."""
        wanted = len(self.acknowledged) + records
        deadline = time.monotonic() + LIMIT_S
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < deadline, f"no progress: {self.failures}"
            time.sleep(0.02)

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is None:
            self.acknowledged.append(int(message.value() or b""))
        else:
            self.failures.append(str(error))
