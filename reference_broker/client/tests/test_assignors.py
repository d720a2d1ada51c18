"""Assignors: Kafka's examples, and properties of assignments in any group."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reference_broker.client.consumer_protocol import Subscription
from reference_broker.client.group_leader import ASSIGNORS, assign
from reference_broker.client.partitions import TopicPartition

STICKY = "cooperative-sticky"


def tps(text: str) -> list[TopicPartition]:
    """Return the partitions of a text such as ``t0 t1 u3``."""
    return [TopicPartition(each[0], int(each[1:])) for each in text.split()]


def run(
    name: str, counts: dict[str, int], members: dict[str, str], instances: dict[str, str] | None = None
) -> dict[str, list[TopicPartition]]:
    subscriptions = {each: Subscription(tuple(topics)) for each, topics in members.items()}
    return assign(name, counts, subscriptions, instances)


@pytest.mark.parametrize(
    ("name", "counts", "members", "expected"),
    [
        ("range", {"t": 3, "u": 3}, {"a": "tu", "b": "tu"}, {"a": "t0 t1 u0 u1", "b": "t2 u2"}),
        ("range", {"t": 3, "u": 2}, {"a": "t", "b": "tu", "c": "t"}, {"a": "t0", "b": "t1 u0 u1", "c": "t2"}),
        ("range", {"t": 1}, {"a": "t", "b": "t"}, {"a": "t0", "b": ""}),
        ("roundrobin", {"t": 3, "u": 3}, {"a": "tu", "b": "tu"}, {"a": "t0 t2 u1", "b": "t1 u0 u2"}),
        (
            "roundrobin",
            {"t": 1, "u": 2, "v": 3},
            {"a": "t", "b": "tu", "c": "tuv"},
            {"a": "t0", "b": "u0", "c": "u1 v0 v1 v2"},
        ),
        (STICKY, {"t": 3, "u": 3}, {"a": "tu", "b": "tu"}, {"a": "t0 t2 u1", "b": "t1 u0 u2"}),
    ],
)
def test_examples_of_kafka(
    name: str, counts: dict[str, int], members: dict[str, str], expected: dict[str, str]
) -> None:
    assert run(name, counts, members) == {each: tps(text) for each, text in expected.items()}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_missing_or_unsubscribed_topic_is_not_assigned(name: str) -> None:
    assert run(name, {"t": 0, "u": 4}, {"a": "t"}) == {"a": []}


def test_static_members_are_first_ordered_by_instance() -> None:
    found = run("range", {"t": 3}, {"x1": "t", "x2": "t", "a": "t"}, {"x1": "second", "x2": "first"})
    assert found == {"x2": tps("t0"), "x1": tps("t1"), "a": tps("t2")}


def test_moving_partition_is_withheld_until_revoked() -> None:
    owned = {
        "a": Subscription(("t",), tuple(tps("t0 t1 t2 t3")), 1),
        "b": Subscription(("t",)),
    }
    first = assign(STICKY, {"t": 4}, owned)
    assert first == {"a": tps("t0 t1"), "b": []}
    second = assign(STICKY, {"t": 4}, {each: Subscription(("t",), tuple(given_), 2) for each, given_ in first.items()})
    assert second == {"a": tps("t0 t1"), "b": tps("t2 t3")}


def test_owner_with_newer_generation_wins_and_equal_ones_cancel() -> None:
    newer = {"a": Subscription(("t",), tuple(tps("t0 t1")), 3), "b": Subscription(("t",), tuple(tps("t0")), 2)}
    assert assign(STICKY, {"t": 2}, newer) == {"a": tps("t0"), "b": []}
    equal = {"a": Subscription(("t",), tuple(tps("t0")), 3), "b": Subscription(("t",), tuple(tps("t0")), 3)}
    assert assign(STICKY, {"t": 1}, equal) == {"a": [], "b": []}


topics = st.dictionaries(st.sampled_from("tuvw"), st.integers(0, 9), max_size=4)
groups = st.dictionaries(
    st.sampled_from("abcdef"), st.lists(st.sampled_from("tuvw"), unique=True).map("".join), min_size=1
)


@given(topics, groups, st.sampled_from(sorted(ASSIGNORS)))
def test_each_subscribed_partition_has_exactly_one_subscribed_owner(
    counts: dict[str, int], members: dict[str, str], name: str
) -> None:
    found = run(name, counts, members)
    given_ = [each for owned in found.values() for each in owned]
    wanted = {topic for member in members.values() for topic in member}
    assert sorted(given_) == sorted(TopicPartition(t, n) for t in counts if t in wanted for n in range(counts[t]))
    assert all(each.topic in members[member] for member, owned in found.items() for each in owned)
    assert set(found) == set(members)


@pytest.mark.thorough
@given(topics, st.lists(groups, min_size=1, max_size=4))
@example(
    {"t": 7, "u": 8, "v": 2, "w": 9},
    [{"b": "t", "c": "tw", "e": "tu"}, {"a": "", "b": "tu", "c": "tuvw", "d": "tuvw", "e": "tu", "f": "t"}],
)
def test_sticky_assignment_becomes_balanced_and_stable(counts: dict[str, int], changes: list[dict[str, str]]) -> None:
    """A move takes two generations, and may continue from member to member where they subscribe to different topics."""
    owned: Mapping[str, Sequence[TopicPartition]] = {}
    for members in changes:
        for generation in range(8):
            subscriptions = {
                each: Subscription(tuple(names), tuple(p for p in owned.get(each, ()) if p.topic in names), generation)
                for each, names in members.items()
            }
            before, owned = owned, assign(STICKY, counts, subscriptions)
            held = [(p, m) for m, ps in before.items() if m in members for p in ps if p.topic in members[m]]
            assert all(p not in owned[other] for p, m in held for other in owned if other != m)
    assert before == owned
    for member, partitions in owned.items():
        for partition in partitions:
            rivals = [len(owned[other]) for other, topics in members.items() if partition.topic in topics]
            assert len(owned[member]) <= min(rivals) + 1
