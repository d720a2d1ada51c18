"""Wrong arguments: each is refused in one sentence that names it, before a node gets it."""

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import crucible_kafka
from crucible_kafka import Cluster, Matcher, NodeHandle, Rule, Sent, SharedCluster
from crucible_kafka.library.arguments import checked_call

library: Any = crucible_kafka
"""For a type checker, which would refuse most of these calls."""
Call = Callable[[Any], object]

WRONG: list[tuple[Call, str]] = [
    (lambda _: library.Cluster("3"), "nodes is '3': give a whole number"),
    (lambda _: library.Cluster(True), "nodes is True: give a whole number"),
    (lambda _: library.Cluster(processes="no"), "processes is 'no': give True or False or None"),
    (lambda _: library.Cluster(config=["a"]), r"config is \['a'\]: give a dictionary of strings or None"),
    (lambda _: library.Cluster(config={1: 2}), r"config is \{1: 2\}: give a dictionary of strings"),
    (lambda _: library.Cluster(config={"num.partitions": None}), "num.partitions is None: give a string, a number"),
    (lambda _: library.Cluster(config={"num.partitions": [1]}), r"num.partitions is \[1\]: give a string, a number"),
    (
        lambda _: library.Cluster(versions=2.8),
        "versions is 2.8: give a string, a dictionary of strings to whole",
    ),
    (lambda _: library.Cluster(versions={"Fetch": "6"}), "versions is {'Fetch': '6'}: give a string, a dictionary"),
    (lambda _: library.Cluster(start_limit_s="1"), "start_limit_s is '1': give a number"),
    (lambda _: library.Cluster(start_limit_s=math.nan), "start_limit_s is nan: give a finite number"),
    (lambda kafka: kafka.node("0"), "number is '0': give a whole number"),
    (lambda kafka: kafka.create_topic(5), "name is 5: give a string"),
    (lambda kafka: kafka.create_topic("a", "3"), "partitions is '3': give a whole number"),
    (lambda kafka: kafka.create_topic("a", 2**70), "partitions is 1180591620717411303424: give at most"),
    (lambda kafka: kafka.create_topic("a", 2**31), "partitions is 2147483648: give 1 to 10000"),
    (lambda kafka: kafka.create_topic("a", replicas=2), "replicas is 2: give 1 to 1, the number of nodes"),
    (lambda kafka: kafka.create_topic("a", config=["x"]), r"config is \['x'\]: give a dictionary"),
    (lambda kafka: kafka.create_topic("a", config={"x": b"y"}), "x is b'y': give a string, a number"),
    (lambda kafka: kafka.topic(b"orders"), "prefix is b'orders': give a string"),
    (lambda kafka: kafka.name(5), "prefix is 5: give a string"),
    (lambda kafka: kafka.records("t", "0"), "partition is '0': give a whole number or None"),
    (lambda kafka: kafka.records(None), "topic is None: give a string"),
    (lambda kafka: kafka.records("t", limit_s="1"), "limit_s is '1': give a number"),
    (lambda kafka: kafka.delete_records("t", before="9"), "before is '9': give a whole number"),
    (lambda kafka: kafka.delete_records("t", before=1.5), "before is 1.5: give a whole number"),
    (lambda kafka: kafka.delete_records("t", before=2**64), "before is 18446744073709551616: give at most"),
    (lambda kafka: kafka.leader("t", None), "partition is None: give a whole number"),
    (lambda kafka: kafka.move_leader("t", to="1"), "to is '1': give a whole number or None"),
    (lambda kafka: kafka.shrink_isr("t", 0, to="01"), "to is '01': give a list of whole numbers"),
    (lambda kafka: kafka.shrink_isr("t", 0, to=["0"]), r"to is \['0'\]: give a list of whole numbers"),
    (lambda kafka: kafka.coordinator(5), "group is 5: give a string or None"),
    (lambda kafka: kafka.move_coordinator(transactional_id=b"x"), "transactional_id is b'x': give a string or None"),
    (lambda kafka: kafka.move_controller("1"), "to is '1': give a whole number or None"),
    (lambda kafka: kafka.evict_sessions(None), "client_id is None: give a string"),
    (lambda kafka: kafka.expire_producer("t", "5"), "producer_id is '5': give a whole number or None"),
    (lambda kafka: kafka.expire_transactional_id(5), "transactional_id is 5: give a string"),
    (lambda kafka: kafka.roll("t", [0]), r"partition is \[0\]: give a whole number or None"),
    (lambda kafka: kafka.compact(["t"]), r"topic is \['t'\]: give a string"),
    (lambda kafka: kafka.set_feature("metadata.version", "20"), "level is '20': give a whole number"),
    (lambda kafka: kafka.set_feature("metadata.version", 2**20), "level is 1048576: give 0 to 32767"),
    (lambda kafka: kafka.set_feature("metadata.version", 20, unsafe=1), "unsafe is 1: give True or False"),
    (lambda kafka: kafka.max_versions(2.8), "limits is 2.8: give a string, a dictionary"),
    (lambda kafka: kafka.max_versions(["2.8"]), r"limits is \['2.8'\]: give a string, a dictionary"),
    (lambda kafka: kafka.advertise("", 5), "host is empty: give a name or an address"),
    (lambda kafka: kafka.advertise("a", "5"), "port is '5': give a whole number"),
    (lambda kafka: kafka.advertise("a", 70_000), "port is 70000: give 1 to 65535"),
    (lambda kafka: kafka.frames(5), "api is 5: give a string"),
    (lambda kafka: kafka.frames(node="0"), "node is '0': give a whole number or None"),
    (lambda kafka: kafka.committed(None), "group is None: give a string"),
    (lambda kafka: kafka.node(0).slow_disk("x"), "by_ms is 'x': give a whole number"),
    (lambda kafka: kafka.node(0).slow_disk(-1), "by_ms is -1: give at least 0"),
    (lambda kafka: kafka.node(0).full_disk("yes"), "is_full is 'yes': give True or False"),
    (lambda kafka: kafka.node(0).clock_offset(0.5), "milliseconds is 0.5: give a whole number"),
    (lambda kafka: kafka.node(0).kill(fence=1), "fence is 1: give True or False"),
    (lambda kafka: kafka.node(0).restart(limit_s="5"), "limit_s is '5': give a number"),
    (lambda kafka: kafka.on("Fetch").hang(handled="yes"), "handled is 'yes': give True or False"),
    (lambda kafka: kafka.on("Fetch").delay_request(None), "seconds is None: give a number"),
    (lambda kafka: kafka.on("Fetch").delay_response(math.inf), "seconds is inf: give a finite number"),
    (lambda kafka: kafka.on("Fetch").reorder(within_s="1"), "within_s is '1': give a number"),
    (lambda kafka: kafka.on("Fetch").truncate_response(b""), "size_bytes is b'': give a whole number"),
    (lambda kafka: kafka.on("Fetch").throttle("5"), "milliseconds is '5': give a whole number"),
    (lambda kafka: kafka.on("Fetch").hang(optional="x"), "optional is 'x': give True or False"),
    (
        lambda kafka: kafka.on("Fetch").hang(optional=True).assert_fired("1"),
        "times is '1': give a whole number or None",
    ),
    (lambda kafka: kafka.on("Fetch").hang(optional=True).wait_fired(timeout="1"), "timeout is '1': give a number"),
    (lambda kafka: kafka.values("5"), "count is '5': give a whole number"),
    (lambda kafka: kafka.values(-1), "count is -1: give at least 0"),
    (lambda kafka: kafka.sent(5), "writer is 5: give a string or None"),
    (lambda kafka: kafka.sent().acknowledged("text"), "value is 'text': give bytes"),
    (lambda kafka: kafka.assert_delivered(5, []), "sent is 5: give a Sent or a list of values"),
    (lambda kafka: kafka.assert_delivered("abc", []), "sent is 'abc': give a Sent or a list of values"),
    (lambda kafka: kafka.assert_delivered([], "abc"), "read is 'abc': give a list"),
    (lambda kafka: kafka.assert_delivered([], [], guarantee=1), "guarantee is 1: give one of 'exactly-once'"),
    (lambda _: library.values(1, size_bytes="5"), "size_bytes is '5': give a whole number"),
    (lambda _: library.assert_delivered(None, []), "sent is None: give a Sent or a list of values"),
    (lambda _: library.Sent(size_bytes=None), "size_bytes is None: give a whole number"),
]


