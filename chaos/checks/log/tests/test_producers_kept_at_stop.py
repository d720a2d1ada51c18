"""Snapshots of producers at a clean stop: each log has one at its end."""

from dataclasses import dataclass, field
from random import Random

import pytest

from chaos.checks.log.producers import ProducersKeptAtStop
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubBroker, StubLog, StubNode
from chaos.sim.disk import SimDisk
from reference_broker.quorum.node_files import CLEAN_SHUTDOWN_FILE


@dataclass
class Producers:
    """The producers of a log, by producer ID."""

    by_id: dict[int, None]


@dataclass(eq=False)
class LogWithProducers(StubLog):
    """A log with the state of its producers."""

    producers: Producers = field(default_factory=lambda: Producers({}))


@pytest.mark.clause("P-3")
@pytest.mark.parametrize(
    ("snapshot", "stopped", "clean", "producers", "right"),
    [
        (7, True, True, True, True),
        (6, True, True, True, False),
        (6, False, True, True, True),
        (6, True, False, True, True),
        (6, True, True, False, True),
    ],
)
def test_clean_stop_leaves_a_snapshot_at_the_end(
    snapshot: int, stopped: bool, clean: bool, producers: bool, right: bool
) -> None:
    disk = SimDisk(Random(1))
    disk.append(f"t-0/{snapshot:020d}.snapshot", [b"x"])
    if clean:
        disk.append(CLEAN_SHUTDOWN_FILE, [b"x"])
    log = LogWithProducers("t-0", log_end_offset=7, producers=Producers({1: None} if producers else {}))
    node = StubNode(StubBroker(disk=disk), stopped=stopped, all_logs=[log]).as_node()
    check = ProducersKeptAtStop(check_context())
    check.inspect(0, 0, node, None, thorough=False)
    assert (check.violations == []) is right
