"""A backlog that readers drain: when it counts as built and as drained, and what does not fit on the disk."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.load import backlog
from bench.load.backlog import GIB, BacklogError, build_and_drain, check_space
from bench.load.producer import monotonic_us
from bench.load.reader import LoadReader, ReadPlan
from bench.load.sink import Sink, SinkPlan
from bench.load.workload import UnplayableError, Workload, workload_of
from reference_broker.client.partitions import TopicPartition

RECORDS = 10_000


def workload(subscriptions: int = 1, ratio: float = 1.0) -> Workload:
    """A workload whose backlog has RECORDS records of 1 KiB."""
    table = {
        "messageSize": 1024,
        "producerRate": 1_000,
        "subscriptionsPerTopic": subscriptions,
        "consumerBacklogSizeGB": RECORDS * 1024 / GIB,
        "backlogDrainRatio": ratio,
    }
    return workload_of(table, "w", "w")


@dataclass
class Workers:
    """Workers that acknowledge ``step`` records between two looks, and read ``reads`` unless they pause."""

    step: int = 1_000
    reads: int = 2_000
    acknowledged: int = 0
    read: int = 0
    subscriptions: int = 1
    commands: list[tuple[str, int]] = field(default_factory=list)  # with the backlog at that time

    @property
    def backlog(self) -> int:
        return self.acknowledged * self.subscriptions - self.read

    def command(self, command: str) -> None:
        self.commands.append((command, self.backlog))

    def counts(self) -> tuple[int, int]:
        self.acknowledged += self.step
        if self.commands[-1][0] == "resume_readers":
            self.read = min(self.acknowledged * self.subscriptions, self.read + self.reads)
        return self.acknowledged, self.read


@pytest.fixture(autouse=True)
def _polls_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "_POLL_S", 0.0)


def test_readers_pause_until_the_backlog_has_its_size_and_then_drain_it() -> None:
    workers = Workers()
    backlog = build_and_drain(workload(), 1_000, workers, lambda _: None)
    assert workers.commands == [("pause_readers", 0), ("resume_readers", RECORDS)]
    assert workers.backlog <= 1_000
    assert (backlog.records, backlog.size_bytes) == (RECORDS, RECORDS * 1024)


def test_ratio_determines_records_to_drain() -> None:
    workers = Workers()
    build_and_drain(workload(ratio=0.3), 1_000, workers, lambda _: None)
    assert 6_000 <= workers.backlog <= 7_000


def test_each_subscription_has_a_backlog_of_its_own() -> None:
    workers = Workers(subscriptions=5, reads=20_000)
    build_and_drain(workload(subscriptions=5), 1_000, workers, lambda _: None)
    assert workers.commands[1] == ("resume_readers", RECORDS)


def test_readers_that_do_not_catch_up_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "LIMIT_S", 0.05)
    with pytest.raises(BacklogError, match=r"^draining the backlog of [\d.e-]+ GB took more than 0 s$"):
        build_and_drain(workload(), 1_000, Workers(reads=900), lambda _: None)
    with pytest.raises(BacklogError, match=r"^building the backlog"):
        build_and_drain(workload(), 1_000_000, Workers(step=0), lambda _: None)


def test_backlog_beyond_disk_is_rejected(tmp_path: Path) -> None:
    check_space(workload(), 1_000, 60, 1, tmp_path)
    large = workload_of({"messageSize": 1024, "producerRate": 1, "consumerBacklogSizeGB": 1_000_000}, "w", "w")
    with pytest.raises(UnplayableError, match=r"^it writes about 1,009,765\..*: choose a smaller backlog"):
        check_space(large, 1, 60, 1, tmp_path)
    with pytest.raises(UnplayableError):
        check_space(workload(), 1e12, 60, 1, tmp_path)


def test_paused_reader_sends_nothing_until_resumed() -> None:
    sink = Sink(SinkPlan(2))
    times: list[int] = []
    reader = LoadReader(
        ReadPlan("r", (TopicPartition("t", 0), TopicPartition("t", 1))),
        [("127.0.0.1", sink.port)],
        lambda each: times.append(each.at_us),
    )
    threads = [threading.Thread(target=each) for each in (sink.serve, reader.run)]
    for thread in threads:
        thread.start()
    pause = threading.Event()
    while not times:
        pause.wait(0.01)
    reader.paused = True
    pause.wait(0.2)  # for the request in flight
    paused_us = monotonic_us()
    pause.wait(0.3)
    resumed_us = monotonic_us()
    reader.paused = False
    while times[-1] < resumed_us:
        pause.wait(0.01)
    reader.stop()
    sink.close()
    for thread in threads:
        thread.join()
    assert not [at for at in times if paused_us < at < resumed_us]
