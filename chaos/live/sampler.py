"""Samples of each node's metrics and process. They are taken once a second (table ``broker``)."""

import http.client
import threading
import time
from collections.abc import Callable, Iterator

import psutil
from prometheus_client.parser import text_string_to_metric_families

from reports.rows import BrokerSample

EVERY_S = 1.0
TIMEOUT_S = 0.8


class Sampler(threading.Thread):
    """``nodes`` gives node ID, metrics address and pid of each node, and ``now_us`` the time since the run's start.

    A node that is down or stopped has no samples for that time.
    """

    def __init__(self, nodes: Callable[[], list[tuple[int, str, int]]], now_us: Callable[[], int]) -> None:
        super().__init__(name="sampler", daemon=True)
        self._nodes = nodes
        self._now_us = now_us
        self._ending = threading.Event()
        self._processes: dict[int, psutil.Process] = {}
        self.rows: list[BrokerSample] = []

    def run(self) -> None:
        following = time.monotonic()
        while not self._ending.is_set():
            for node, address, pid in self._nodes():
                self.rows += self._process_samples(node, pid)
                self.rows += self._metric_samples(node, address)
            following = max(following + EVERY_S, time.monotonic())
            self._ending.wait(following - time.monotonic())

    def end(self) -> None:
        self._ending.set()
        if self.is_alive():
            self.join()

    def _process_samples(self, node: int, pid: int) -> list[BrokerSample]:
        try:
            process = self._processes.get(pid)
            if process is None:
                process = self._processes[pid] = psutil.Process(pid)
                process.cpu_percent(None)  # The first call has nothing to compare with.
                return []
            at_us = self._now_us()
            cpu_permille = int(process.cpu_percent(None) * 10)
            return [
                BrokerSample(node, at_us, "process_cpu_permille", cpu_permille),
                BrokerSample(node, at_us, "process_rss_bytes", process.memory_info().rss),
            ]
        except psutil.Error:
            return []

    def _metric_samples(self, node: int, address: str) -> list[BrokerSample]:
        connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            return []
        finally:
            connection.close()
        at_us = self._now_us()
        return [BrokerSample(node, at_us, metric, value) for metric, value in read_exposition(text)]


def read_exposition(text: str) -> Iterator[tuple[str, int]]:
    """Yield Kafka's name and the value of each sample. The node writes Kafka's name as the HELP text of a family.

    Labels follow the name as Prometheus shows them: ``domain:type=T,name=RequestsPerSec{request="Fetch"}``. They
    replace the parts that come after type and name in Kafka's name.
    """
    for family in text_string_to_metric_families(text):
        kafka_name = family.documentation
        for sample in family.samples:
            # Only a summary's samples have a suffix of their own. The parser drops _total from a counter's family.
            suffix = sample.name.removeprefix(family.name) if family.type == "summary" else ""
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            shown = ",".join(kafka_name.split(",")[:2]) if labels else kafka_name
            yield f"{shown}{suffix}" + (f"{{{labels}}}" if labels else ""), int(sample.value)
