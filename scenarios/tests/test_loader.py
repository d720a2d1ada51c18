"""Scenario files: what is read, and that everything else is refused in one sentence that helps."""

import tomllib
from math import prod
from pathlib import Path

import pytest

from scenarios.derived import drawn, with_leader_epochs
from scenarios.loader import (
    REGRESSIONS,
    ScenarioError,
    catalogue_files,
    find,
    load,
    load_all,
    needed_by,
    parse,
    typed_options,
)
from scenarios.model import Fault, Link, Match, Range, Scenario, Swarm

SMALL = """
title = "small"
clauses = ["F-1"]
needs = ["interceptor"]
mutants = []
guarantees = ["duplicate"]
min_fetches = 10
min_acked = 20
max_schedule_slip_ms = 100

[load]
seconds = 3

[[load.topics]]
name = "hot"
partitions = 4

[[load.fetchers]]
name = "readers"
behaviour = "incremental"
count = 2
topic = "hot"
partitions = 2

[[load.producers]]
name = "writers"
count = 1
topic = "hot"
rate_per_s = 50

[[fault]]
name = "lost"
kind = "response_dropped"
on = "response"
match = { api = "fetch", session_epoch = 3 }
nth = [2, 5]
"""

AT_A_REPLY = SMALL[SMALL.index('kind = "response_dropped"') : SMALL.index("nth")]
AT_THE_STORE = 'kind = "store_slowed"\non = "store_result"\nmatch = { operation = "%s" }\n'


def read(text: str) -> Scenario:
    return parse(tomllib.loads(text), Path("small.toml"))


def test_defaults_and_what_the_simulator_takes_over() -> None:
    scenario = read(SMALL)
    assert scenario.name == "small"
    assert scenario.number is None
    assert scenario.cluster.nodes == 1
    assert scenario.state == ()
    assert scenario.sim_min_fetches == 10
    assert scenario.sim_min_acked == 20
    assert scenario.load.in_simulator.seconds == 3.0
    played = scenario.load.in_simulator
    assert played.fetchers[0].count == 2
    assert played.producers[0].rate_per_s == 50.0
    fault = scenario.faults[0]
    assert fault.match.api == 1
    assert fault.match.session_epoch == Range(3, 3)
    assert fault.nth == Range(2, 5)
    assert fault.times == 1
    assert not fault.timed
    assert needed_by(fault) == ("interceptor",)


def test_rule_that_repeats_has_no_bound_unless_given() -> None:
    assert read(SMALL + "every = 2\n").faults[0].times == 0


