"""Rules come from the [[fault]] tables of a scenario file or from JSON, and are refused in one sentence."""

from pathlib import Path

import pytest

from chaos.frame_proxy.control import HELP
from chaos.frame_proxy.rules_file import PROXY_KINDS_AT, read_rule, read_rules, why_not
from reference_broker.wire.apis import ApiKey, api_name
from scenarios import loader
from scenarios.fields import Range, ScenarioError
from scenarios.vocabulary import PARTITION_ROLES

NODES = {1: 0, 2: 77}
LOST = {"name": "lost", "kind": "response_dropped", "on": "response", "node": "any"}


def test_faults_of_a_scenario_are_a_rules_file() -> None:
    scenario = loader.find("01-lost-response")
    assert read_rules(Path(scenario.path)) == scenario.faults


def test_rule_is_read_from_json() -> None:
    rule = read_rule({**LOST, "match": {"api": "fetch", "session_epoch": [1, 3]}, "nth": 2})
    assert rule.match.api == 1
    assert rule.match.session_epoch == Range(1, 3)
    assert rule.nth == Range(2, 2)
    assert why_not(rule, NODES) == ""


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"on": "disk", "kind": "node_killed"}, "on = 'disk' needs what a proxy does not see"),
        ({"on": "note", "kind": "node_killed", "match": {"note": "x"}}, "on = 'note' needs"),
        ({"on": "peer_response", "kind": "response_delayed"}, "on = 'peer_response' needs"),
        ({"on": "request", "kind": "request_damaged"}, "request_damaged cannot be done by a proxy"),
        ({"kind": "node_powered_off"}, "there is no machine to switch off"),
        ({"kind": "host_lost"}, "a proxy of frames cannot silence a node's links"),
        ({"kind": "response_lost_by_proxy"}, "needs Toxiproxy in front of the proxy"),
        ({"node": "leader"}, "does not know what role a node has: give a node's number"),
        ({"match": {"role": "follower"}}, "match.role is 'follower'"),
        ({"match": {"role": "peer"}}, "other nodes do not come through the proxy"),
        ({"match": {"from_node": 1}}, "other nodes do not come through the proxy"),
        ({"match": {"api": "fetch_snapshot"}}, "other nodes do not come through the proxy"),
        ({"node": 0}, "node 0 is not among the target's: 1, 2"),
        ({"node": 1, "kind": "node_killed"}, "give --process NODE=PID"),
        ({"node": 2, "kind": "node_killed"}, ""),
        ({"match": {"role": "client"}}, ""),
    ],
)
def test_rule_with_state_unknown_to_proxy_is_refused(changes: dict[str, object], refusal: str) -> None:
    wrong = why_not(read_rule({**LOST, **changes}), NODES)
    assert refusal in wrong
    assert bool(wrong) is bool(refusal)


def test_role_in_a_partition_is_known_from_metadata() -> None:
    for changes in ({"node": "partition_leader"}, {"match": {"role": "partition_follower"}}):
        rule = read_rule({**LOST, **changes})
        assert "or --topic, whose first partition is meant" in why_not(rule, NODES)
        assert why_not(rule, NODES, roles=PARTITION_ROLES) == ""
    assert "does not know what role" in why_not(read_rule({**LOST, "node": "leader"}), NODES, roles=PARTITION_ROLES)


def test_each_api_can_be_named_in_both_spellings() -> None:
    for key in ApiKey:
        for name in (key.name.lower(), api_name(key)):
            fault = read_rule({"name": "lost", "kind": "response_dropped", "on": "response", "match": {"api": name}})
            assert fault.match.api == key


def test_name_that_is_no_api_is_refused_with_near_ones() -> None:
    with pytest.raises(ScenarioError, match=r"'OffsetComit', which is no API; a name is one such as offset_commit"):
        read_rule({"name": "lost", "kind": "response_dropped", "on": "response", "match": {"api": "OffsetComit"}})


def test_response_is_doubled_before_clients_and_not_at_the_requester() -> None:
    rule = {"name": "twice", "kind": "response_duplicated", "node": "any"}
    assert why_not(read_rule({**rule, "on": "response"}), NODES) == ""
    refusal = why_not(read_rule({**rule, "on": "peer_response"}), NODES, has_links=True)
    assert "carries the response to a request once" in refusal


def test_time_is_refused() -> None:
    with pytest.raises(
        ScenarioError, match=r"at_s needs what a proxy does not see; give on = 'request' or on = 'response'"
    ):
        read_rule({"name": "later", "kind": "node_killed", "at_s": 3})


OFFERED = {"request": "request_dropped", "response": "response_dropped"}


@pytest.mark.parametrize("on", OFFERED)
def test_refused_kind_leads_only_to_kinds_that_a_proxy_takes(on: str) -> None:
    with pytest.raises(ScenarioError) as wrong:
        read_rule({"name": "lost", "kind": "link_cut", "on": on})
    offered = str(wrong.value).partition("allowed: ")[2].split(", ")
    assert OFFERED[on] in offered
    assert set(offered) == set(PROXY_KINDS_AT[on])
    needed = {"response_truncated": {"cut_bytes": 1}, "response_error": {"code": 6}}
    for kind in offered:
        rule = {"name": "lost", "kind": kind, "on": on, "node": 2, **needed.get(kind, {})}
        assert why_not(read_rule(rule), NODES) == "", kind
        assert kind in HELP


def test_place_that_a_proxy_does_not_see_is_not_offered() -> None:
    for place in ({}, {"on": "reply"}):
        with pytest.raises(ScenarioError, match=r"allowed: request, response$"):
            read_rule({"name": "lost", "kind": "response_dropped", **place})


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("[[fault]]\nname = 'a'\n", "rules.toml"),
        ("[[fault]\n", "is not valid TOML"),
        ("[[faults]]\nname='a'\n", "has no [[fault]]"),
        ("[[fault]]\nname='a'\nkind='node_paused'\non='response'\nduration_s=inf\n", "duration_s is inf"),
        ("[[fault]]\nname='a'\nkind='response_dropped'\non='response'\nafter_s=nan\n", "after_s is nan"),
        ("[[fault]]\nname='a'\nkind='response_error'\non='response'\n", "code is of response_error"),
        (
            "[[fault]]\nname='a'\nkind='response_truncated'\non='response'\n",
            "cut_bytes is needed for response_truncated",
        ),
    ],
)
def test_wrong_file_is_refused(text: str, refusal: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(text)
    with pytest.raises(ScenarioError) as wrong:
        read_rules(file)
    assert refusal in str(wrong.value)
    with pytest.raises(ScenarioError):
        read_rules(tmp_path / "missing.toml")
