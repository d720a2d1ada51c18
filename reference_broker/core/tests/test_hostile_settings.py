"""Settings that are valid and made to be costly: they are kept in their plain form, or they are refused."""

from typing import Any

import pytest

from reference_broker.controller.changes import raise_bug
from reference_broker.core.tests.hostile_client import HostileClient
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.metadata.records import ConfigRecord
from reference_broker.metadata.tests.metadata_world import AnyChange
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

TOPIC = 2


def alter(client: HostileClient, name: str, value: str) -> Any:
    configs = [{"name": name, "config_operation": 0, "value": value}]
    resources = [{"resource_type": TOPIC, "resource_name": "t", "configs": configs}]
    return client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources).responses[0]


def described(client: HostileClient, name: str) -> str:
    resources = [{"resource_type": TOPIC, "resource_name": "t", "configuration_keys": (name,)}]
    found = client.ask(ApiKey.DESCRIBE_CONFIGS, 1, resources=resources).results[0]
    return str(found.configs[0].value)


@pytest.fixture
def client() -> HostileClient:
    world = NodeWorld()
    world.create("t")
    return HostileClient(world)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("retention.ms", " " * 30_000 + "1000000", "1000000"),
        ("retention.ms", "0" * 4000 + "7", "7"),
        ("min.cleanable.dirty.ratio", "0.50", "0.5"),
        ("cleanup.policy", "delete ,  compact", "delete,compact"),
        ("unclean.leader.election.enable", "TRUE", "true"),
    ],
)
def test_a_value_is_kept_in_its_plain_form(client: HostileClient, name: str, value: str, kept: str) -> None:
    assert alter(client, name, value).error_code == ErrorCode.none
    assert described(client, name) == kept
    assert client.world.node.broker.controller.image.topic_configs("t")[name] == kept


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", " " * 40_000 + "1000000"),
        ("retention.ms", "9" * 30_000),
        ("retention.ms", "1_000"),
        ("cleanup.policy", ",".join(["delete"] * 8000)),
    ],
)
def test_a_value_that_no_response_could_contain_is_refused(client: HostileClient, name: str, value: str) -> None:
    assert alter(client, name, value).error_code == ErrorCode.invalid_config
    client.world.create("u", 1, **{name.replace(".", "_"): value})
    assert "u" not in client.world.node.broker.controller.image.topics


def test_a_value_that_an_older_release_kept_as_it_came_is_told_in_its_plain_form(client: HostileClient) -> None:
    record = ConfigRecord(resource_type=TOPIC, resource_name="t", name="retention.ms", value=" " * 40_000 + "1000000")
    answers: list[Any] = []
    client.world.node.broker.controller.propose(AnyChange("change", lambda: [record]), answers.append, raise_bug)
    client.world.settle_until(lambda: bool(answers))
    assert answers == [None]
    assert described(client, "retention.ms") == "1000000"


def test_a_long_name_of_a_setting_is_not_likened_to_the_known_ones(client: HostileClient) -> None:
    answer = alter(client, "retention." * 3000, "1")
    assert answer.error_code == ErrorCode.invalid_config
    assert "did you mean" not in answer.error_message
