"""What the rows of the remote tier read from the files of a cluster."""

from pathlib import Path

from bench.peers.systems import closed_segments, systems, tiered


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
