"""Requirements of a scenario for a target, and refusals where they are not met."""

from pathlib import Path

import pytest

from bench.targets.model import Chosen
from chaos.live.errors import SetupError
from chaos.live.external import needs
from chaos.live.external.cluster import TargetNodes
from chaos.live.external.needs import chosen, needs_links, playable
from chaos.live.launchers import ProcessLauncher
from chaos.live.tests.small_scenario import text_of, written
from scenarios.derived import for_external_target
from scenarios.loader import find, load
from scenarios.model import Scenario
from scenarios.revisions import in_revision

NOT_REFUSED = (
    "1", "2", "3", "4", "27", "kill-under-load", "leader-killed-under-acks-all", "coordinator-killed", "mirror",
    "44", "45", "47", "48",
)  # fmt: skip


def target(folder: Path, text: str) -> Chosen:
    path = folder / "mine.toml"
    path.write_text(f'title = "Mine"\n{text}')
    return chosen(str(path))


@pytest.fixture(autouse=True)
def four_nodes_are_advertised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "discover", lambda _: (["a:1", "b:2", "c:3", "d:4"], {}))


@pytest.mark.parametrize("name", NOT_REFUSED)
def test_scenario_is_playable_against_kafka_target(name: str) -> None:
    played = playable(for_external_target(in_revision(find(name), "final")), chosen("kafka"))
    assert played.expected_faults
    assert not any(group.metadata_epoch for group in played.load.groups)


def test_faults_only_known_inside_broker_are_replaced() -> None:
    played = playable(for_external_target(find("coordinator-killed")), chosen("kafka"))
    assert [fault.name for fault in played.faults] == [
        "links_late", "killed_after_commit", "killed_in_generation", "killed_by_hand",
    ]  # fmt: skip
    assert needs_links(played)


def test_optional_faults_that_cannot_be_played_are_left_out(tmp_path: Path) -> None:
    unlinked = target(tmp_path, 'nodes = 3\n[node]\ncommand = ["x"]\n')
    played = playable(for_external_target(find("leader-killed-under-acks-all")), unlinked)
    assert [fault.name for fault in played.faults] == ["leader_killed"]
    assert not needs_links(played)


def test_rules_of_links_and_of_roles_are_played_where_we_stand_between_nodes(tmp_path: Path) -> None:
    linked = playable(for_external_target(find("link-faults")), chosen("kafka"))
    assert linked.expected_faults == find("link-faults").expected_faults
    assert needs_links(linked)
    assert not needs_links(playable(with_fault(tmp_path, 'node = "leader"'), chosen("kafka")))
    at_requester = with_fault(tmp_path, 'node = "any"', kind="node_killed", on='on = "peer_response"')
    assert needs_links(playable(at_requester, chosen("kafka")))


def with_fault(folder: Path, *words: str, kind: str = "response_dropped", on: str = 'on = "response"') -> Scenario:
    """A scenario of three nodes with one fault."""
    fault = "\n".join(("[[fault]]", 'name = "it"', f'kind = "{kind}"', on, *words))
    return load(written(folder, "needy", text_of("Needs", 1, CLUSTER, 10, fault)))


CLUSTER = """
[cluster]
nodes = 3

[load]
seconds = 1

[[load.topics]]
name = "hot"
partitions = 1
"""
OF_ONE = '[node]\ncommand = ["x"]\none_process = true\nlinks = "peers"'
ELSEWHERE = 'addresses = ["a:1", "b:2", "c:3"]\n[commands]\nstart = "x"\nstop = "x"\nkill = "x"'
LOST = ("response_dropped", 'on = "response"')
AT_REQUESTER = ("node_killed", 'on = "peer_response"')
VANISHED = ("host_lost", "at_s = 0")
BOUNCED = ("rolling_bounce", "at_s = 0")
EMPTIED = ("directory_missing", "at_s = 0")
DELETED, NAMED = ("files_missing", "at_s = 0"), 'match = { path = "*.snapshot" }'


