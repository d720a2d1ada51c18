"""Faults in workloads: figures of planted measurements, evidence, and nodes that are killed and paused."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from bench.load.command import remarks
from bench.load.comparison import Entry
from bench.load.faults import Fault, FaultPlayer, FiredFault, figures
from bench.load.measures import LoadSecond, Measures
from bench.load.options import LoadError, LoadOptions
from bench.load.page import write
from bench.load.run import run
from bench.load.target import LoadTarget, started
from bench.load.tests.planted import result
from bench.load.workload import WorkloadError, workload_of
from bench.peers.cluster import PeerCluster
from bench.peers.node import BrokerNode
from bench.ports import free_port

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


def measured(outage: range, slow: range, end: int = 40) -> Measures:
    """1,000 records/s in 5 ms, but none in an outage, and 400 ms in the slow seconds."""
    measures = Measures()
    for at in range(end):
        records = 0 if at in outage else 1_000
        measures.seconds[at] = LoadSecond(1_000, 1_000, records, 0, records)
        if records:
            measures.latency("response", at, 400_000 if at in slow else 5_000, records)
    return measures


def fired(at_s: float, restored_s: float, kind: str = "node_killed") -> FiredFault:
    return FiredFault(
        fault=Fault(kind=kind, at_s=at_s - 5),  # type: ignore[arg-type]
        node=1,
        at_s=at_s,
        restored_s=restored_s,
        evidence="seen",
    )


def test_fault_has_figures_before_during_and_after_it() -> None:
    (phases,) = figures([fired(20.3, 23.4)], measured(range(20, 23), range(23, 27)), 5, 40)
    assert (phases.baseline.first, phases.baseline.end) == (10, 20)
    assert phases.baseline.acknowledged_per_s == 1_000
    assert phases.baseline.p99_ms == pytest.approx(5, rel=0.02)
    assert (phases.during.first, phases.during.end) == (20, 24)
    assert phases.during.acknowledged_per_s == 250
    assert (phases.recovery.first, phases.recovery.end) == (24, 30)
    assert phases.recovery.p99_ms == pytest.approx(400, rel=0.02)
    assert phases.recovered_s == pytest.approx(27 - 20.3)
    assert "recovered 7 s after it (seen)" in phases.sentence


def test_load_that_stays_slow_has_not_recovered_before_the_next_fault() -> None:
    first, second = figures([fired(28, 29), fired(10, 11)], measured(range(10, 11), range(11, 28)), 0, 40)
    assert (first.recovered_s, second.recovered_s) == (-1, 1)
    assert "not recovered within 18 s" in first.sentence
    assert first.recovery.end == 28
    assert second.baseline.first == 27  # No second before it was good.


@pytest.mark.thorough
def test_fault_without_evidence_makes_a_run_invalid(tmp_path: Path) -> None:
    silent = structs.replace(fired(2, 3), evidence="")
    run_ = structs.replace(result(), faults=[silent])
    assert (run_.outcome, run_.reason) == ("INVALID", "Nothing proves that all faults fired.")
    good = structs.replace(result(), faults=[fired(2, 3)])
    assert good.outcome == "PASSED"
    assert any("node_killed of node 1 for 1.0 s" in remark for remark in remarks([Entry(good)]))
    page = write([Entry(good)], tmp_path / "page.html", "", "").read_text()
    assert "<h2>Faults</h2>" in page
    assert "seen" in page
    assert "<h2>Faults</h2>" not in write([Entry(result())], tmp_path / "page.html", "", "").read_text()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerNode]:
    node = BrokerNode("sleeper", 7, free_port(), SLEEPS, tmp_path / "log")
    node.launch()
    yield node
    assert node.process is not None
    node.process.kill()
    node.process.wait()


@pytest.mark.live
def test_kill_and_a_pause_leave_evidence(node: BrokerNode) -> None:
    faults = [
        Fault(kind="node_paused", at_s=1, duration_s=2),
        Fault(kind="node_killed", at_s=5, node=7, restart_after_s=1),
    ]
    player = FaultPlayer(faults, PeerCluster("sleepers", [node]), 10, lambda: 7)
    assert player.next_s == 11
    player.do_due(10.9)
    assert [each.evidence for each in player.fired] == ["", ""]
    player.do_due(11.2)
    paused, killed = player.fired
    assert (paused.at_s, paused.node, player.next_s) == (11.2, 7, 13.2)
    assert "stopped" in paused.evidence
    player.do_due(13.2)
    assert paused.restored_s == 13.2
    process = node.process
    player.do_due(15)
    assert process is not None
    assert process.returncode == -9
    assert "SIGKILL" in killed.evidence
    player.do_due(16)
    assert node.process is not process
    assert killed.restored_s < 0  # It does not respond: it is no broker.


@pytest.mark.live
def test_signal_that_stops_nothing_is_no_evidence(node: BrokerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerNode, "send_signal", lambda *_: None)
    player = FaultPlayer([Fault(kind="node_paused", at_s=0)], PeerCluster("sleepers", [node]), 0, lambda: 7)
    player.do_due(0.5)
    assert player.fired[0].at_s == 0.5
    assert player.fired[0].evidence == ""


@pytest.mark.live
def test_node_that_has_ended_by_itself_is_no_evidence(node: BrokerNode) -> None:
    assert node.process is not None
    node.process.terminate()
    node.process.wait()
    player = FaultPlayer([Fault(kind="node_killed", at_s=0)], PeerCluster("sleepers", [node]), 0, lambda: 7)
    player.do_due(0.5)
    assert player.fired[0].evidence == ""


@pytest.mark.nightly  # A starved machine offers too few records for its figures.
@pytest.mark.live
def test_node_is_killed_and_paused_under_load(tmp_path: Path) -> None:
    table = {
        "partitionsPerTopic": 4,
        "messageSize": 200,
        "producerRate": 1_000,
        "crucible": {
            "faults": [
                {"kind": "node_paused", "atS": 3, "durationS": 1.5},
                {"kind": "node_killed", "atS": 10, "restartAfterS": 1},
            ]
        },
    }
    options = LoadOptions(seconds=20, warmup_s=2)
    with started("reference", lambda _: None) as target:
        result = run(workload_of(table, "w", "w"), target, options, tmp_path, lambda _: None)
    assert result.findings.is_clean, result.reason
    paused, killed = result.fault_figures
    assert result.has_fired
    assert 5 <= paused.fired.at_s < 6
    assert 1.4 < paused.fired.restored_s - paused.fired.at_s < 2.5
    assert 12 <= killed.fired.at_s < 13
    assert killed.fired.restored_s - killed.fired.at_s > 1
    for each in (paused, killed):
        assert each.baseline.acknowledged_per_s > 800
        assert each.recovered_s >= 1 or each.recovered_s == -1  # A busy machine may stay slow.
        assert max(each.during.p99_ms, each.recovery.p99_ms) > 500
    assert result.brokers_cpu_s == -1


@pytest.mark.live
@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ({"kind": "node_killed", "atS": 90}, "at 90 s is not within the 60 s"),
        ({"kind": "node_killed", "atS": 1, "node": 9}, "node 9 is none of 7"),
        ({"kind": "link_cut", "atS": 1}, "links need links through Toxiproxy"),
    ],
)
def test_fault_that_cannot_be_played_is_refused(
    fault: dict[str, object], complaint: str, node: BrokerNode, tmp_path: Path
) -> None:
    workload = workload_of({"crucible": {"faults": [fault]}}, "w", "w")
    options = LoadOptions(seconds=60)
    with started("127.0.0.1:1", lambda _: None) as target, pytest.raises(LoadError, match="run elsewhere"):
        run(workload, target, options, tmp_path, lambda _: None)
    ours = LoadTarget("ours", [], PeerCluster("sleepers", [node]))
    with pytest.raises(LoadError, match=complaint):
        run(workload, ours, options, tmp_path, lambda _: None)


def test_unsupported_fault_kind_is_rejected() -> None:
    with pytest.raises(WorkloadError, match="disk_full"):
        workload_of({"crucible": {"faults": [{"kind": "disk_full", "atS": 1}]}}, "w", "w")
