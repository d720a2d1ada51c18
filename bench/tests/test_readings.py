"""Figures that rows read from the logs and files of clients and brokers."""

from pathlib import Path

import pytest

from bench.peers.node import PeerError
from bench.peers.stock_clients import reading_s
from bench.peers.systems import closed_segments, systems, tiered

LOG = """[0.010s] java.lang.Object source: shared objects file
[0.700s] org.apache.kafka.common.requests.FetchResponse source: file:/kafka-clients.jar
[0.858s] org.apache.kafka.common.requests.FetchResponse$$Lambda$332/0x00007f source: FetchResponse
[0.859s] org.apache.kafka.common.requests.FetchResponse$$Lambda$333/0x00007f source: FetchResponse
[2.283s] org.apache.kafka.clients.consumer.CloseOptions source: file:/kafka-clients.jar
[2.793s] java.util.IdentityHashMap$KeyIterator source: shared objects file
"""


def test_time_from_first_response_to_last_record() -> None:
    assert reading_s(LOG) == pytest.approx(2.283 - 0.858)


@pytest.mark.parametrize("gone", ["$$Lambda", "CloseOptions"])
def test_log_without_figure_is_no_result(gone: str) -> None:
    with pytest.raises(PeerError, match="does not show"):
        reading_s(LOG.replace(gone, "Other"))


def segment(folder: Path, base_offset: int, size_bytes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{base_offset:020d}.log").write_bytes(bytes(size_bytes))


def test_closed_segments_are_all_but_the_newest_wherever_a_broker_keeps_its_logs(tmp_path: Path) -> None:
    for base_offset, size_bytes in ((0, 100), (7, 200), (19, 50)):
        segment(tmp_path / "node-0" / "data" / "t-0", base_offset, size_bytes)
    segment(tmp_path / "node-0" / "t-1", 5, 10)
    segment(tmp_path / "node-0" / "other-t-0", 99, 1)
    segment(tmp_path / "tier" / "t-0", 40, 1)
    assert closed_segments(tmp_path, "t", 2) == [(19, 300), (5, 0)]


def test_brokers_keep_their_names_with_a_tier() -> None:
    assert [tiered(system).name for system in systems("kafka")] == [system.name for system in systems("kafka")]
