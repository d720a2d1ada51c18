"""The reference broker passes every case that is a MUST."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bench.peers.systems import REFERENCE, tiered
from bench.probe import kafka_responses
from bench.probe.broker import ProbedBroker, meet
from bench.probe.case import CaseVerdict
from bench.probe.cases import all_cases, chosen
from bench.probe.conversation import Conversation
from bench.probe.play import play
from bench.probe.probe_command import FAILED, PASSED, ProbeOptions, of_cluster, run
from bench.probe.reporters import outcome_line
from reference_broker.wire.apis import ApiKey

pytestmark = pytest.mark.live

SELECTOR_CLASS = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}
"""A new group waits for more members otherwise, for three seconds in each case that has one."""
MAY_LACK = {
    "admin/folders/described": "DescribeLogDirs is not served",
    "admin/reassignments/listed": "ListPartitionReassignments is not served",
    "admin/quotas/described": "DescribeClientQuotas is not served",
    "groups/fetch/error-in-version-1": "one node coordinates all groups",
    "fetch/session/preferred-replica": "one node has no followers",
    "produce/idempotence/expired": "producers expire after a day",
    **{each.id: "there is no tier" for each in chosen(["tier"], [])},
}
"""Cases that the reference broker does not claim to fulfil with its default settings."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProbedBroker]:
    with REFERENCE.launched(tmp_path_factory.mktemp("probed"), 1, NO_DELAY) as cluster:
        yield meet(("127.0.0.1", cluster.ports[0]))


@pytest.mark.timeout(600)
def test_no_must_is_broken(broker: ProbedBroker, tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "results.json"
    host, port = broker.address
    code = run(ProbeOptions(f"{host}:{port}", json=file), said.append)
    result = json.loads(file.read_text())["cases"]
    assert code == PASSED, "\n".join(line for line in said if not line.startswith("ok "))
    assert len(result) == len(all_cases())
    lacking = {each["id"] for each in result if each["verdict"] == CaseVerdict.NOT_ADVERTISED.value}
    assert lacking == MAY_LACK.keys()


@pytest.mark.parametrize(
    ("sections", "cases"),
    [
        ((), ("restarts/epochs/of-leader", "restarts/transactions/open")),
        pytest.param(("restarts",), (), marks=pytest.mark.nightly),
    ],
)
@pytest.mark.timeout(600)
@pytest.mark.rotated(2, "probe")
def test_no_must_is_broken_over_a_restart(tmp_path: Path, sections: Sequence[str], cases: Sequence[str]) -> None:
    with REFERENCE.launched(tmp_path, 1, NO_DELAY) as cluster:
        own = of_cluster(cluster)
        outcomes = play(meet(own.address), chosen(sections, cases), target=own)
    assert [outcome_line(outcome) for outcome in outcomes if outcome.verdict is not CaseVerdict.PASS] == []


@pytest.mark.timeout(600)
@pytest.mark.rotated(2, "probe")
def test_no_must_is_broken_with_a_tier_and_where_producers_expire(tmp_path: Path) -> None:
    settings = {**NO_DELAY, **kafka_responses.SETTINGS, "producer.id.expiration.ms": "1000"}
    with tiered(REFERENCE).launched(tmp_path, 1, settings) as cluster:
        cases = chosen(["tier"], ["produce/idempotence/expired"])
        outcomes = play(meet(("127.0.0.1", cluster.ports[0])), cases)
    assert [outcome_line(outcome) for outcome in outcomes if outcome.verdict is not CaseVerdict.PASS] == []


@pytest.mark.rotated(2, "probe")
def test_end_of_the_sequence_where_unknown_producers_are_refused(tmp_path: Path) -> None:
    policy = {"crucible.unknown.producer.id.policy": "reject"}
    wraps = [case.id for case in all_cases() if case.id.startswith("produce/idempotence/wrap")]
    with REFERENCE.launched(tmp_path, 1, policy) as cluster:
        outcomes = play(meet(("127.0.0.1", cluster.ports[0])), chosen([], [*wraps, "produce/idempotence/unknown-id"]))
    verdicts = {outcome.case.id: outcome.verdict for outcome in outcomes}
    assert verdicts.pop("produce/idempotence/unknown-id") is CaseVerdict.FAIL
    assert verdicts == dict.fromkeys(wraps, CaseVerdict.NOT_ADVERTISED)
    assert len(wraps) == 3


@pytest.mark.timeout(600)
@pytest.mark.rotated(2, "probe")
def test_no_must_is_broken_where_followers_are_read(tmp_path: Path) -> None:
    settings = {**NO_DELAY, "broker.rack": "rack-{node}", "replica.selector.class": SELECTOR_CLASS}
    with REFERENCE.launched(tmp_path, 2, settings) as cluster:
        cases = chosen([], ["fetch/session/preferred-replica", "groups/fetch/error-in-version-1"])
        outcomes = play(meet(("127.0.0.1", cluster.ports[0])), cases)
    assert [outcome_line(outcome) for outcome in outcomes if outcome.verdict is not CaseVerdict.PASS] == []


def test_run_deletes_everything_it_created(broker: ProbedBroker) -> None:
    play(broker, chosen(["metadata"], []))
    with Conversation(broker.address, [], lambda: 10.0) as conversation:
        response = conversation.call(ApiKey.METADATA, broker.version(ApiKey.METADATA, (1, 12)), {"topics": None})
    assert not [topic.name for topic in response.topics if str(topic.name).startswith("crucible-probe-")]


def test_groups_with_members_are_deleted_afterwards(broker: ProbedBroker) -> None:
    play(broker, chosen([], ["groups/sync/again", "groups/heartbeat/rebalance"]))
    with Conversation(broker.address, [], lambda: 10.0) as conversation:
        response = conversation.call(ApiKey.LIST_GROUPS, broker.version(ApiKey.LIST_GROUPS, (0, 5)), {})
    assert not [group.group_id for group in response.groups if str(group.group_id).startswith("crucible-probe-")]


def test_target_that_breaks_a_must_exits_with_1(broker: ProbedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.probe.cases.metadata.NO_OPERATIONS", 0)
    host, port = broker.address
    said: list[str] = []
    code = run(ProbeOptions(f"{host}:{port}", cases=["metadata/topics/operations-not-requested"]), said.append)
    assert code == FAILED
    assert f"  again: ./crucible probe {host}:{port} --case metadata/topics/operations-not-requested" in said
