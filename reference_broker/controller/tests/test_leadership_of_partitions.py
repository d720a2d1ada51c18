"""Leadership of partitions as brokers fall silent, return, restart and shut down."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from reference_broker.controller.broker_heartbeats import Heartbeat, HeartbeatResult
from reference_broker.controller.controller import QuorumController
from reference_broker.controller.leader_balance import MAX_ELECTIONS_AT_ONCE
from reference_broker.controller.planning.partition_changes import RECOVERED, RECOVERING
from reference_broker.controller.tests.replicated_topics import Brokers
from reference_broker.controller.write_operations import ApiError, ControllerWriteOperation, OnBug, Records
from reference_broker.metadata.image import NO_LEADER, MetadataImage
from reference_broker.metadata.records import ConfigRecord, PartitionChangeRecord
from reference_broker.ports.slicing import Sliced
from reference_broker.wire.errors import ErrorCode

SILENT_MS = 12_000
WITHOUT_ELR = {"crucible_bootstrap_eligible_leader_replicas": "0"}
"""A cluster that keeps no eligible leader replicas: the last in-sync replica stays in sync."""


def silenced(brokers: Brokers, broker_id: int, *others: int) -> None:
    brokers.pass_time(SILENT_MS, *others)
    assert brokers.image.brokers[broker_id].fenced


@pytest.mark.clause(
    "ReplicationControlManagerTest.testRemoveLeaderships", "ReplicationControlManagerTest.testFenceMultipleBrokers"
)
def test_fencing_elects_next_in_sync_replica_and_shrinks_isrs() -> None:
    brokers = Brokers(1, 2, 3)
    brokers.create("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    silenced(brokers, 1, 2, 3)
    assert brokers.states() == [(2, (2, 3), 1, 1), (2, (2, 3), 0, 1), (3, (3, 2), 0, 1)]


def test_isr_shrink_below_metadata_version_12_bumps_leader_epoch() -> None:
    brokers = Brokers(1, 2, 3, crucible_bootstrap_metadata_version="11")
    brokers.create("t", (2, 3, 1))
    silenced(brokers, 1, 2, 3)
    assert brokers.states() == [(2, (2, 3), 1, 1)]


@pytest.mark.clause(
    "QuorumControllerTest.testFenceMultipleBrokers",
    "ReplicationControlManagerTest.testFenceMultipleBrokers",
    "BrokerHeartbeatTrackerTest.testMaybeRemoveExpiredWithAllExpired",
)
def test_last_in_sync_replica_stays_in_isr_and_is_only_candidate() -> None:
    brokers = Brokers(1, 2, **WITHOUT_ELR)
    brokers.create("t", (1, 2))
    silenced(brokers, 1, 2)
    brokers.pass_time(SILENT_MS)
    assert brokers.states() == [(NO_LEADER, (2,), 2, 2)]
    brokers.beat(1)
    assert not brokers.image.brokers[1].fenced
    assert brokers.states() == [(NO_LEADER, (2,), 2, 2)]
    brokers.beat(2)
    assert brokers.states() == [(2, (2,), 3, 3)]


@pytest.mark.clause("PartitionChangeBuilderTest.testUncleanLeaderElection")
def test_lagging_replica_leads_only_if_unclean_election_is_enabled() -> None:
    brokers = Brokers(1, 2, **WITHOUT_ELR)
    brokers.create("t", (1, 2), unclean_leader_election_enable="true")
    brokers.create("u", (1, 2), number=2)
    silenced(brokers, 1, 2)
    brokers.pass_time(SILENT_MS)
    brokers.beat(1)
    assert brokers.states() == [(1, (1,), 3, 3)]
    assert brokers.image.topics["t"].partitions[0].leader_recovery_state == RECOVERING
    assert brokers.states("u") == [(NO_LEADER, (2,), 2, 2)]
    assert brokers.image.topics["u"].partitions[0].leader_recovery_state == RECOVERED


@pytest.mark.clause("ReplicationControlManagerTest.testMaybeTriggerUncleanLeaderElectionForLeaderlessPartitions")
def test_controller_config_applies_if_topic_has_none() -> None:
    brokers = Brokers(1, 2, unclean_leader_election_enable="true")
    brokers.create("t", (1, 2))
    brokers.create("u", (1, 2), number=2, unclean_leader_election_enable="false")
    silenced(brokers, 1, 2)
    brokers.pass_time(SILENT_MS)
    brokers.beat(1)
    assert (brokers.states()[0][0], brokers.states("u")[0][0]) == (1, NO_LEADER)


def test_new_incarnation_leaves_isrs_before_registration() -> None:
    brokers = Brokers(1, 2, 3, **WITHOUT_ELR)
    brokers.create("t", (1, 2, 3), (2, 1), (1,))
    brokers.restart(1)
    assert brokers.states() == [(2, (2, 3), 1, 1), (2, (2,), 0, 1), (1, (1,), 0, 0)]
    brokers.beat(1)
    assert brokers.states() == [(2, (2, 3), 1, 1), (2, (2,), 0, 1), (1, (1,), 1, 1)]


def test_restarted_only_in_sync_replica_leads_in_new_epoch() -> None:
    brokers = Brokers(1, 2, **WITHOUT_ELR)
    brokers.create("t", (1, 2))
    silenced(brokers, 2, 1)
    brokers.restart(1)
    assert brokers.states() == [(NO_LEADER, (1,), 1, 2)]
    brokers.beat(1)
    assert brokers.states() == [(1, (1,), 2, 3)]


@pytest.mark.clause(
    "ReplicationControlManagerTest.testProcessBrokerHeartbeatInControlledShutdown",
    "BrokerHeartbeatManagerTest.testCalculateNextBrokerState",
)
def test_controlled_shutdown_moves_leaders_and_completes_once_others_caught_up() -> None:
    brokers = Brokers(1, 2, 3)
    brokers.create("t", (1, 2, 3), (2, 3, 1))
    before = brokers.image.provenance.offset
    for broker_id in (2, 3):
        brokers.beat(broker_id)
    assert brokers.beat(1, shut_down=True) == HeartbeatResult(True, False, False)
    assert brokers.states() == [(2, (2, 3), 1, 1), (2, (2, 3), 0, 1)]
    assert (brokers.image.brokers[1].fenced, brokers.image.brokers[1].in_controlled_shutdown) == (False, True)
    assert not brokers.beat(1, shut_down=True).should_shut_down
    brokers.beat(2)
    brokers.beat(3, offset=before)
    assert not brokers.beat(1, shut_down=True).should_shut_down
    brokers.beat(3)
    assert brokers.image.brokers[1].fenced
    assert brokers.beat(1, shut_down=True) == HeartbeatResult(True, True, True)
    assert brokers.world.ports.notes_of("broker_leaves") == [{"broker": 1}]


def test_broker_in_mistaken_shutdown_registers_again() -> None:
    """One bit of a heartbeat was flipped in transit. Only the broker knows that it does not shut down."""
    brokers = Brokers(1, 2)
    brokers.create("t", (1, 2))
    brokers.beat(1, shut_down=True)
    brokers.beat(2)
    assert brokers.image.brokers[1].fenced
    before, offset = brokers.image.brokers[1], brokers.image.provenance.offset
    refused = brokers.world.controller.heartbeats.heartbeat(Heartbeat(1, brokers.epochs[1], offset, False, False))
    assert isinstance(refused, ApiError)
    assert refused.error is ErrorCode.stale_broker_epoch
    brokers.request_registration(1, incarnation=before.incarnation_id)
    brokers.world.settle()
    brokers.beat(1)
    after = brokers.image.brokers[1]
    assert after.incarnation_id == before.incarnation_id
    assert after.broker_epoch > before.broker_epoch
    assert (after.fenced, after.in_controlled_shutdown) == (False, False)


def test_broker_in_shutdown_is_not_elected_even_uncleanly() -> None:
    brokers = Brokers(1, 2, **WITHOUT_ELR)
    brokers.create("t", (1, 2), unclean_leader_election_enable="true")
    brokers.beat(1, shut_down=True)
    assert not brokers.image.brokers[1].fenced
    brokers.beat(2, fence=True)
    assert brokers.states() == [(NO_LEADER, (2,), 2, 2)]


def test_silent_broker_does_not_delay_controlled_shutdown() -> None:
    brokers = Brokers(1, 2, 3)
    brokers.create("t", (1, 2, 3))
    brokers.beat(1, shut_down=True)
    for _ in range(SILENT_MS // 2000):
        brokers.beat(2)
        brokers.beat(1, shut_down=True)
        brokers.pass_time(2000)
    assert brokers.image.brokers[3].fenced
    assert brokers.beat(1, shut_down=True).should_shut_down


def test_new_controller_continues_controlled_shutdown() -> None:
    brokers = Brokers(1, 2)
    brokers.create("t", (1, 2))
    brokers.beat(1, shut_down=True)
    brokers.world.lose()
    brokers.world.win()
    brokers.world.settle()
    assert not brokers.beat(1, shut_down=True).should_shut_down
    brokers.beat(2, offset=brokers.image.brokers[2].broker_epoch)
    assert not brokers.beat(1, shut_down=True).should_shut_down, "the other may not have the new leaders yet"
    brokers.beat(2)
    assert brokers.beat(1, shut_down=True).should_shut_down


@pytest.mark.clause("BrokerHeartbeatManagerTest.testControlledShutdownOffsetIsOnlyUpdatedOnce")
def test_controlled_shutdown_waits_only_for_its_own_offset() -> None:
    brokers = Brokers(1, 2)
    brokers.create("t", (1, 2))
    brokers.beat(1, shut_down=True)
    leave = brokers.image.provenance.offset
    brokers.create("u", (2,), number=2)
    assert not brokers.beat(1, shut_down=True).should_shut_down
    brokers.beat(2, offset=leave)
    assert brokers.beat(1, shut_down=True).should_shut_down


def test_pending_request_of_old_incarnation_does_not_affect_new_one() -> None:
    brokers = Brokers(1, 2)
    brokers.beat(1, fence=True)

    def busy() -> Sliced[Records]:
        yield
        return ()

    brokers.world.submit(busy, lambda _: None)
    old = brokers.epochs[1]
    brokers.request_registration(1)
    result = brokers.world.controller.heartbeats.heartbeat(Heartbeat(1, old, 10**6, False, False))
    assert isinstance(result, HeartbeatResult), "the old one is still the latest"
    brokers.world.controller.heartbeats.forget(1)  # Its session ends while the controller is busy.
    brokers.world.settle()
    assert brokers.image.brokers[1].broker_epoch > old
    assert brokers.image.brokers[1].fenced, "the new one has not opened its partitions"


def test_last_broker_shuts_down_at_once_and_leads_after_restart() -> None:
    brokers = Brokers(1, **WITHOUT_ELR)
    brokers.create("t", (1,))
    brokers.beat(1, shut_down=True)
    assert brokers.beat(1, shut_down=True).should_shut_down
    assert brokers.states() == [(NO_LEADER, (1,), 1, 1)]
    brokers.restart(1)
    brokers.beat(1)
    assert brokers.states() == [(1, (1,), 2, 2)]


def _joined(brokers: Brokers, isr: tuple[int, ...]) -> None:
    """Apply the ISR of caught-up replicas, as AlterPartition does."""
    changes = [
        replace_isr(brokers.image.topics["t"].topic_id, index, isr)
        for index in range(len(brokers.image.topics["t"].partitions))
    ]
    brokers.world.submit(lambda: changes, lambda _: None)
    brokers.world.settle()


def replace_isr(topic_id: bytes, index: int, isr: tuple[int, ...] | None) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=topic_id, partition_id=index, isr=isr, eligible_leader_replicas=())


@pytest.mark.clause("QuorumControllerTest.testBalancePartitionLeaders")
def test_leader_balance_restores_preferred_leaders() -> None:
    brokers = Brokers(1, 2)
    brokers.create("t", (1, 2))
    silenced(brokers, 1, 2)
    brokers.beat(1)
    brokers.pass_time(300_000, 1, 2)
    assert brokers.states()[0][0] == 2, "the preferred replica is not in sync"
    _joined(brokers, (2, 1))
    brokers.pass_time(302_000, 1, 2)
    assert brokers.states()[0][:2] == (1, (2, 1))


@pytest.mark.clause(
    "QuorumControllerTest.testBalancePartitionLeaders", "ReplicationControlManagerTest.testBalancePartitionLeaders"
)
@pytest.mark.parametrize(("count", "leaders"), [(3, {2}), (MAX_ELECTIONS_AT_ONCE + 600, {2})])
def test_leader_balance_can_be_disabled_and_is_limited_per_run(count: int, leaders: set[int]) -> None:
    for enabled, expected in (("false", leaders), ("true", {1})):
        brokers = Brokers(1, 2, auto_leader_rebalance_enable=enabled)
        brokers.create("t", *((1, 2),) * count)
        silenced(brokers, 1, 2)
        brokers.beat(1)
        _joined(brokers, (1, 2))
        brokers.pass_time(302_000, 1, 2)
        assert {state[0] for state in brokers.states()} == expected


def test_idle_cluster_is_not_checked() -> None:
    brokers = Brokers(1, 2)
    brokers.create("t", (1, 2))
    brokers.pass_time(602_000, 1, 2)
    submitted: list[str] = []
    brokers.world.controller.balance.controller = _Spy(brokers.world.controller, submitted)
    brokers.pass_time(602_000, 1, 2)
    assert submitted == []
    brokers.create("u", (2, 1), number=2)
    brokers.pass_time(302_000, 1, 2)
    assert submitted == ["balance leaders"]


class _Spy:
    def __init__(self, controller: QuorumController, submitted: list[str]) -> None:
        self._controller, self._submitted = controller, submitted

    def append_write_event(
        self, change: ControllerWriteOperation[Any], completed: Callable[[Any], None], on_bug: OnBug | None = None
    ) -> None:
        self._submitted.append(change.name)
        self._controller.append_write_event(change, completed, on_bug)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)


@pytest.mark.clause("ReplicationControlManagerTest.testMaybeTriggerUncleanLeaderElectionForLeaderlessPartitions")
def test_enabling_unclean_election_elects_leader() -> None:
    brokers = Brokers(1, 2)
    brokers.create("t", (1, 2))
    silenced(brokers, 1, 2)
    brokers.pass_time(SILENT_MS)
    brokers.beat(1)
    allowed = ConfigRecord(resource_type=2, resource_name="t", name="unclean.leader.election.enable", value="true")
    brokers.world.submit(lambda: [allowed], lambda _: None)
    brokers.pass_time(302_000, 1)
    assert brokers.states()[0][:2] == (1, (1,))


def test_many_leader_changes_are_planned_in_slices() -> None:
    brokers = Brokers(1, 2)
    brokers.create("t", *((1, 2),) * 3000)
    world = brokers.world
    before = world.ports.events
    silenced(brokers, 1, 2)
    assert world.ports.events - before > 3000 * 5 // 250
    assert {state[:2] for state in brokers.states()} == {(2, (2,))}


def test_new_controller_elects_leaders_left_missing_by_predecessor() -> None:
    brokers = Brokers(1, 2)
    brokers.create("t", (1, 2), (2, 1), *((1, 2),) * MAX_ELECTIONS_AT_ONCE)
    ids = brokers.image.topics["t"].topic_id
    left = [replace(replace_isr(ids, index, None), leader=NO_LEADER) for index in range(2 + MAX_ELECTIONS_AT_ONCE)]
    moved = replace(replace_isr(ids, 1, (1,)), leader=1)
    brokers.world.submit(lambda: [left[0], moved, *left[2:]], lambda _: None)
    brokers.world.settle()
    assert brokers.states()[0][0] == NO_LEADER
    _joined(brokers, (1, 2))
    brokers.world.lose()
    brokers.world.win()
    brokers.world.settle()
    assert {state[0] for state in brokers.states()} == {1}, "the preferred leader of partition 1 has its turn later"


class Leaders(RuleBasedStateMachine):
    """Invariants of any history: no fenced or leaving broker leads, leaders are in sync, an electable replica is
    elected,
    epochs never go back and grow with each change of leader."""

    @initialize()
    def start(self) -> None:
        self.brokers = Brokers(1, 2, 3)
        self.brokers.create("t", (1, 2, 3), (2, 3), (3, 1), (1,))
        self.before = self.brokers.image.topics["t"].partitions

    @rule(broker_id=st.integers(1, 3))
    def restart(self, broker_id: int) -> None:
        self.brokers.restart(broker_id)

    @rule(broker_id=st.integers(1, 3), fence=st.booleans(), shut_down=st.booleans())
    def beat(self, broker_id: int, fence: bool, shut_down: bool) -> None:
        """Send a heartbeat. A broker that shuts down says so in each one."""
        has_left = _has_left(self.brokers.image, broker_id)
        self.brokers.beat(broker_id, fence=fence, shut_down=shut_down or has_left)

    @rule()
    def be_silent(self) -> None:
        self.brokers.pass_time(SILENT_MS)

    @rule(index=st.integers(0, 3))
    def catch_up(self, index: int) -> None:
        topic = self.brokers.image.topics["t"]
        partition = topic.partitions[index]
        live = [replica for replica in partition.replicas if _is_active(self.brokers.image, replica)]
        if partition.leader in live:
            record = replace_isr(topic.topic_id, index, tuple(live))
            self.brokers.world.submit(lambda: [record], lambda _: None)
            self.brokers.world.settle()

    @invariant()
    def leaders_are_fit(self) -> None:
        image = self.brokers.image
        after = image.topics["t"].partitions
        for old, new in zip(self.before, after, strict=True):
            assert new.isr or new.elr or new.last_known_elr
            assert new.leader_epoch >= old.leader_epoch
            assert new.partition_epoch - old.partition_epoch >= new.leader_epoch - old.leader_epoch
            if new.leader != old.leader:
                assert new.leader_epoch > old.leader_epoch
            if new.leader == NO_LEADER:
                assert not any(_is_active(image, each) for each in new.isr or new.elr or new.last_known_elr)
            else:
                assert new.leader in new.isr
                assert _is_active(image, new.leader) or len(new.replicas) == 1
        self.before = after


def _has_left(image: MetadataImage, broker_id: int) -> bool:
    broker = image.brokers[broker_id]
    return broker.fenced and broker.in_controlled_shutdown


def _is_active(image: MetadataImage, broker_id: int) -> bool:
    broker = image.brokers[broker_id]
    return not broker.fenced and not broker.in_controlled_shutdown


Leaders.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
test_leaders = Leaders.TestCase
