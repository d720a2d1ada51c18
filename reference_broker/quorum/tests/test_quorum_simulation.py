"""The nine properties of Kafka's RaftEventSimulationTest, storms of faults, and mutants that the checks must detect.

All invariants of ``quorum_invariants`` are checked after every event.
"""

from collections.abc import Callable
from functools import partial

import pytest

from reference_broker.quorum import raft_handlers
from reference_broker.quorum.follower import FollowerState
from reference_broker.quorum.messages import VoteRequest
from reference_broker.quorum.metadata_log import LogSync, MetadataLog
from reference_broker.quorum.raft_client import KafkaRaftClient
from reference_broker.quorum.raft_handlers import RaftResponder
from reference_broker.quorum.tests.quorum_storm import settle, weather
from reference_broker.quorum.tests.quorum_world import SECOND_US, Process, SimulatedQuorum

pytestmark = pytest.mark.simulated

SEEDS = [*range(5), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(5, 100))]
"""Kafka plays 100 seeds of each property. CI plays the first few, and the nightly session the others."""


def running(seed: int, voters: int, observers: int = 0, period_us: int = 20_000) -> SimulatedQuorum:
    world = SimulatedQuorum(seed, voters, observers)
    world.start()
    world.keep_appending(period_us)
    world.run_until(lambda: world.high_watermark() >= 10)
    return world


def leader_of(world: SimulatedQuorum) -> int:
    assert world.leader is not None
    return world.leader.node_id


def others(world: SimulatedQuorum, *node_ids: int) -> list[int]:
    return [each for each in world.ids if each not in node_ids]


def has_reached(world: SimulatedQuorum, node_ids: list[int], offset: int) -> bool:
    return world.high_watermark(*node_ids) >= offset


def another_leads(world: SimulatedQuorum, old: int) -> bool:
    return world.leader is not None and leader_of(world) != old


def follow_another(processes: list[Process], old: int) -> bool:
    return all(process.quorum.leader_id not in (-1, old) for process in processes)


