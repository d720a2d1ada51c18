"""The bit that the fault ``disk_bit_flipped`` turns over, in memory and in the files of a live node."""

from pathlib import Path
from random import Random
from unittest.mock import Mock

from chaos.faults.disk_damage import DamageCheck, aim, flips, is_aimed_at
from chaos.live.faults.disk_faults import damaged, disk_bit_flipped
from chaos.live.faults.fault_context import LiveFaultContext
from chaos.live.targets import FaultTarget
from reference_broker.log.checkpoints import read_partition_metadata, write_partition_metadata
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.record import Record, build
from reference_broker.serve.disk import FileDisk
from reports.rows import FaultRow
from scenarios.model import Fault

NOW = Now(0, 0)
ID = bytes(range(240, 256))
CONFIG = LogConfig(segment_bytes=300)


def test_only_records_of_clients_are_aimed_at() -> None:
    assert is_aimed_at("hot-0/00000000000000000000.log")
    assert is_aimed_at("hot-0/partition.metadata")
    for path in (
        "hot-0/00000000000000000000.index",
        "hot-0/00000000000000000000.log.damaged",
        "hot-0.0f-delete/00000000000000000000.log",
        "__cluster_metadata-0/00000000000000000000.log",
        "meta.log",
    ):
        assert not is_aimed_at(path)
    assert aim([("hot-0/00000000000000000000.log", b"")], Random(1)) is None


def test_bit_is_turned_over_in_the_file_and_the_start_finds_it(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path, 8)
    log = run_to_end(open_log(disk, "hot-0", CONFIG, NOW, True))
    for _ in range(9):
        log.append(NOW, build([Record(timestamp_ms=0, value=b"v")]), 0)
    log.close_cleanly()
    disk.close()
    assert damaged(tmp_path / "nobody", Random(1)) == []
    for seed in range(8):
        assert len(damaged(tmp_path, Random(seed))) == 1
        opened = run_to_end(open_log(FileDisk(tmp_path, 8), "hot-0", CONFIG, NOW, True))
        assert opened.quarantine is not None
        if not opened.segments or opened.log_end_offset == 0:
            return
    raise AssertionError("each flip takes at least one segment away")


def test_flipped_bit_of_a_topic_id_makes_it_that_of_another_topic() -> None:
    for seed in range(64):
        disk = MemoryDisk()
        write_partition_metadata(disk, "hot-0", ID)
        flip = aim([(path, bytes(content)) for path, content in disk.files.items()], Random(seed))
        assert flip is not None
        disk.files[flip.path][flip.bit // 8] ^= 1 << flip.bit % 8
        assert read_partition_metadata(disk, "hot-0") not in (None, ID)


def test_each_file_that_is_named_loses_a_bit_and_no_other() -> None:
    disk = MemoryDisk()
    for index in range(3):
        write_partition_metadata(disk, f"hot-{index}", ID)
    write_partition_metadata(disk, "idle-0", ID)
    files = [(path, bytes(content)) for path, content in disk.files.items()]
    named = [f"hot-{index}/partition.metadata" for index in range(3)]
    assert [flip.path for flip in flips(files, Random(1), "hot-*/partition.metadata")] == named
    assert flips(files, Random(1), "hot-*/*.log") == []
    assert len(flips(files, Random(1))) == 1


def test_each_seed_and_each_hit_of_a_run_turns_over_other_bits_also_those_of_topic_ids(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path, 8)
    log = run_to_end(open_log(disk, "hot-0", CONFIG, NOW, True))
    for _ in range(9):
        log.append(NOW, build([Record(timestamp_ms=0, value=b"v")]), 0)
    log.close_cleanly()
    write_partition_metadata(disk, "hot-0", ID)
    disk.close()
    fault = Fault("flip", "disk_bit_flipped", node=1)

    def damage_of(seed: int, hits: int) -> str:
        context = Mock(spec=LiveFaultContext)
        context.child.return_value.terminate.return_value = "node 1 exited with 0"
        context.data_folder.return_value = tmp_path
        context.spec.return_value.seed = seed
        context.rows = [FaultRow(fault.name, fault.kind, 0, 0, "node-1", hit) for hit in range(hits)]
        context.damage = DamageCheck(("hot",))
        ended = disk_bit_flipped(context, FaultTarget(fault, (), "node-1"))()
        assert ended is not None
        (check,) = context.damage.judged(7)
        assert check.holds
        return ended.evidence

    by_seed = [damage_of(seed, 0) for seed in range(12)]
    assert len(set(by_seed)) > 6
    assert any("partition.metadata" in each for each in by_seed)
    assert len({damage_of(1, hits) for hits in range(6)}) > 2


def test_damaged_file_must_stay_on_disk_under_any_name(tmp_path: Path) -> None:
    for name in ("hot-0/a.log", "hot-1/b.log", "made-0/c.log"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
    damage = DamageCheck(("hot",))
    assert damage.judged(9) == ()
    damage.note(tmp_path, ["hot-0/a.log", "hot-1/b.log", "made-0/c.log"])
    (tmp_path / "hot-0").rename(tmp_path / "hot-0.unknown-stray")
    (tmp_path / "made-0/c.log").unlink()
    (check,) = damage.judged(9)
    assert check.guarantee == "damage-kept"
    assert check.holds
    assert check.evidence == 2
    assert check.at_us == -1
    (tmp_path / "hot-1/b.log").write_text("cut")
    (check,) = damage.judged(9)
    assert (check.holds, check.at_us) == (False, 9)
    assert check.detail.endswith("nothing holds any more what hot-1/b.log was after its damage")