@pytest.fixture(scope="module")
def kafka() -> Iterator[SharedCluster]:
    with SharedCluster() as cluster:
        cluster.create_topic("t")
        yield cluster


@pytest.mark.parametrize(("call", "sentence"), WRONG)
def test_wrong_argument_is_named_in_one_sentence(kafka: SharedCluster, call: Call, sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{sentence}") as failure:
        call(kafka)
    text = str(failure.value)
    assert text.endswith(".")
    assert "\n" not in text
    assert kafka.node(0).is_serving
    kafka.clear_rules()


def test_every_public_call_checks_its_arguments() -> None:
    not_checked = {"Cluster.on", "NodeHandle.command"}
    calls = [
        (f"{of.__name__}.{name}", member)
        for of in (Cluster, SharedCluster, NodeHandle, Matcher, Rule, Sent)
        for name, member in inspect.getmembers(of, inspect.isfunction)
        if not name.startswith("_")
    ]
    calls += [(name, getattr(crucible_kafka, name)) for name in ("values", "assert_delivered")]
    assert [
        name
        for name, call in calls
        if len(inspect.signature(call).parameters) > 1 and not hasattr(call, "__wrapped__")
        if name.removeprefix("Shared") not in not_checked
    ] == []


def test_what_fits_is_passed_on() -> None:
    def declared(count: int, name: str | None = None, *, share: float = 0, unknown: object = None) -> object:
        return count, name, share, unknown

    call: Any = checked_call(declared)
    assert call(1, "x", share=1, unknown=call) == (1, "x", 1, call)
    assert call(name=None, count=0) == (0, None, 0, None)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'count'"):
        call()
    with pytest.raises(TypeError, match="unexpected keyword argument 'nmae'"):
        call(1, nmae="x")
