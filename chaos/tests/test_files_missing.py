"""The fault that takes files from a stopped node takes those that it names, in both worlds."""

from pathlib import Path
from typing import Any

from chaos.live.faults.disk_faults import deleted
from chaos.sim.agenda import Agenda
from chaos.sim.machine import Machine

SNAPSHOT = "hot-0/00000000000000000010.snapshot"
OTHERS = ("hot-0/00000000000000000010.log", "cold-0/00000000000000000010.snapshot", "hot-0/a.snapshot.new")


def test_live_node_loses_what_the_pattern_names(tmp_path: Path) -> None:
    for path in (SNAPSHOT, *OTHERS):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(b"x")
    assert deleted(tmp_path, "hot-*/*.snapshot") == [SNAPSHOT]
    assert not (tmp_path / SNAPSHOT).exists()
    assert all((tmp_path / path).exists() for path in OTHERS)
    assert deleted(tmp_path, "hot-*/*.snapshot") == []


def test_simulated_node_loses_it_for_good() -> None:
    boot: Any = None
    machine = Machine(0, Agenda(), 1, boot)
    for path in (SNAPSHOT, *OTHERS):
        machine.disk.write(path, b"x")
        machine.disk.make_durable(path)
    assert machine.stop_and_delete("hot-*/*.snapshot")
    machine.disk.power_loss()
    assert [path for path, _ in machine.disk.all_files()] == sorted(OTHERS)
    assert not machine.stop_and_delete("hot-*/*.snapshot")
