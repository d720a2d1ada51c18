"""The check of a clean stop finds the log that has no snapshot of its producers at its end."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.checks.producers import ProducersKeptAtStop
from chaos.sim.disk import SimDisk
from chaos.tests.check_context import check_context
from reference_broker.quorum.node_files import CLEAN_SHUTDOWN_FILE


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
    known = SimpleNamespace(by_id={1: None} if producers else {})
    log = SimpleNamespace(log_end_offset=7, directory="t-0", producers=known)
    node: Any = SimpleNamespace(broker=SimpleNamespace(node_id=0, disk=disk), stopped=stopped, logs=lambda: [log])
    check = ProducersKeptAtStop(check_context())
    check.inspect(0, 0, node, None, thorough=False)
    assert (check.violations == []) is right
