"""Kafka's perf tests as the client of a workload: their figures as they are, and never PASSED."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from bench.load import java_client
from bench.load.command import figures_of
from bench.load.comparison import Entry, series_of
from bench.load.ledger import Findings
from bench.load.measures import Measures
from bench.load.openmessaging import document_of
from bench.load.options import LoadError, LoadOptions
from bench.load.page import write
from bench.load.requirements import check_playable
from bench.load.results import LoadResult, Stated
from bench.load.run import run
from bench.load.spec import LoadSpec
from bench.load.target import started
from bench.load.tests.planted import result
from bench.load.workload import WorkloadError, workload_of
from bench.peers.node import PeerError

STATED = Stated(
    sent=10_000,
    sent_per_s=999.5,
    read=10_000,
    read_per_s=950.25,
    mean_ms=3.5,
    max_ms=80.0,
    quantiles_ms={0.5: 3.0, 0.95: 9.0, 0.99: 20.0, 0.999: 70.0},
)
SPEC = LoadSpec(
    bootstrap=[("127.0.0.1", 1)],
    topics=["t"],
    partitions=1,
    producers=2,
    subscriptions=1,
    consumers=1,
    records_per_s=1_000,
    value_bytes=100,
    batch_records=1,
)
FAKE = """#!/bin/sh
case "$*" in
*ProducerPerformance*) echo "5000 records sent, 499.9 records/sec (0.05 MB/sec), $AVG ms avg latency, 80.00 ms max \
latency, 3 ms 50th, 9 ms 95th, 20 ms 99th, 70 ms 99.9th." ;;
*) echo "2026-01-01 00:00:00:000, 2026-01-01 00:00:10:000, 0.9, 0.09, 10000, 950.25, 300, 9700, 0.1, 1030.9" ;;
esac
exit $CODE
"""


def stated_result() -> LoadResult:
    return structs.replace(
        result(), client="java", measures=Measures(), findings=Findings(0, 0, 0, 0, 0, 0, 0), stated=STATED
    )


def test_run_of_tools_is_never_passed(tmp_path: Path) -> None:
    result = stated_result()
    assert result.outcome == "UNVERIFIED"
    assert "no record was verified" in result.reason
    (series,) = series_of([Entry(result)])
    assert series.outcome == "UNVERIFIED"
    assert structs.replace(result, stated=structs.replace(STATED, sent=0)).outcome == "INVALID"
    page = write([Entry(result)], tmp_path / "page.html", "", "").read_text()
    assert "UNVERIFIED" in page
    assert "PASSED</span>" not in page


def test_figures_are_those_of_the_tools() -> None:
    result = stated_result()
    assert (result.rate("acknowledged"), result.rate("read")) == (999.5, 950.25)
    assert [result.percentile_ms("publish", share) for share in (0.5, 0.99, 0.9999)] == [3.0, 20.0, None]
    assert result.percentile_ms("response", 0.99) is None
    figures = figures_of(Entry(result))
    assert figures["records verified"] == 0
    assert figures["publish latency p99, ms"] == 20.0
    document = json.loads(json.dumps(document_of(result)))
    assert document["publishRate"] == [999.5]
    assert document["aggregatedPublishLatency99pct"] == 20.0
    assert document["aggregatedPublishLatencyQuantiles"]["99.9"] == 70.0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"producerRate": 0}, "need a producerRate"),
        ({"consumerPerSubscription": 2, "partitionsPerTopic": 2}, "more than 1"),
        ({"keyDistributor": "KEY_ROUND_ROBIN"}, "without keys"),
    ],
)
def test_what_the_tools_cannot_play_is_refused(change: dict[str, object], complaint: str) -> None:
    java = LoadOptions(client="java")
    playable = {"producerRate": 1_000}
    for fields, options, expected in (
        ({**playable, **change}, java, complaint),
        (playable, replace(java, joining=1), "other machines"),
        (playable, replace(java, records_per_s=0), "need a producerRate"),
    ):
        with pytest.raises(LoadError, match=expected):
            check_playable(workload_of(fields, "w", "w"), options, "t", None, False, None)
    check_playable(workload_of(playable, "w", "w"), java, "t", None, False, None)


def test_faults_are_refused() -> None:
    faults = {"client": "java", "faults": [{"kind": "node_killed", "atS": 1}]}
    with pytest.raises(WorkloadError, match="java does not carry out crucible"):
        workload_of({"producerRate": 1_000, "crucible": faults}, "w", "w")


@pytest.mark.live
def test_what_all_tools_print_is_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "java"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    for name, value in {"PATH": f"{tmp_path}:{os.environ['PATH']}", "AVG": "3.5", "CODE": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("bench.peers.kafka.kafka_classpath", lambda: "none")
    result = java_client.play(SPEC, 10, tmp_path / "logs", lambda _: None)
    assert result.stated == structs.replace(STATED, sent_per_s=999.8)
    monkeypatch.setenv("CODE", "3")
    with pytest.raises(PeerError, match=r"failed \(code 3\)"):
        java_client.play(SPEC, 10, tmp_path / "logs", lambda _: None)


@pytest.mark.peer
@pytest.mark.timeout(300)
def test_workload_with_kafkas_tools(tmp_path: Path) -> None:
    table = {"partitionsPerTopic": 4, "messageSize": 200, "producerRate": 1_000, "crucible": {"client": "java"}}
    with started("reference", lambda _: None) as target:
        result = run(workload_of(table, "w", "w"), target, LoadOptions(seconds=5, warmup_s=1), tmp_path, lambda _: None)
    assert result.outcome == "UNVERIFIED"
    assert result.stated is not None
    assert result.stated.sent == 6_000 <= result.stated.read
    assert 500 < result.rate("acknowledged") < 1_100
    assert result.generator_cpu_s > 1