def test_config_values_become_kafkas_texts() -> None:
    text = SMALL + '[cluster.config]\n"a.b" = 3\n"c" = true\n"d" = "x"\n'
    assert read(text).cluster.config == (("a.b", "3"), ("c", "true"), ("d", "x"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[[fault]]", "[[outside]]", ["small.toml: outside has another name now", "[[external_fault]]"]),
        ('title = "small"', 'titel = "small"', ["unknown key titel, did you mean title; allowed here: "]),
        ('title = "small"', "", ["title", "is missing"]),
        ('title = "small"', 'title = "small"\ncolour = 1', ["unknown key colour", "max_schedule_slip_ms"]),
        ('title = "small"', "title = 7", ["title", "must be a text, not 7"]),
        ("min_acked = 20", "min_acked = true", ["min_acked", "whole number", "truth value"]),
        ("min_acked = 20", "min_acked = -1", ["min_acked", "at least 0"]),
        ('["interceptor"]', '["magic"]', ["needs", "'magic'", "interceptor, signals, proxy"]),
        ('["interceptor"]', "[]", ["needs", "'lost'", "'interceptor'"]),
        ('["F-1"]', '"F-1"', ["clauses", "list of texts"]),
        ("seconds = 3", 'seconds = "3"', ["load.seconds", "must be a number"]),
        ("seconds = 3", "seconds = 3\nsecond = 4", ["unknown key load.second", "idle_appends_s"]),
        ('behaviour = "incremental"', 'behaviour = "lazy"', ["load.fetchers[0].behaviour", "'lazy'", "presuming"]),
        ("rate_per_s = 50", "rate_per_s = 50\nacks = 0", ["'writers'", "acks 0"]),
        ("rate_per_s = 50", "rate_per_s = 50\ndelete_percent = 5", ["'writers'", "cleanup.policy"]),
        ("partitions = 4", 'partitions = 4\nconfig = { "cleanup.policy" = "compact" }', ["idle partitions"]),
        (
            "rate_per_s = 50",
            'rate_per_s = 50\n[[load.admins]]\nname = "deleting"\nrate_per_s = 1\nmix = { record_request = 1 }',
            ["'readers'", "last topic", "'deleting' deletes records"],
        ),
        (
            "rate_per_s = 50",
            'rate_per_s = 50\n[[load.groups]]\nname = "g"\ntopics = ["hot"]\ncount = 1\nview = true',
            ["'g'", "assigned"],
        ),
        ("rate_per_s = 50", "rate_per_s = 50\nacks = 2", ["acks", "between -1 and 1"]),
        ('topic = "hot"\npartitions = 2', 'topic = "cold"\npartitions = 2', ["'cold'", "'readers'", "hot"]),
        ('name = "writers"', 'name = "readers"', ["two groups", "'readers'"]),
        ('on = "response"', 'on = "replies"', ["fault[0].on", "'replies'", "peer_response, disk, disk_write, store"]),
        ('on = "response"', 'on = "response"\nat_s = 3', ["fault[0].on", "or at_s", "exactly one"]),
        ('on = "response"\n', "", ["fault[0].on", "or at_s", "exactly one"]),
        ('kind = "response_dropped"', 'kind = "link_cut"', ["fault[0].kind", "'link_cut'", "response_dropped"]),
        ('on = "response"', 'on = "request"', ["fault[0].kind", "'response_dropped'", "request_duplicated"]),
        ('api = "fetch"', 'api = "fech"', ["fault[0].match.api", "'fech'", "fetch"]),
        ("nth = [2, 5]", "nth = [5, 2]", ["fault[0].nth", "least must come first"]),
        ("nth = [2, 5]", "nth = 0", ["fault[0].nth", "at least 1"]),
        ("nth = [2, 5]", "nth = [1, 2, 3]", ["fault[0].nth", "list of two"]),
        ("nth = [2, 5]", "nth = 1\nnode = 1", ["'lost'", "node 1", "0..0"]),
        ('on = "response"', 'on = "response"\nerror = "EMFILE"', ["fault[0].error", "'EMFILE'", "operation = 'open'"]),
        ('on = "response"', 'on = "response"\nerror = "EPERM"', ["fault[0].error", "'EPERM'", "EIO, ENOSPC"]),
        ('on = "response"', 'on = "response"\nundo_fails = true', ["fault[0].undo_fails", "disk_error on disk_write"]),
        ('on = "response"', 'on = "response"\nnames_only = true', ["fault[0].names_only", "disk_slowed"]),
        ('on = "response"', 'on = "response"\nfailure = "refused"', ["fault[0].failure", "only for store_refused"]),
        (AT_A_REPLY, AT_THE_STORE % "write", ["fault[0].match", "'write'", "put, get, list, delete"]),
        ("[load]", "state = 3\n[load]", ["state", "must be a table"]),
        ("[[load.topics]]", "[load.topics]", ["load.topics", "[[load.topics]]"]),
    ],
)
def test_refusals_name_file_key_and_what_is_allowed(old: str, new: str, words: list[str]) -> None:
    assert old in SMALL
    with pytest.raises(ScenarioError) as refused:
        read(SMALL.replace(old, new, 1))
    message = str(refused.value)
    assert message.startswith("small.toml: ")
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "wanted", ["01-lost-response", "1", "01", "lost-response", "lost_response", "01-lost-response.toml"]
)
def test_found_by_file_stem_or_number(wanted: str) -> None:
    assert find(wanted).number == 1


@pytest.mark.parametrize("wanted", ["scenarios/01-lost-response.toml", "no/such/folder/01-lost-response.toml"])
def test_found_by_file_name_whatever_its_folder(wanted: str) -> None:
    assert find(wanted).number == 1


def test_file_names_are_unique() -> None:
    names = [path.name for path in (*catalogue_files(), *REGRESSIONS.glob("*.toml"))]
    assert len(names) == len(set(names)) > 90


def test_found_by_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(SMALL)
    assert find(str(file)).name == "mine"