@pytest.mark.parametrize(
    ("kind", "words", "text", "lack"),
    [
        (LOST, 'link = "1>0"', 'nodes = 3\n[node]\ncommand = ["x"]', "directed links between nodes"),
        (LOST, 'link = "1>0"', 'addresses = ["a:1"]', "directed links between nodes"),
        (LOST, 'match = { api = "vote" }', 'nodes = 3\n[node]\ncommand = ["x"]', "faults between nodes need a link"),
        (LOST, 'node = "leader"', f"nodes = 3\n{OF_ONE}", "nodes with roles, each a process of its own"),
        (BOUNCED, "restart_after_s = 1", f"nodes = 3\n{OF_ONE}", "one process for each node"),
        (BOUNCED, "restart_after_s = 1", 'addresses = ["a:1"]', "process control for rolling_bounce"),
        (BOUNCED, 'config = { "a.b" = 1 }', ELSEWHERE, "other settings for a node, which it gets only if we start it"),
        (BOUNCED, 'config = { "a.b" = 1 }', "", ""),
        (EMPTIED, "duration_s = 1", f"nodes = 3\n{OF_ONE}", "a data directory for each node"),
        (EMPTIED, "duration_s = 1", ELSEWHERE, "the data directory of a node, which is known only if we start it"),
        (EMPTIED, "duration_s = 1", "", ""),
        (VANISHED, "", 'nodes = 3\n[node]\ncommand = ["x"]', "directed links between nodes"),
        (VANISHED, "", f"nodes = 3\n{OF_ONE}", "one process for each node"),
        (VANISHED, "", 'addresses = ["a:1"]', "process control for host_lost"),
        (
            VANISHED,
            "",
            'addresses = ["a:1", "b:2", "c:3"]\n[commands]\nstart = "x"',
            "process control by commands.kill",
        ),
        (VANISHED, "", ELSEWHERE, "directed links between nodes"),
        (VANISHED, "", "", ""),
        (
            ("host_lost", 'on = "response"'),
            "",
            "",
            r"host_lost cannot be done by a proxy: .* give it at a time \(at_s\)",
        ),
        (DELETED, NAMED, f"nodes = 3\n{OF_ONE}", "a data directory for each node"),
        (DELETED, NAMED, ELSEWHERE, "the data directory of a node, which is known only if we start it"),
        (DELETED, NAMED, "", ""),
        (("node_killed", 'on = "response"'), "", ELSEWHERE, "process control by commands.alive"),
        (AT_REQUESTER, 'node = "any"', 'nodes = 3\n[node]\ncommand = ["x"]', "directed links between nodes"),
        (AT_REQUESTER, 'node = "any"', f"nodes = 3\n{OF_ONE}", "one process for each node"),
        (("response_duplicated", 'on = "peer_response"'), "", "", "carries the response to a request once"),
    ],
)
def test_missing_target_ability_for_fault_is_named(
    tmp_path: Path, kind: tuple[str, str], words: str, text: str, lack: str
) -> None:
    scenario = with_fault(tmp_path, words, kind=kind[0], on=kind[1])
    wanted = target(tmp_path, text) if text else chosen("kafka")
    if not lack:
        assert playable(scenario, wanted).faults == scenario.faults
        return
    with pytest.raises(SetupError, match=lack) as refusal:
        playable(scenario, wanted)
    assert "\n" not in str(refusal.value)


BY_HAND = """
addresses = ["a:1"]
[commands]
start = "x"
stop = "x"
kill = "x"
pause = "x"
resume = "x"
"""


