"""Faults of links in benchmarks: evidence through Toxiproxy, and a whole workload on Kafka."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.load.command import BenchOptions, play
from bench.load.faults import Fault, FaultPlayer
from bench.load.options import LoadError, LoadOptions
from bench.load.target import started
from crucible_kafka.bench_links import ToxiproxyLinks, toxiproxy_links

pytestmark = pytest.mark.live
WORKLOAD = """
partitionsPerTopic: 4
messageSize: 200
producerRate: 1000
crucible:
  faults:
    - { kind: link_delayed, atS: 4, durationS: 3, delayMs: 300 }
    - { kind: link_cut, atS: 14, durationS: 3 }
"""


class _Idle:
    """Links on which no fault takes effect."""

    def __init__(self, links: ToxiproxyLinks) -> None:
        self.addresses = links.addresses

    def connect(self, ports: Sequence[int]) -> None:
        pass

    def cut(self, number: int) -> None:
        pass

    def delay(self, number: int, delay_ms: int, jitter_ms: int) -> None:
        pass

    def heal(self, number: int) -> None:
        pass


def test_faults_of_links_leave_evidence_and_end() -> None:
    faults = [
        Fault(kind="link_delayed", at_s=0, duration_s=1, delay_ms=200),
        Fault(kind="link_cut", at_s=5, duration_s=1),
        Fault(kind="link_delayed", at_s=10, duration_s=1, delay_ms=300),
    ]
    with started("reference", lambda _: None) as target, toxiproxy_links(1) as links:
        assert target.cluster is not None
        links.connect(target.cluster.ports)
        player = FaultPlayer(faults, target.cluster, 0, lambda: -1, links)
        idle = FaultPlayer(faults, target.cluster, 0, lambda: -1, _Idle(links))
        idle.do_due(5)
        assert [each.evidence for each in idle.fired] == ["", "", ""]  # Links that work are none.
        player.do_due(0)
        assert "of node" in player.fired[0].evidence
        player.do_due(1)
        player.do_due(5)
        assert "no response within 0.5 s" in player.fired[1].evidence
        player.do_due(6)
        assert [each.restored_s for each in player.fired] == [1, 6, -1]
        player.do_due(10)
        player.finish(lambda: 10.5)
        assert player.fired[2].restored_s == 10.5
        with started(f"127.0.0.1:{links.addresses[0][1]}", lambda _: None) as through:
            assert through.bootstrap == [links.addresses[0]]


def test_target_without_advertised_addresses_is_refused() -> None:
    with (
        pytest.raises(LoadError, match="so clients cannot be led through links"),
        started("reference", lambda _: None, make_links=toxiproxy_links),
    ):
        pass


@pytest.mark.peer
@pytest.mark.timeout(300)
def test_workload_whose_links_fail(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    load = LoadOptions(seconds=24, warmup_s=5)
    options = BenchOptions([tmp_path / "w.yaml"], ["kafka"], load, out=tmp_path, make_links=toxiproxy_links)
    (entry,) = play(options, lambda _: None)
    delayed, cut = entry.result.fault_figures
    assert entry.result.findings.is_clean
    assert entry.result.has_fired
    assert delayed.during.p99_ms > 250
    assert max(cut.during.p99_ms, cut.recovery.p99_ms) > 2_000