@pytest.mark.parametrize("wanted", ["99", "nothing", ""])
def test_unknown_scenario_is_refused_with_the_command_that_lists_them(wanted: str) -> None:
    with pytest.raises(ScenarioError, match=r"\(ls scenarios/catalogue/\* lists all\)$"):
        find(wanted)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read"):
        load(tmp_path / "gone.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("title = ")
    with pytest.raises(ScenarioError, match="not valid TOML"):
        load(bad)
    bad.write_bytes(b"title = \xff")
    with pytest.raises(ScenarioError, match="UTF-8"):
        load(bad)


def test_all_scenarios_load_and_say_what_they_need() -> None:
    scenarios = {scenario.name: scenario for scenario in load_all()}
    numbers = [scenario.number for scenario in scenarios.values() if scenario.number is not None]
    assert sorted(numbers) == sorted([*range(1, 51), 14, 33, 34])
    assert {"plain-load", "kill-under-load", "demo"} <= scenarios.keys()
    for scenario in scenarios.values():
        assert scenario.clauses
        assert scenario.min_fetches > 0 or not scenario.load.fetchers
        assert scenario.min_acked > 0 or not scenario.load.producers
    named = ("01-lost-response", "02-duplicated-request", "06-epoch-wrap", "27-killed-at-epoch", "30-clock-steps")
    assert all(scenarios[name].mutants for name in named)


QUORUM = """
[cluster]
nodes = 3
observers = 2

[[load.admins]]
name = "admins"
rate_per_s = 2
partitions = 200
sim_partitions = 20
mix = { create = 3, describe = 1 }

[[load.metadata_readers]]
count = 3

[swarm]
kinds = ["node_killed", "link_cut"]
every_s = 4
"""
NOTED = """
[[fault]]
name = "noted"
kind = "node_killed"
on = "note"
node = "leader"
match = { note = "metadata_committed", kind = "[be]*", number = 3, of = [4, 9] }
nth = [1, 4]
swept = true
either = "when"

[[fault]]
name = "cut"
kind = "link_cut"
link = "observer>leader"
at_s = 1
duration_s = 1
either = "when"
"""
LARGE = SMALL.replace('["interceptor"]', '["interceptor", "proxy"]') + QUORUM + NOTED


def test_what_a_quorum_adds() -> None:
    scenario = read(LARGE)
    assert scenario.cluster.nodes == 3
    assert scenario.cluster.observers == 2
    assert scenario.cluster.total == 5
    played = scenario.load.in_simulator
    assert scenario.load.admins[0].mix == (("create", 3), ("describe", 1))
    assert played.admins[0].rate_per_s == 2.0
    assert played.admins[0].partitions == 20
    assert played.metadata_readers[0].count == 3
    assert scenario.swarm == Swarm(("node_killed", "link_cut"), 4.0)
    _, noted, cut = scenario.faults
    assert noted.match == Match(
        note="metadata_committed", fields=(("kind", "[be]*"), ("number", Range(3, 3)), ("of", Range(4, 9)))
    )
    assert noted.node == "leader"
    assert noted.link is None
    assert cut.link == Link("observer", "leader")


def test_link_fault_without_a_link_is_between_the_clients_and_its_node() -> None:
    text = SMALL.replace('["interceptor"]', '["interceptor", "proxy"]') + CUT
    assert read(text).faults[1].link == Link("client", 0)


LOST = """
[[fault]]
name = "on_a_link"
kind = "response_dropped"
on = "response"
link = "1>leader"
match = { api = "fetch" }
"""


ALL = LARGE.replace('needs = ["interceptor"', 'needs = ["signals", "proxy", "interceptor"')
VANISHED = """
[[fault]]
name = "vanished"
kind = "host_lost"
node = "leader"
at_s = 1
restart_after_s = 2
"""
SWALLOWED = LOST.replace("response_dropped", "response_lost_by_proxy").replace('link = "1>leader"\n', "")


@pytest.mark.parametrize(
    ("text", "old", "new", "words"),
    [
        (VANISHED, "restart_after_s = 2", "restart_after_s = 0", ["fault[3].restart_after_s", "above 0 for host_lost"]),
        (VANISHED, "restart_after_s = 2", "restart_after_s = -1", ["fault[3].restart_after_s", "above 0"]),
        (VANISHED, "restart_after_s = 2", "clients = true", ["fault[3].clients", "only for node_isolated"]),
        (VANISHED, "restart_after_s = 2", 'link = "1>2"', ["fault[3].link", "means nothing for host_lost"]),
        (SWALLOWED, '"fetch" }', '"fetch", role = "peer" }', ["fault[3].match", "only of responses to clients"]),
        (SWALLOWED, '"fetch" }', '"fetch", from_node = 1 }', ["fault[3].match", "only of responses to clients"]),
        (SWALLOWED, 'on = "response"', 'on = "response"\nlink = "1>leader"', ["fault[3].link", "means nothing for"]),
        (SWALLOWED, 'on = "response"', 'on = "request"', ["fault[3].kind", "'response_lost_by_proxy'"]),
        (SWALLOWED, 'on = "response"', "at_s = 1", ["fault[3].kind", "'response_lost_by_proxy'"]),
    ],
)
def test_what_the_kinds_with_a_proxy_refuse_is_one_sentence(text: str, old: str, new: str, words: list[str]) -> None:
    assert read(ALL + text).faults[-1].kind in ("host_lost", "response_lost_by_proxy")
    with pytest.raises(ScenarioError) as refused:
        read(ALL + text.replace(old, new))
    assert "\n" not in str(refused.value)
    for word in words:
        assert word in str(refused.value)


def test_lost_host_and_a_swallowed_response_need_the_links() -> None:
    assert needed_by(read(ALL + VANISHED).faults[-1]) == ("signals", "proxy")
    assert needed_by(read(ALL + SWALLOWED).faults[-1]) == ("interceptor", "proxy")


def test_fault_at_a_state_may_name_a_link_between_nodes() -> None:
    lost = read(LARGE + LOST).faults[-1]
    assert lost.link == Link(1, "leader")
    assert lost.node == "leader"
    assert not lost.timed
    assert needed_by(lost) == ("proxy",)
    for old, new, words in (
        ("link = ", "node = 1\nlink = ", ["fault[3].node", "beside link"]),
        ('"1>leader"', '"7>leader"', ["'on_a_link'", "node 7", "0..4"]),
    ):
        with pytest.raises(ScenarioError) as refused:
            read(LARGE + LOST.replace(old, new))
        assert all(word in str(refused.value) for word in words)


def test_single_node_has_no_link_to_another() -> None:
    with pytest.raises(ScenarioError, match="there is no link between nodes"):
        read(SMALL.replace('["interceptor"]', '["interceptor", "proxy"]') + LOST.replace("1>leader", "all>all"))


def test_fault_at_a_time_may_name_the_files_that_it_damages() -> None:
    flipped = '[[fault]]\nname = "bit"\nkind = "disk_bit_flipped"\nat_s = 1\nmatch = { path = "hot-*/*.log" }\n'
    scenario = read(SMALL.replace('["interceptor"]', '["interceptor", "disk"]') + flipped)
    assert scenario.faults[1].match == Match(path="hot-*/*.log")


CUT = """
[[fault]]
name = "cut"
kind = "link_cut"
at_s = 1
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('node = "leader"', 'node = "chief"', ["fault[1].node", "'chief'", "partition_follower, any"]),
        ('node = "leader"', "node = 5", ["'noted'", "node 5", "0..4"]),
        ("nodes = 3", "nodes = 1", []),
        ("observers = 2\n", "", ["'cut'", "no observer", "cluster.observers"]),
        ('"observer>leader"', '"observer-leader"', ["fault[2].link", "A>B", "client, leader"]),
        ('"observer>leader"', '"leader>client"', ["fault[2].link", "A>B"]),
        ('"observer>leader"', '"1>1"', ["fault[2].link", "must differ"]),
        ('kind = "link_cut"\n', 'kind = "node_isolated"\n', ["fault[2].link", "node_isolated", "link_"]),
        ('note = "metadata_committed", ', "", ["fault[1].match.note", "is missing"]),
        ('api = "fetch"', 'path = "x"', ["unknown key fault[0].match.path", "client_id"]),
        ("nth = [1, 4]", "nth = 2", ["fault[1].swept", "range for nth"]),
        ('either = "when"', 'either = "then"', []),  # A shrunk schedule may keep one alternative.
        ("{ create = 3, describe = 1 }", "{}", ["mix", "create, delete"]),
        ("{ create = 3, describe = 1 }", "{ destroy = 3 }", ["unknown key load.admins[0].mix.destroy"]),
        ('"node_killed", "link_cut"', '"node_lost"', ["swarm.kinds", "'node_lost'"]),
        ('"node_killed", "link_cut"', "", ["swarm.kinds", "at least one"]),
        ('name = "admins"', 'name = "readers"', ["two groups", "'readers'"]),
        ("at_s = 1", "at_s = 3", ["'cut'", "begins at 3 s", "over at 3 s"]),
        ("at_s = 1", "at_s = 2.6", ["'cut'", "3.12 s in the simulator", "over at 3 s"]),
        ("at_s = 1", "at_s = 1\nboot = true", ["fault[2].boot", "load's start"]),
        ("at_s = 1", 'at_s = 1\nmatch = { path = "x" }', ["unknown key fault[2].match.path"]),
        ("nth = [1, 4]\nswept", "alone = true\nnth = [1, 4]\nswept", ["fault[1].alone", "give at_s"]),
        ("at_s = 1", "at_s = 1\nclients = true", ["fault[2].clients", "node_isolated"]),
    ],
)
def test_refusals_of_what_a_quorum_adds(old: str, new: str, words: list[str]) -> None:
    assert old in LARGE
    text = LARGE.replace(old, new, 1)
    if not words:
        read(text)
        return
    with pytest.raises(ScenarioError) as refused:
        read(text)
    assert "\n" not in str(refused.value)
    for word in words:
        assert word in str(refused.value)


# What a seed plays


def combinations(scenario: Scenario) -> int:
    """Return the number of seeds in a row that play all alternatives and sweeps, if each alternative has the widest
    sweep."""
    groups: dict[str, list[Fault]] = {}
    for fault in scenario.faults:
        groups.setdefault(fault.either or f"alone/{fault.name}", []).append(fault)
    spans = {fault.name: fault.nth.high - fault.nth.low + 1 if fault.swept else 1 for fault in scenario.faults}
    return prod(len(group) * max(spans[fault.name] for fault in group) for group in groups.values())


def test_seeds_in_a_row_play_each_alternative_and_each_place_of_a_sweep() -> None:
    scenario = read(LARGE)
    assert combinations(scenario) == 8
    played = []
    for seed in range(1, 9):
        plan = drawn(scenario, seed)
        played.append([(fault.name, fault.nth.low) for fault in plan.faults[1:]])
        assert plan.faults[0] == scenario.faults[0]
        assert not any(fault.either or fault.swept for fault in plan.faults)
        assert drawn(plan, seed + 1) == plan
    assert sorted(each for (each,) in played) == [("cut", 1)] * 4 + [("noted", nth) for nth in (1, 2, 3, 4)]
    assert {len(drawn(scenario, seed).expected_faults) for seed in range(8)} == {2}


def test_option_is_typed_only_for_what_the_file_does_not_say() -> None:
    assert typed_options(find("21")) == ""
    assert typed_options(with_leader_epochs(find("21"))) == " --leader-epochs"
    assert typed_options(with_leader_epochs(find("demo"))) == ""


def test_one_of_two_revisions_is_repeated_alone() -> None:
    assert find("1").revisions == ("final", "first")
    assert typed_options(find("1@final")) == " --revision final"
    assert typed_options(find("1@first")) == ""  # Its name says so.
    assert typed_options(find("1")) == ""


SWEPT = [scenario for scenario in load_all() if any(fault.swept for fault in scenario.faults)]


@pytest.mark.parametrize("scenario", SWEPT, ids=lambda each: each.name)
def test_boundaries_of_every_sweep_are_visited(scenario: Scenario) -> None:
    faults = [fault for fault in scenario.faults if fault.swept]
    swept = {(fault.name, nth) for fault in faults for nth in range(fault.nth.low, fault.nth.high + 1)}
    seen = set()
    for seed in range(1, combinations(scenario) + 1):
        for fault in drawn(scenario, seed).faults:
            seen.add((fault.name, fault.nth.low))
    assert swept <= seen


def test_name_that_was_probably_meant_is_reported() -> None:
    with pytest.raises(ScenarioError, match="there is no scenario 'kill-undr-load', did you mean kill-under-load"):
        find("kill-undr-load")
    with pytest.raises(ScenarioError, match=r"there is no scenario 'zzz'; give a file, its stem or its number"):
        find("zzz")