@pytest.mark.clause("RaftEventSimulationTest.canElectInitialLeader")
@pytest.mark.parametrize("seed", SEEDS)
def test_can_elect_an_initial_leader(seed: int) -> None:
    """One to five voters, with up to five observers."""
    voters, observers = 1 + seed % 5, (seed + seed // 5) % 6
    world = running(seed, voters, observers)
    assert len(world.invariants.leaders) >= 1
    world.run(SECOND_US)
    assert world.converged()


@pytest.mark.clause("RaftEventSimulationTest.canElectNewLeaderAfterOldLeaderFailure")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("end", [SimulatedQuorum.kill, SimulatedQuorum.shut_down])
def test_can_elect_a_new_leader_after_the_old_one_failed(
    seed: int, end: Callable[[SimulatedQuorum, int], None]
) -> None:
    world = running(seed, 3, 1)
    old = leader_of(world)
    end(world, old)
    world.run_until(lambda: world.high_watermark(*others(world, old)) >= 20)
    world.run_until(lambda: old not in world.processes)
    world.start(old)
    settle(world)


def test_voters_paused_together_do_not_split_votes() -> None:
    """As on one machine that was stopped for a while: all fetch timeouts have expired at the same instant."""
    epochs = 0
    for seed in range(10):
        world = running(seed, 3)
        before = world.processes[0].quorum.epoch
        old = leader_of(world)
        world.network.isolate(old)
        rest = [world.processes[node] for node in others(world, old)]
        for process in rest:
            world.pause(process.node_id)
        world.run(5 * SECOND_US)
        for process in rest:
            world.resume(process.node_id)
        world.run_until(partial(follow_another, rest, old))
        epochs += rest[0].quorum.epoch - before
    assert epochs <= 14, f"{epochs} epochs for 10 elections"


@pytest.mark.clause("RaftEventSimulationTest.canRecoverAfterAllNodesKilled")
@pytest.mark.parametrize("seed", SEEDS)
def test_can_recover_after_all_nodes_were_killed(seed: int) -> None:
    world = running(seed, 5, 1)
    for node in world.ids:
        world.kill(node, power_loss=bool(seed % 2))
    back = world.ids[seed % 3 : seed % 3 + 3]
    world.start(*back)
    world.run_until(lambda: world.high_watermark(*back) >= 20)
    world.start(*others(world, *back))
    settle(world)


@pytest.mark.clause("RaftEventSimulationTest.canElectNewLeaderAfterOldLeaderPartitionedAway")
@pytest.mark.parametrize("seed", SEEDS)
def test_can_elect_a_new_leader_after_the_old_one_was_partitioned_away(seed: int) -> None:
    world = running(seed, 4, 1)
    old = leader_of(world)
    world.network.isolate(old)
    world.run_until(lambda: world.high_watermark(*others(world, old)) >= 20)
    assert not world.processes[old].quorum.is_leader or leader_of(world) != old
    world.network.heal()
    settle(world)


@pytest.mark.clause("RaftEventSimulationTest.canMakeProgressIfMajorityIsReachable")
@pytest.mark.parametrize("seed", SEEDS)
def test_can_make_progress_if_a_majority_is_reachable(seed: int) -> None:
    world = running(seed, 5)
    few = world.ids[:2] if seed % 2 else [leader_of(world), (leader_of(world) + 1) % 5]
    many = others(world, *few)
    for one in few:
        for other in many:
            world.network.cut[one, other] = world.network.cut[other, one] = True
    world.run(3 * SECOND_US)
    held = max(world.processes[each].quorum.high_watermark for each in few)
    world.run_until(lambda: world.high_watermark(*many) >= held + 20)
    assert max(world.processes[each].quorum.high_watermark for each in few) == held
    world.network.heal()
    settle(world)


@pytest.mark.clause("RaftEventSimulationTest.canMakeProgressAfterBackToBackLeaderFailures")
@pytest.mark.parametrize("seed", SEEDS)
def test_can_make_progress_after_back_to_back_leader_failures(seed: int) -> None:
    world = running(seed, 3, 1)
    for _ in range(3):
        gone = leader_of(world)
        world.network.isolate(gone)
        reached = world.high_watermark(*others(world, gone))
        world.run_until(partial(has_reached, world, others(world, gone), reached + 10))
        world.network.heal()
    settle(world)


@pytest.mark.clause("RaftEventSimulationTest.leadershipAssignedOnlyOnceWithNetworkPartitionIfThereExistsMajority")
@pytest.mark.parametrize("seed", SEEDS)
def test_leadership_is_assigned_only_once_with_a_partition_if_there_is_a_majority(seed: int) -> None:
    """Node 0 reaches only one other node, which the others do not mind."""
    world = SimulatedQuorum(seed, 4, 1)
    for other in (2, 3):
        world.network.cut[0, other] = world.network.cut[other, 0] = True
    world.start()
    world.keep_appending(500_000)
    world.run_until(lambda: world.high_watermark(1, 2, 3) >= 5)
    elected = dict(world.invariants.leaders)
    world.run(10 * SECOND_US)
    if leader_of(world) == 1:  # All reach it.
        assert world.invariants.leaders == elected
    assert len(world.invariants.leaders) <= 3, "leadership goes to and fro"


@pytest.mark.clause("RaftEventSimulationTest.leadershipWillNotChangeDuringNetworkPartitionIfMajorityStillReachable")
@pytest.mark.parametrize("seed", SEEDS)
def test_leadership_does_not_change_while_a_majority_is_reachable(seed: int) -> None:
    """Pre-vote: a follower that lost contact with the leader, but not with the others, causes no election, also
    later."""
    world = running(seed, 5, period_us=500_000)
    leader = leader_of(world)
    epoch = world.processes[leader].quorum.epoch
    lonely = (leader + 1) % 5
    world.network.cut[leader, lonely] = world.network.cut[lonely, leader] = True
    world.run(6 * SECOND_US)
    world.network.isolate((leader + 2) % 5)
    world.run(6 * SECOND_US)
    world.network.heal()
    world.run(5 * SECOND_US)
    assert {process.quorum.epoch for process in world.processes.values()} == {epoch}
    assert leader_of(world) == leader
    settle(world)


@pytest.mark.clause("RaftEventSimulationTest.canRecoverFromSingleNodeCommittedDataLoss")
@pytest.mark.parametrize("seed", SEEDS)
def test_can_recover_from_the_data_loss_of_a_single_node(seed: int) -> None:
    """A voter restarts without any files, while the others are up."""
    world = running(seed, 5, 1)
    lost = leader_of(world) if seed % 2 else (leader_of(world) + 1) % 5
    world.kill(lost)
    world.wipe(lost)
    rest = others(world, lost)
    world.run_until(lambda: world.high_watermark(*rest) >= 20)
    world.start(lost)
    settle(world)


@pytest.mark.parametrize("seed", range(6))
def test_invariants_hold_in_storm(seed: int) -> None:
    weather(seed, seconds=8)


def test_seed_repeats_run() -> None:
    first, second = weather(11, seconds=4), weather(11, seconds=4)
    assert first.time_us == second.time_us
    assert first.events == second.events
    assert first.states() == second.states()


@pytest.mark.parametrize("seed", SEEDS)
def test_resumes_after_long_pauses(seed: int) -> None:
    world = running(seed, 3)
    old = leader_of(world)
    world.pause(old)
    world.run_until(lambda: world.high_watermark(*others(world, old)) >= 20)
    world.resume(old)
    settle(world)


def test_killed_leader_is_detected_by_closed_connections() -> None:
    for seed in range(5):
        world = running(seed, 3)
        old = leader_of(world)
        world.kill(old)
        killed_us = world.time_us
        world.run_until(partial(another_leads, world, old))
        assert world.time_us - killed_us < 500_000, "half a fetch timeout"


# The checks detect defects


def _votes_at_once(_quorum: KafkaRaftClient, done: Callable[[], None]) -> None:
    """Vote without waiting for the disk."""
    done()


def _unsynced_end(log: MetadataLog) -> int:
    return log.end.offset


def _fetch_at_once(follower: FollowerState) -> None:
    if not follower._is_fetching:
        follower._is_fetching = True
        follower._fetch()


def _votes_again(_quorum: KafkaRaftClient, _request: object, is_log_up_to_date: bool, reply: RaftResponder) -> None:
    reply.accept(granted=is_log_up_to_date)


def _votes_for_short_logs(quorum: KafkaRaftClient, request: VoteRequest, _: bool, reply: RaftResponder) -> None:
    _JUDGE(quorum, request, True, reply)


_JUDGE = raft_handlers._decide_vote


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (KafkaRaftClient, "_write_quorum_state", _votes_at_once),
        (MetadataLog, "synced_offset", property(_unsynced_end)),
        (FollowerState, "_fetch_when_synced", _fetch_at_once),
        (raft_handlers, "_decide_vote", _votes_again),
        (raft_handlers, "_decide_vote", _votes_for_short_logs),
    ],
)
def test_mutant_is_killed(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, mutant: object) -> None:
    monkeypatch.setattr(owner, name, mutant)
    for seed in range(40):
        try:
            weather(seed, seconds=8)
        except AssertionError:
            return
    pytest.fail("40 storms, and no invariant failed")


def test_syncs_are_shared() -> None:
    world = running(1, 1)
    process = world.processes[0]
    request: list[tuple[str, ...]] = []
    sync = process.sync

    def counted(paths: tuple[str, ...], done: Callable[[], None]) -> None:
        request.append(paths)
        sync(paths, done)

    process.sync = counted  # type: ignore[method-assign]
    world.run_until(lambda: process.quorum.log_sync.in_flight is None)
    for _ in range(5):
        world._append(process)
    assert len(request) == 1, "one in flight, the others wait for the next"
    assert isinstance(process.quorum.log_sync, LogSync)
