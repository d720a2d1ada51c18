"""Scenario files: what is read, and that everything else is refused in one sentence that helps."""

import tomllib
from pathlib import Path

import pytest

from scenarios.loader import ScenarioError, find, load, load_all, needed_by, parse
from scenarios.model import GUARANTEES, Range, Scenario

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
on = "reply"
match = { api = "fetch", session_epoch = 3 }
nth = [2, 5]
"""


def read(text: str) -> Scenario:
    return parse(tomllib.loads(text), Path("small.toml"))


def test_defaults_and_what_the_simulator_takes_over() -> None:
    scenario = read(SMALL)
    assert (scenario.name, scenario.number, scenario.cluster.nodes, scenario.state) == ("small", None, 1, ())
    assert (scenario.sim_min_fetches, scenario.sim_min_acked, scenario.load.sim_seconds) == (10, 20, 3.0)
    assert (scenario.load.fetchers[0].sim_count, scenario.load.producers[0].sim_rate_per_s) == (2, 50.0)
    fault = scenario.faults[0]
    assert (fault.match.api, fault.match.session_epoch, fault.nth, fault.times) == (1, Range(3, 3), Range(2, 5), 1)
    assert not fault.timed
    assert needed_by(fault) == "interceptor"


def test_a_rule_that_repeats_has_no_bound_unless_told() -> None:
    assert read(SMALL + "every = 2\n").faults[0].times == 0


def test_config_values_become_kafkas_texts() -> None:
    text = SMALL + '[cluster.config]\n"a.b" = 3\n"c" = true\n"d" = "x"\n'
    assert read(text).cluster.config == (("a.b", "3"), ("c", "true"), ("d", "x"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('title = "small"', 'titel = "small"', ["title", "is missing"]),
        ('title = "small"', 'title = "small"\ncolour = 1', ["unknown key colour", "max_schedule_slip_ms"]),
        ('title = "small"', "title = 7", ["title", "must be a text, not 7"]),
        ("min_acked = 20", "min_acked = true", ["min_acked", "whole number", "truth value"]),
        ("min_acked = 20", "min_acked = -1", ["min_acked", "at least 0"]),
        ('["interceptor"]', '["magic"]', ["needs", "'magic'", "interceptor, signals, proxy"]),
        ('["interceptor"]', "[]", ["needs", "'lost'", "'interceptor'"]),
        ('["duplicate"]', '["duplicates"]', ["guarantees", "'duplicates'", "lost-write"]),
        ('["F-1"]', '"F-1"', ["clauses", "list of texts"]),
        ("seconds = 3", 'seconds = "3"', ["load.seconds", "must be a number"]),
        ("seconds = 3", "seconds = 3\nsecond = 4", ["unknown key load.second", "idle_appends_s"]),
        ('behaviour = "incremental"', 'behaviour = "lazy"', ["load.fetchers[0].behaviour", "'lazy'", "presuming"]),
        ("rate_per_s = 50", "rate_per_s = 50\nacks = 0", ["'writers'", "acks 0"]),
        ("rate_per_s = 50", "rate_per_s = 50\nacks = 2", ["acks", "between -1 and 1"]),
        ('topic = "hot"\npartitions = 2', 'topic = "cold"\npartitions = 2', ["'cold'", "'readers'", "hot"]),
        ('name = "writers"', 'name = "readers"', ["two groups", "'readers'"]),
        ('on = "reply"', 'on = "replies"', ["fault[0].on", "'replies'", "request, reply, disk_write"]),
        ('on = "reply"', 'on = "reply"\nat_s = 3', ["fault[0].on", "or at_s", "exactly one"]),
        ('on = "reply"\n', "", ["fault[0].on", "or at_s", "exactly one"]),
        ('kind = "response_dropped"', 'kind = "link_cut"', ["fault[0].kind", "'link_cut'", "response_dropped"]),
        ('on = "reply"', 'on = "request"', ["fault[0].kind", "'response_dropped'", "request_duplicated"]),
        ('api = "fetch"', 'api = "fech"', ["fault[0].match.api", "'fech'", "produce"]),
        ("nth = [2, 5]", "nth = [5, 2]", ["fault[0].nth", "least must come first"]),
        ("nth = [2, 5]", "nth = 0", ["fault[0].nth", "at least 1"]),
        ("nth = [2, 5]", "nth = [1, 2, 3]", ["fault[0].nth", "list of two"]),
        ("nth = [2, 5]", "nth = 1\nnode = 1", ["'lost'", "node 1", "0..0"]),
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


def test_found_by_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(SMALL)
    assert find(str(file)).name == "mine"


@pytest.mark.parametrize("wanted", ["99", "nothing", ""])
def test_an_unknown_scenario_is_refused_with_the_known_ones(wanted: str) -> None:
    with pytest.raises(ScenarioError, match=r"01-lost-response.*demo"):
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
    found = {scenario.name: scenario for scenario in load_all()}
    numbers = [scenario.number for scenario in found.values() if scenario.number is not None]
    assert sorted(numbers) == [1, 2, 6, 27, 30]
    assert {"plain-load", "kill-under-load", "demo"} <= found.keys()
    for scenario in found.values():
        assert set(scenario.guarantees) <= set(GUARANTEES)
        assert scenario.clauses
        assert scenario.min_fetches > 0
        assert scenario.min_acked > 0
    assert [len(found[name].mutants) for name in ("01-lost-response", "02-duplicated-request", "06-epoch-wrap")] == [
        2,
        2,
        2,
    ]
    assert [len(found[name].mutants) for name in ("27-killed-at-epoch", "30-clock-steps")] == [1, 1]
