"""The runner's side of faults: waiting for a role, ends in their time, recovery of nodes that a rule has hit."""

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from chaos.live.cluster import LiveCluster
from chaos.live.fault_scheduler import BEGIN, ERROR_LIMIT_S, NO_TARGET_LIMIT_S, LiveFaultScheduler
from chaos.live.faults.fault_context import End, Ended, LiveFaultContext
from chaos.live.links import Links
from chaos.live.processes import Child
from chaos.live.targets import FaultTarget, Roles
from reports.rows import FaultRow
from scenarios import loader
from scenarios.fault_kinds import FAULT_KINDS, FaultKind
from scenarios.model import Fault

SECOND_US = 1_000_000


class FakeChild:
    def __init__(self, node: int, log: list[str]) -> None:
        self.pid = 100 + node
        self.label = f"pid {self.pid}"
        self.expected_end = False
        self.exit_status: int | None = None
        self._log = log
        self._node = node

    def wait(self, limit_s: float) -> bool:  # noqa: ARG002
        return True

    def how_it_ended(self) -> str:
        return "ended by SIGKILL"

    def resume(self) -> None:
        self._log.append(f"resume {self._node}")


@dataclass
class StubLaunched:
    """A node of the cluster."""

    process: Any
    launcher: Any = None


class StubCluster:
    """Three nodes, which record their restarts."""

    def __init__(self, log: list[str]) -> None:
        self._log = log
        self.roles = Roles(3, 3, Random(1), lambda _: True)
        self.nodes = [StubLaunched(FakeChild(node, log)) for node in range(3)]

    def restart(self, node: int) -> None:
        self._log.append(f"restart {node}")

    def read(self, node: int) -> None:
        """Read nothing of a node's evidence."""


class SchedulerWorld:
    def __init__(self, *faults: Fault) -> None:
        self.now_us = 0
        self.log: list[str] = []
        client: Any = None
        cluster = StubCluster(self.log)
        self.roles, self.nodes = cluster.roles, cluster.nodes
        scenario = replace(loader.find("1"), faults=faults)
        self.scheduler = LiveFaultScheduler(
            scenario, cast(LiveCluster, cluster), Links(client), lambda: self.now_us, self.log.append
        )
        self.scheduler.plan(0)

    def run_until(self, at_s: float) -> None:
        while self.now_us < at_s * SECOND_US:
            self.now_us += 10_000
            self.scheduler.do_due()


