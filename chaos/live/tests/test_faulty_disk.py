"""Faults of a node's disk: what they do to it, and the one line of evidence for each."""

import os
from pathlib import Path
from typing import cast

import pytest

from chaos.live.node_side.instrumentation import DiskFaults
from chaos.live.node_side.node_protocol import Evidence
from chaos.live.processes import EvidencePipe
from reference_broker.core.events import TimerFired
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Now
from reference_broker.serve.disk import FileDisk
from reference_broker.serve.driver import DriverFaultActions

NOW = Now(0, 0)


class FakeSyncs:
    def __init__(self) -> None:
        self.by_ms: list[int] = []
        self.names_only: list[bool] = []
        self.syncs_delayed = 0

    def slow_syncs(self, by_ms: int, names_only: bool) -> None:
        self.by_ms.append(by_ms)
        self.names_only.append(names_only)


class FaultyDisk:
    def __init__(self, folder: Path) -> None:
        self.pipe = EvidencePipe()
        self.syncs = FakeSyncs()
        self.faults = DiskFaults(cast("DriverFaultActions", self.syncs), Evidence(self.pipe.write_end))
        self.inner = FileDisk(folder, 16)
        self.disk = self.faults.watch(self.inner)

    def event(self) -> None:
        self.faults.after(NOW, TimerFired(1), ())


@pytest.fixture
def world(tmp_path: Path) -> FaultyDisk:
    made = FaultyDisk(tmp_path)
    made.disk.append("there", [b"abc"])
    return made


def test_full_disk_refuses_writes_leaves_files_as_they_were_and_says_so_once(world: FaultyDisk) -> None:
    world.faults.configure(full=True)
    for _ in range(2):
        with pytest.raises(DiskError, match="no space left"):
            world.disk.append("there", [b"d", b"ef"])
        with pytest.raises(DiskError):
            world.disk.append("new", [b"d"])
        with pytest.raises(DiskError):
            world.disk.write("whole", b"other")
    assert world.disk.read("there", 0, 10) == b"abc"
    assert (world.disk.size("new"), world.disk.size("whole")) == (0, 0)
    assert world.pipe.lines() == [{"disk": ["disk_full", "no space for 3 bytes of there at 3"]}]
    world.faults.configure(full=False)
    world.disk.append("there", [b"def"])
    assert world.disk.read("there", 0, 10) == b"abcdef"
    assert world.pipe.lines() == []


def test_slow_syncs_are_carried_out_in_the_node_s_own_thread_and_reported_when_one_was_slow(world: FaultyDisk) -> None:
    world.faults.configure(slow_ms=300)
    assert world.syncs.by_ms == []
    world.event()
    assert world.syncs.by_ms == [300]
    assert world.pipe.lines() == []
    world.syncs.syncs_delayed = 2
    world.event()
    world.event()
    assert world.pipe.lines() == [{"disk": ["disk_slowed", "syncs take 300 ms longer"]}]
    world.faults.configure(slow_ms=0)
    world.event()
    assert world.syncs.by_ms == [300, 0]
    assert world.pipe.lines() == []


def test_slow_syncs_of_names_alone_are_ordered_and_reported_as_such(world: FaultyDisk) -> None:
    world.faults.configure(slow_ms=300, names_only=True)
    world.event()
    world.syncs.syncs_delayed = 1
    world.event()
    assert (world.syncs.by_ms, world.syncs.names_only) == ([300], [True])
    assert world.pipe.lines() == [{"disk": ["disk_slowed", "syncs of folders take 300 ms longer"]}]


def test_slow_syncs_of_an_order_before_do_not_count(world: FaultyDisk) -> None:
    world.syncs.syncs_delayed = 5
    world.faults.configure(slow_ms=10)
    world.event()
    assert world.pipe.lines() == []


def test_evidence_goes_out_at_once(world: FaultyDisk) -> None:
    os.set_blocking(world.pipe.write_end, False)
    world.faults.configure(full=True)
    with pytest.raises(DiskError):
        world.disk.append("there", [b"d"])
    assert len(world.pipe.lines()) == 1
