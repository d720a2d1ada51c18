"""The rules of one file in all places: in the simulator, inside our node, in front of a node, and on links between."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from chaos.live.cluster_command import ClusterPlan, started
from chaos.live.errors import SetupError
from chaos.live.runner import check_playable, play_scenario
from chaos.live.tests.small_scenario import faults_of
from chaos.sim.one_seed import play_seed
from reports.manifest import read_manifest
from scenarios import loader
from scenarios.model import Fault

SCENARIO = "frame-faults"
ON_LINKS = "link-faults"
KINDS = {
    *("request_dropped", "request_delayed", "request_duplicated", "request_duplicated_response"),
    *("response_dropped", "response_delayed", "response_truncated", "response_error"),
}


def counted(rows: Iterable[tuple[str, str, str, int]]) -> Counter[tuple[str, str, str, int]]:
    """Count the hits of each rule, by kind, client and API."""
    return Counter(rows)


def live_hits(folder: Path) -> Counter[tuple[str, str, str, int]]:
    assert not read_manifest(folder).crash
    return counted((row["name"], row["kind"], row["client_id"], row["api_key"]) for row in faults_of(folder))


@pytest.mark.nightly
@pytest.mark.live
def test_rules_of_a_file_hit_the_same_in_all_three_places(tmp_path: Path) -> None:
    scenario = loader.find(SCENARIO)
    _, world = play_seed(scenario, 1)
    simulated = counted((row.name, row.kind, row.client_id, row.api_key) for row in world.faults)
    assert {kind for _, kind, _, _ in simulated} == KINDS
    play_scenario(scenario, tmp_path / "inside", seed=1)
    assert live_hits(tmp_path / "inside") == simulated
    with started(ClusterPlan(tmp_path / "external")) as cluster:
        (target,) = cluster.addresses
        play_scenario(scenario, tmp_path / "before", seed=1, target=target)
    assert live_hits(tmp_path / "before") == simulated


@pytest.mark.live
def test_rule_impossible_in_front_of_target_is_refused(tmp_path: Path) -> None:
    text = Path(loader.find(SCENARIO).path).read_text()
    with started(ClusterPlan(tmp_path / "external")) as cluster:
        (target,) = cluster.addresses
        for old, new, refusal in (
            ('"request_dropped"', '"node_killed"', "fault fetch-lost needs process control for node_killed"),
            ('"request_dropped"', '"request_damaged"', "request_damaged cannot be done by a proxy"),
            ("[load]\n", "[state]\nfetch_session_epoch = 5\n[load]\n", "is set inside the broker's process"),
        ):
            file = tmp_path / "changed.toml"
            file.write_text(text.replace(old, new))
            with pytest.raises(SetupError) as refused:
                check_playable(loader.load(file), target)
            assert refusal in str(refused.value)


@pytest.mark.nightly
@pytest.mark.live
def test_rules_on_links_between_nodes_hit_the_same_outside_the_nodes(tmp_path: Path) -> None:
    scenario = loader.find(ON_LINKS)
    _, world = play_seed(scenario, 1)
    play_scenario(scenario, tmp_path / "live", seed=1)
    assert not read_manifest(tmp_path / "live").crash
    rules = {fault.name: fault for fault in scenario.faults if not fault.timed}
    # Which node leads the quorum is the run's own affair, so rules for any sender are compared without the sender.
    simulated = on_links(rules, ((row.name, row.kind, row.client_id, row.target) for row in world.faults))
    hits = faults_of(tmp_path / "live")
    live = on_links(rules, ((row["name"], row["kind"], row["client_id"], row["target"]) for row in hits))
    assert {name for name, _, _, _ in simulated} == set(rules)
    assert live == simulated
    assert (tmp_path / "live" / "logs" / "link-frames.log").exists(), "no proxy stood on the links"


def on_links(
    rules: Mapping[str, Fault], rows: Iterable[tuple[str, str, str, str]]
) -> Counter[tuple[str, str, str, str]]:
    found = []
    for name, kind, sender, target in rows:
        link = rules[name].link if name in rules else None
        if link is not None:
            is_fixed = isinstance(link.source, int)
            found.append((name, kind, sender if is_fixed else "", target if is_fixed else ""))
    return Counter(found)
