"""A scenario in a revision: what changes, and what stays as it is."""

import tomllib
from pathlib import Path

import pytest

from scenarios.loader import Scenario, ScenarioError, parse
from scenarios.revisions import each_revision, in_revision, own_points, revision_of

FILE = """
title = "both"
clauses = ["F-1", "G-1"]
needs = ["interceptor", "drafts"]
mutants = []
guarantees = ["duplicate"]
revisions = ["final", "first"]
min_fetches = 10
min_acked = 20
max_schedule_slip_ms = 100

[cluster]
nodes = 3

[load]
seconds = 3

[[load.topics]]
name = "hot"
partitions = 4
replicas = 3
config = { "min.insync.replicas" = 2 }

[[load.fetchers]]
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
name = "leader_killed"
kind = "node_killed"
on = "response"
node = "partition_leader"
match = { api = "fetch", role = "peer" }
"""


def read(text: str) -> Scenario:
    return parse(tomllib.loads(text), Path("both.toml"))


def test_final_revision_is_what_the_file_says() -> None:
    scenario = read(FILE)
    final, first = each_revision(scenario)
    assert final.name == "both"
    assert final.cluster == scenario.cluster
    assert final.load == scenario.load
    assert final.revisions == ("final",)
    assert first.revisions == ("first",)


def test_in_the_first_revision_fetchers_and_followers_speak_it() -> None:
    first = in_revision(read(FILE), "first")
    assert first.name == "both@first"
    assert revision_of(first) == "first"
    assert dict(first.cluster.config)["fetch.session.revision"] == "first"
    assert [group.revision for group in first.load.fetchers] == ["first"]
    assert first.load.topics == read(FILE).load.topics
    assert in_revision(first, "first") == first
    assert in_revision(first, "final") == in_revision(read(FILE), "final")


def test_without_sessions_the_followers_have_none_either() -> None:
    none = in_revision(read(FILE), "none")
    assert none.name == "both@none"
    assert revision_of(none) == "none"
    assert none.cluster.config == (("max.incremental.fetch.session.cache.slots", "0"),)
    assert [group.revision for group in none.load.fetchers] == ["none"]


def test_what_was_requested_is_played_whether_the_file_lists_it_or_not() -> None:
    plain = read(FILE.replace('revisions = ["final", "first"]\n', ""))
    assert [each.name for each in each_revision(plain)] == ["both"]
    assert [each.name for each in each_revision(plain, "first")] == ["both@first"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"final", "first"]', '"final", "none"]', ["revisions", "'none'", "final, first"]),
        ('"final", "first"]', '"first", "first"]', ["revisions", "each once"]),
        ('["final", "first"]', "[]", ["revisions", "at least one"]),
        ('["interceptor", "drafts"]', '["interceptor"]', ["needs", "'drafts'"]),
        ("replicas = 3", "replicas = 4", ["4 replicas", "there are 3"]),
        ("replicas = 3", "replicas = 0", ["replicas", "between 1 and 9"]),
        ('behaviour = "incremental"', 'behaviour = "incremental"\nrevision = "second"', ["revision", "'second'"]),
        ("replicas = 3", "replicas = 1", []),
        ('"partition_leader"', '"partition_follower"', []),
    ],
)
def test_refusals_say_what_is_allowed(old: str, new: str, words: list[str]) -> None:
    assert old in FILE
    if not words:
        assert read(FILE.replace(old, new, 1)).name == "both"
        return
    with pytest.raises(ScenarioError) as refused:
        read(FILE.replace(old, new, 1))
    for word in words:
        assert word in str(refused.value)


def test_partitions_follower_needs_replicas() -> None:
    text = FILE.replace("replicas = 3", "replicas = 1").replace('"partition_leader"', '"partition_follower"')
    with pytest.raises(ScenarioError, match="no such follower"):
        read(text)


def test_unknown_revision_is_refused() -> None:
    with pytest.raises(ScenarioError, match="no revision 'second'; there are: final, first, none"):
        in_revision(read(FILE), "second")


def test_point_may_count_in_one_revision_alone() -> None:
    scenario = parse(tomllib.loads('points = ["a=b", "c=d@final", "e=f@first"]' + FILE), Path("both.toml"))
    assert own_points(scenario) == ("a=b", "c=d")
    assert own_points(in_revision(scenario, "first")) == ("a=b", "e=f")
    assert own_points(in_revision(scenario, "none")) == ("a=b",)
