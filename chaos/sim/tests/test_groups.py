"""The simulator's faults of clusters with consumer groups: rolling bounces, features, the cut from the controller."""

from dataclasses import replace
from itertools import pairwise

import pytest

from chaos.sim.one_seed import play_seed
from reports.verdict import Outcome
from scenarios import loader
from scenarios.model import Fault, Scenario

pytestmark = pytest.mark.simulated

PLAIN = loader.find("leader-killed-under-acks-all")
FEATURE = "crucible.metadata.epoch"


def with_faults(*faults: Fault, config: tuple[tuple[str, str], ...] = ()) -> Scenario:
    cluster = replace(PLAIN.cluster, config=(*PLAIN.cluster.config, *config))
    return replace(PLAIN, faults=faults, cluster=cluster, load=replace(PLAIN.load, sim_seconds=14.0))


@pytest.mark.clause("M-14")
def test_each_node_is_bounced_once_and_comes_back_with_other_settings() -> None:
    bounce = Fault(
        "bounce",
        "rolling_bounce",
        at_s=1,
        sim_at_s=1,
        restart_after_s=0.5,
        between_s=0.5,
        config=(("num.partitions", "7"),),
    )
    verdict, world = play_seed(with_faults(bounce), 1)
    assert verdict.outcome is Outcome.PASSED, (verdict.violations, verdict.reasons)
    restarted = [row for row in world.faults if row.name == "bounce"]
    assert [row.target for row in restarted] == ["node-0", "node-1", "node-2"]
    assert all(one.until_us <= two.at_us for one, two in pairwise(restarted))
    for machine in world.cluster.machines:
        assert machine.node is not None
        assert machine.node.broker.config.num_partitions == 7
        assert machine.incarnation == 1


def test_bounce_that_does_not_reach_each_node_is_invalid() -> None:
    late = Fault("bounce", "rolling_bounce", at_s=13, sim_at_s=9, restart_after_s=2, between_s=9)
    verdict, _ = play_seed(with_faults(late), 1)
    assert verdict.outcome is Outcome.INVALID
    assert any("fired 1 of 3 times" in reason for reason in verdict.reasons)


@pytest.mark.clause("M-14")
@pytest.mark.parametrize("is_known", [True, False])
def test_feature_is_finalized_where_all_know_it(is_known: bool) -> None:
    switch = Fault("switch", "feature_finalized", at_s=2, sim_at_s=2, feature=FEATURE, level=1)
    config = (("crucible.bootstrap.metadata.epoch", "0"), (f"{FEATURE}.enable", str(is_known).lower()))
    verdict, world = play_seed(with_faults(switch, config=config), 1)
    assert verdict.outcome is (Outcome.PASSED if is_known else Outcome.INVALID), (verdict.violations, verdict.reasons)
    for machine in world.cluster.machines:
        assert machine.node is not None
        image = machine.node.broker.quorum_node.loader.image
        assert image.features.get(FEATURE, 0) == int(is_known)


def test_only_the_links_between_a_node_and_the_controller_are_cut() -> None:
    cut = Fault("cut", "node_cut_from_controller", at_s=2, sim_at_s=2, node="follower", sim_duration_s=3)
    _, world = play_seed(with_faults(cut), 1)
    (row,) = (fault for fault in world.faults if fault.name == "cut")
    (one, other), *more = sorted(world.checks[0].context.replicas.fault_times.links)
    assert more == [(other, one)]
    assert int(row.target[5:]) in (one, other)


def test_mirror_copies_to_the_second_cluster() -> None:
    verdict, world = play_seed(loader.find("mirror"), 1)
    assert verdict.outcome is Outcome.PASSED, (verdict.violations, verdict.reasons)
    target = world.cluster.target
    assert target is not None
    assert target not in world.cluster.machines
    assert sum(row.count for row in world.history.copies) >= verdict.acked
    copied = {(row.partition, row.count == 0) for row in world.history.target_runs}
    assert copied == {(partition, ended) for partition in range(4) for ended in (False, True)}
