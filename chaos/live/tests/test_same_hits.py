"""The rules of one file in three places: in the simulator, inside our node, and in front of a node that is not ours."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from chaos.live.cluster import ClusterPlan, addresses_of, started
from chaos.live.errors import SetupError
from chaos.live.runner import check_playable, play
from chaos.live.tests.small_scenario import faults_of
from chaos.search.run_sim import play as simulate
from reports.manifest import read_manifest
from scenarios import loader

SCENARIO = "frame-faults"
KINDS = {
    *("request_dropped", "request_delayed", "request_duplicated", "request_duplicated_answered"),
    *("response_dropped", "response_delayed", "response_truncated", "response_error"),
}


def counted(rows: Iterable[tuple[str, str, str, int]]) -> Counter[tuple[str, str, str, int]]:
    """Counts the hits of each rule, by kind, client and API."""
    return Counter(rows)


def live_hits(folder: Path) -> Counter[tuple[str, str, str, int]]:
    assert not read_manifest(folder).crash
    return counted((row["name"], row["kind"], row["client_id"], row["api_key"]) for row in faults_of(folder))


@pytest.mark.live
def test_the_rules_of_a_file_hit_the_same_in_all_three_places(tmp_path: Path) -> None:
    scenario = loader.find(SCENARIO)
    _, world = simulate(scenario, 1)
    simulated = counted((row.name, row.kind, row.client_id, row.api_key) for row in world.faults)
    assert {kind for _, kind, _, _ in simulated} == KINDS
    play(scenario, tmp_path / "inside", seed=1)
    assert live_hits(tmp_path / "inside") == simulated
    with started(ClusterPlan(tmp_path / "foreign")) as members:
        (target,) = addresses_of(members)
        play(scenario, tmp_path / "before", seed=1, target=target)
    assert live_hits(tmp_path / "before") == simulated


@pytest.mark.live
def test_what_nobody_can_do_in_front_of_a_target_is_refused(tmp_path: Path) -> None:
    text = Path(loader.find(SCENARIO).path).read_text()
    with started(ClusterPlan(tmp_path / "foreign")) as members:
        (target,) = addresses_of(members)
        for old, new, told in (
            ('"request_dropped"', '"node_killed"', "fault fetch-lost needs a process that we started"),
            ('"request_dropped"', '"request_damaged"', "request_damaged cannot be done by a proxy"),
            ('node = "any"', 'node = "leader"', "does not know what role a node has"),
            ("[load]\n", "[state]\nfetch_session_epoch = 5\n[load]\n", "is set inside the broker's process"),
        ):
            file = tmp_path / "changed.toml"
            file.write_text(text.replace(old, new))
            with pytest.raises(SetupError) as refused:
                check_playable(loader.load(file), target)
            assert told in str(refused.value)
