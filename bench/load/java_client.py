"""Kafka's perf tests as clients (`--client java`): kafka-producer-perf-test and kafka-consumer-perf-test.

Their figures are taken as the tools print them, and nothing is verified: their values prove nothing. So such a run is
never PASSED. The tools have no warm-up (Kafka 4.1), so their figures are of all records, and latencies count from the
call of ``send``. The latencies of several producers are those of the worst one, because percentiles cannot be added.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.children import ends_with_me
from bench.load.results import Stated
from bench.load.spec import LoadSpec
from bench.load.workload import UnplayableError, Workload
from bench.peers.node import PeerError
from bench.peers.perf_tests import (
    ProducerFigures,
    consumer_command,
    consumer_figures,
    producer_command,
    producer_figures,
)

SLACK_S: Final = 60.0
"""Time that the tools may need beyond twice the duration of the load."""
IDLE_S: Final = 60.0
"""A consumer ends if no record comes for this long."""
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class JavaRun:
    stated: Stated
    cpu_s: float  # of all tools
    rss_bytes: int


def check_playable(workload: Workload, records_per_s: float, joining: int = 0) -> None:
    """``joining`` is how many workers are expected.

    :raises UnplayableError: the tools cannot play the workload.
    """
    if joining:
        raise UnplayableError("Kafka's perf tests run here, and workers of other machines have no part in them")
    if not records_per_s:
        raise UnplayableError("Kafka's perf tests send a number of records, so they need a producerRate")
    if workload.consumer_per_subscription > 1:
        raise UnplayableError(
            "consumerPerSubscription is more than 1, and kafka-consumer-perf-test reads a number of records alone"
        )
    if workload.keys:
        raise UnplayableError("kafka-producer-perf-test sends records without keys")


def play(spec: LoadSpec, seconds: float, folder: Path, progress: Callable[[str], None]) -> JavaRun:
    """Run all tools side by side until they have sent and read everything.

    :raises PeerError: Java or the jars cannot be had, a tool failed, or they took too long.
    """
    bootstrap = ",".join(f"{host}:{port}" for host, port in spec.bootstrap)
    per_producer = spec.records_per_s / (spec.producers * len(spec.topics))
    records = max(1, int(per_producer * seconds))
    settings = {
        "acks": "all" if spec.acks == -1 else str(spec.acks),
        "enable.idempotence": str(spec.idempotent).lower(),
        "compression.type": spec.compression,
    }
    producing = [
        producer_command(bootstrap, topic, records, spec.value_bytes, per_producer, settings)
        for topic in spec.topics
        for _ in range(spec.producers)
    ]
    reading = [
        consumer_command(bootstrap, topic, records * spec.producers, f"{topic}-s{number}", IDLE_S)
        for topic in spec.topics
        for number in range(spec.subscriptions)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    with _running([*reading, *producing], folder) as tools:
        _await(tools, 2 * seconds + SLACK_S, progress)
    texts = [tool.log.read_text(errors="replace") for tool in tools]
    sent = [producer_figures(text) for text in texts[len(reading) :]]
    read = [consumer_figures(text) for text in texts[: len(reading)]]
    stated = _stated(sent, sum(each.records for each in read), sum(each.records_per_s for each in read))
    return JavaRun(stated, sum(tool.cpu_s for tool in tools), sum(tool.rss_bytes for tool in tools))


def _stated(sent: Sequence[ProducerFigures], read: int, read_per_s: float) -> Stated:
    return Stated(
        sent=sum(figures.records for figures in sent),
        sent_per_s=sum(figures.records_per_s for figures in sent),
        read=read,
        read_per_s=read_per_s,
        mean_ms=max(figures.mean_ms for figures in sent),
        max_ms=max(figures.max_ms for figures in sent),
        quantiles_ms={
            0.5: max(figures.p50_ms for figures in sent),
            0.95: max(figures.p95_ms for figures in sent),
            0.99: max(figures.p99_ms for figures in sent),
            0.999: max(figures.p999_ms for figures in sent),
        },
    )


@dataclass(slots=True)
class _Tool:
    process: "subprocess.Popen[bytes]"
    log: Path
    cpu_s: float = 0.0
    rss_bytes: int = 0

    def has_ended(self) -> bool:
        """Reap the process if it has ended, and note what it needed. Raise PeerError if it failed."""
        if self.process.returncode is None:
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if not pid:
                return False
            self.process.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_s, self.rss_bytes = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
        if self.process.returncode:
            last = " / ".join(self.log.read_text(errors="replace").strip().splitlines()[-3:])
            raise PeerError(f"a perf test of Kafka failed (code {self.process.returncode}): {last}")
        return True


@contextmanager
def _running(commands: Sequence[Sequence[str]], folder: Path) -> Iterator[list[_Tool]]:
    tools: list[_Tool] = []
    try:
        for number, command in enumerate(commands):
            log = folder / f"tool-{number}.log"
            with log.open("wb") as out:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=ends_with_me()
                )
            tools.append(_Tool(process, log))
        yield tools
    finally:
        for tool in tools:
            if tool.process.returncode is None:
                tool.process.kill()
                tool.process.wait()


def _await(tools: Sequence[_Tool], limit_s: float, progress: Callable[[str], None]) -> None:
    began_s = last_s = time.monotonic()
    while left := sum(not tool.has_ended() for tool in tools):
        now_s = time.monotonic()
        if now_s - began_s > limit_s:
            raise PeerError(f"{left} of Kafka's perf tests did not end within {limit_s:.0f} s")
        if now_s - last_s >= 1:
            last_s = now_s
            progress(f"{left} of {len(tools)} perf tests of Kafka run, {now_s - began_s:.0f} s")
        time.sleep(_POLL_S)