@pytest.fixture
def tickle(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A kind of fault that only records the node that it hit."""
    hit: list[int] = []

    def begin(place: LiveFaultContext, target: FaultTarget) -> End:  # noqa: ARG001
        assert isinstance(target.fault.node, int)
        hit.append(target.fault.node)
        return lambda: Ended("it laughed")

    monkeypatch.setitem(BEGIN, "tickle", begin)
    monkeypatch.setitem(FAULT_KINDS, "tickle", FaultKind("tickle", "laughs"))
    return hit


def test_fault_for_role_waits_until_role_is_held(tickle: list[int]) -> None:
    world = SchedulerWorld(Fault("f", "tickle", at_s=1.0, duration_s=0.5, node="leader"))
    world.run_until(2.0)
    assert tickle == []
    world.roles.note(2, "leader")
    world.run_until(3.0)
    assert tickle == [2]
    (row,) = world.scheduler.rows
    assert (row.name, row.target, row.detail) == ("f", "node-2", "the controller: it laughed")
    assert 2 * SECOND_US <= row.at_us <= 2.1 * SECOND_US
    assert 500_000 <= row.until_us - row.at_us <= 520_000


def test_fault_for_role_without_holder_leaves_no_row(tickle: list[int]) -> None:
    world = SchedulerWorld(Fault("f", "tickle", at_s=1.0, node="leader"))
    world.run_until(NO_TARGET_LIMIT_S + 2)
    world.roles.note(2, "leader")
    world.run_until(NO_TARGET_LIMIT_S + 4)
    assert tickle == []
    assert world.scheduler.rows == []
    assert world.log[-1] == "fault f found no node to hit"


def test_each_repetition_is_aimed_again(tickle: list[int]) -> None:
    world = SchedulerWorld(Fault("f", "tickle", at_s=1.0, node="leader", repeat=2, repeat_every_s=1.0))
    world.roles.note(0, "leader")
    world.run_until(1.5)
    world.roles.note(1, "leader")
    world.run_until(3.0)
    assert tickle == [0, 1]
    assert [row.hit for row in world.scheduler.rows] == [1, 2]


def test_end_of_the_load_ends_what_is_open_and_begins_nothing(tickle: list[int]) -> None:
    world = SchedulerWorld(
        Fault("open", "tickle", at_s=1.0, duration_s=100.0), Fault("late", "tickle", at_s=50.0, node=1)
    )
    world.run_until(2.0)
    world.scheduler.end_all()
    assert tickle == [0]
    assert [row.name for row in world.scheduler.rows] == ["open"]


def test_node_killed_at_a_state_is_started_again_where_it_was_killed() -> None:
    world = SchedulerWorld(Fault("f", "node_killed", on="note", node="leader", restart_after_s=0.5))
    world.now_us = SECOND_US
    row = FaultRow("f", "node_killed", SECOND_US, SECOND_US, "node-2", 1, detail="leader metadata_committed")
    world.scheduler.evidence_line(2, {"fault": list(row.values())})
    assert world.scheduler.context.child(2).expected_end
    world.run_until(1.4)
    assert "restart 2" not in world.log
    world.run_until(1.6)
    assert "restart 2" in world.log
    (row,) = world.scheduler.rows
    assert row.detail == "leader metadata_committed pid 102 ended by SIGKILL"
    assert row.until_us >= 1_500_000


def test_node_paused_at_a_state_is_continued() -> None:
    world = SchedulerWorld(Fault("f", "node_paused", on="note", node="leader", duration_s=0.3))
    world.scheduler.evidence_line(1, {"fault": list(FaultRow("f", "node_paused", 0, 0, "node-1", 1).values())})
    world.run_until(0.2)
    assert "resume 1" not in world.log
    world.run_until(0.4)
    assert "resume 1" in world.log


def test_node_that_ends_itself_after_an_error_of_its_disk_is_started_again() -> None:
    world = SchedulerWorld(Fault("f", "disk_error", on="disk", node="any", restart_after_s=0.5))
    child: Any = world.scheduler.context.child(1)
    for _ in range(2):
        world.scheduler.evidence_line(1, {"fault": list(FaultRow("f", "disk_error", 0, 0, "node-1", 1).values())})
    assert child.expected_end
    world.run_until(1.0)
    assert "restart 1" not in world.log
    child.exit_status = 4
    world.run_until(1.2)
    world.run_until(7.0)
    assert world.log.count("restart 1") == 1


def test_node_that_goes_on_after_an_error_of_its_disk_may_not_end_long_after_it() -> None:
    world = SchedulerWorld(Fault("f", "disk_error", on="disk", node="any", restart_after_s=0.5))
    world.scheduler.evidence_line(1, {"fault": list(FaultRow("f", "disk_error", 0, 0, "node-1", 1).values())})
    world.run_until(ERROR_LIMIT_S - 0.1)
    assert world.scheduler.context.child(1).expected_end
    world.run_until(ERROR_LIMIT_S + 0.1)
    assert not world.scheduler.context.child(1).expected_end
    assert not world.log


def test_disk_evidence_of_an_order_before_is_forgotten() -> None:
    world = SchedulerWorld()
    orders: list[object] = []
    process = Child.__new__(Child)
    process.send_command = lambda **order: orders.append(order)  # type: ignore[method-assign]
    world.nodes[0].process = process
    world.scheduler.evidence_line(0, {"disk": ["disk_full", "old"]})
    world.scheduler.evidence_line(1, {"disk": ["disk_full", "another node's"]})
    assert world.scheduler.context.disk_evidence(0, "disk_full") == "old"
    world.scheduler.context.configure_disk_faults(0, {"full": True})
    assert world.scheduler.context.disk_evidence(0, "disk_full") == ""
    assert world.scheduler.context.disk_evidence(1, "disk_full") == "another node's"
    assert orders == [{"disk": {"full": True}}]


def test_damaged_file_of_undeleted_topic_must_stay(tmp_path: Path) -> None:
    world = SchedulerWorld()
    for name in ("idle-2", "made.admin-0.1-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "partition.metadata").write_text(name)
    world.scheduler.damage.note(tmp_path, [f"{name}/partition.metadata" for name in ("idle-2", "made.admin-0.1-0")])
    for name in ("idle-2", "made.admin-0.1-0"):
        (tmp_path / name / "partition.metadata").unlink()
    (check,) = world.scheduler.damage.judged(1)
    assert (check.holds, check.evidence) == (False, 1)


def test_scheduler_reports_active_and_next_faults(tickle: list[int]) -> None:
    world = SchedulerWorld(
        Fault("f", "tickle", at_s=1.0, duration_s=2.0, node=0), Fault("g", "tickle", at_s=5.0, node=1)
    )
    scheduler = world.scheduler
    assert scheduler.next_fault() == ("f", 1.0)
    world.run_until(2.0)
    assert scheduler.under_way == ["f"]
    assert scheduler.next_fault() == ("g", 3.0)
    world.run_until(6.0)
    assert scheduler.under_way == []
    assert scheduler.next_fault() is None
    assert tickle == [0, 1]