@pytest.mark.parametrize(
    ("name", "text", "lack"),
    [
        ("1@first", 'addresses = ["a:1"]', "the first revision of fetch sessions, which is a draft"),
        ("6", 'addresses = ["a:1"]', r"\[state\], which is set inside"),
        ("kill-under-load", 'addresses = ["a:1"]', "fault killed needs process control for node_killed"),
        ("kill-under-load", 'addresses = ["a:1"]\n[commands]\nstart = "x"', "process control by commands.kill"),
        ("27", 'addresses = ["a:1"]', "fault killed_at_epoch needs process control"),
        ("27", 'nodes = 3\n[node]\ncommand = ["x"]\none_process = true', "one process for each node"),
        ("leader-killed-under-acks-all", '[node]\ncommand = ["x"]', r"3 nodes \(it has 1\)"),
        ("leader-killed-under-acks-all", 'nodes = 3\nlacks = ["replicas"]\n[node]\ncommand = ["x"]', "needs: replicas"),
        ("1", 'lacks = ["topics"]\n[node]\ncommand = ["x"]', r"topics of its own \(it has no CreateTopics\)"),
        ("13", 'addresses = ["a:1"]', "directed links between nodes"),
        ("rebalance-storm", BY_HAND, r"nodes \(it has 1\)"),
        ("coordinator-killed", 'nodes = 3\nlacks = ["groups"]\n[node]\ncommand = ["x"]', "needs: groups"),
        ("48", 'nodes = 3\nlacks = ["groups"]\n[node]\ncommand = ["x"]', "needs: groups"),
        ("48", 'nodes = 3\nlacks = ["transactions"]\n[node]\ncommand = ["x"]', "needs: transactions"),
        ("45", 'nodes = 3\nlacks = ["transactions"]\n[node]\ncommand = ["x"]', "needs: transactions"),
        ("44", 'nodes = 3\n[node]\ncommand = ["x"]', "directed links between nodes"),
        ("mirror", 'nodes = 3\n[node]\ncommand = ["x"]\nlinks = "peers"', "nodes without a vote"),
        ("19", 'addresses = ["a:1", "b:2", "c:3", "d:4"]', "directed links between nodes"),
        ("30", 'nodes = 3\n[node]\ncommand = ["x"]', "there is no clock to step"),
        ("intruder", 'nodes = 3\n[node]\ncommand = ["x"]', "needs what only our own broker's process"),
    ],
)
def test_missing_target_ability_for_scenario_is_named(tmp_path: Path, name: str, text: str, lack: str) -> None:
    with pytest.raises(SetupError, match=rf"^--target .*mine\.toml lacks what .* needs: .*{lack}.*|{lack}") as refusal:
        playable(for_external_target(find(name)), target(tmp_path, text))
    assert "\n" not in str(refusal.value)


def test_with_all_commands_a_node_elsewhere_can_be_killed(tmp_path: Path) -> None:
    commands = '[commands]\nstart = "x"\nkill = "x"\npause = "x"\nresume = "x"\n'
    played = playable(
        for_external_target(find("kill-under-load")), target(tmp_path, f'addresses = ["a:1", "b:2"]\n{commands}')
    )
    assert played.expected_faults == ("killed", "killed")


def test_single_node_elsewhere_can_vanish_behind_the_links_of_its_clients(tmp_path: Path) -> None:
    text = '[[fault]]\nname = "it"\nkind = "host_lost"\nat_s = 0'
    alone = load(
        written(tmp_path, "alone", text_of("Vanishes", 1, CLUSTER.replace("nodes = 3", "nodes = 1"), 10, text))
    )
    assert playable(alone, target(tmp_path, BY_HAND)).faults == alone.faults
    with pytest.raises(SetupError, match="directed links between nodes"):
        playable(alone, target(tmp_path, BY_HAND.replace('"a:1"', '"a:1", "b:2"')))


def test_target_that_is_none_is_refused() -> None:
    with pytest.raises(SetupError, match="--target: 'nobody' is no target: give HOST:PORT"):
        chosen("nobody")


@pytest.mark.parametrize(("name", "is_set"), [("45", True), ("44", False)])
def test_level_at_which_transactions_begin_reaches_each_node(tmp_path: Path, name: str, is_set: bool) -> None:
    target = TargetNodes(chosen("reference.toml"), find(name).cluster, tmp_path, tmp_path)
    for node in target.laid_out(None, None):
        assert isinstance(node.launcher, ProcessLauncher)
        assert ("crucible.bootstrap.transaction.version=1" in node.launcher.layout.command) == is_set
