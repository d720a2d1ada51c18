"""DescribeConfigs: sources, synonyms, documentation."""

import pytest
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import DescribeConfigsResult
from kio.static.primitive import i8

from reference_broker.apis.configs import k32_describe_configs
from reference_broker.apis.tests.admin_world import AdminWorld
from reference_broker.apis.tests.topic_requests import create_topics, topic
from reference_broker.configuration.topic_config import TOPIC_KEYS
from reference_broker.wire.errors import ErrorCode


def describe(
    world: AdminWorld,
    kind: int,
    name: str,
    keys: tuple[str, ...] | None = None,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=i8(kind), resource_name=name, configuration_keys=keys)
    body = DescribeConfigsRequest(resources=(resource,), include_synonyms=synonyms, include_documentation=documentation)
    result: DescribeConfigsResult = world.request(k32_describe_configs, body).results[0]
    return result


def test_describe_topic_config_returns_source_and_synonyms() -> None:
    world = AdminWorld(log_segment_bytes="5000", log_retention_hours="1")
    create_topics(world, topic("t", configs=(("segment.bytes", "6000"),)))
    result = describe(world, 2, "t", ("segment.bytes", "retention.ms", "unclean.leader.election.enable"), True, True)
    rows = {row.name: row for row in result.configs}
    assert sorted(rows) == ["retention.ms", "segment.bytes", "unclean.leader.election.enable"]
    own = [(synonym.name, synonym.value, synonym.source) for synonym in rows["segment.bytes"].synonyms]
    behind = [("log.segment.bytes", "5000", 4), ("log.segment.bytes", "1073741824", 5)]
    assert own == [("segment.bytes", "6000", 1), *behind]
    assert (rows["segment.bytes"].config_source, rows["segment.bytes"].config_type) == (1, 3)
    assert (rows["retention.ms"].value, rows["retention.ms"].config_source) == ("3600000", 4)
    unclean = rows["unclean.leader.election.enable"]
    assert (unclean.value, unclean.config_source) == ("false", 5)
    assert not any(row.read_only or row.is_sensitive for row in result.configs)
    assert all(row.documentation for row in result.configs)


def test_describe_configs_without_keys_returns_all_and_documentation_on_request() -> None:
    world = AdminWorld()
    create_topics(world, topic("t"))
    result = describe(world, 2, "t")
    assert {row.name for row in result.configs} == set(TOPIC_KEYS) - {"internal.segment.bytes"}
    assert all(row.synonyms == () and row.documentation is None for row in result.configs)
    assert len(describe(world, 2, "t", ()).configs) == len(result.configs)


def test_repeated_resource_is_described_once_for_each_list_of_keys() -> None:
    world = AdminWorld()
    create_topics(world, topic("t"))
    wanted = (("retention.ms",), ("segment.ms",), ("retention.ms",))
    resources = tuple(
        DescribeConfigsResource(resource_type=i8(2), resource_name="t", configuration_keys=keys) for keys in wanted
    )
    body = DescribeConfigsRequest(resources=resources, include_synonyms=False, include_documentation=False)
    results = world.request(k32_describe_configs, body).results
    assert [[row.name for row in result.configs] for result in results] == [["retention.ms"], ["segment.ms"]]


def test_internal_config_is_described_only_where_topic_sets_it() -> None:
    world = AdminWorld()
    create_topics(world, topic("t", configs=(("internal.segment.bytes", "2000"),)))
    (row,) = describe(world, 2, "t", ("internal.segment.bytes",), True).configs
    assert (row.value, row.config_source, row.config_type) == ("2000", 1, 3)
    assert [(synonym.name, synonym.value, synonym.source) for synonym in row.synonyms] == [
        ("internal.segment.bytes", "2000", 1)
    ]


def test_describe_broker_configs() -> None:
    world = AdminWorld(fetch_max_bytes="2048")
    rows = {row.name: row for row in describe(world, 4, "1").configs}
    assert (rows["fetch.max.bytes"].value, rows["fetch.max.bytes"].config_source) == ("2048", 4)
    assert rows["fetch.max.bytes"].read_only
    assert rows["max.incremental.fetch.session.cache.slots"].config_source == 5
    (minimum,) = describe(world, 4, "").configs
    assert (minimum.name, minimum.value, minimum.config_source) == ("min.insync.replicas", "1", 3)


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (2, "nope", ErrorCode.unknown_topic_or_partition),
        (2, "no good", ErrorCode.invalid_topic_exception),
        (4, "2", ErrorCode.invalid_request),
        (4, "one", ErrorCode.invalid_request),
        (8, "1", ErrorCode.invalid_request),
        (77, "x", ErrorCode.invalid_request),
    ],
)
def test_describe_unknown_resource_returns_error(kind: int, name: str, error: ErrorCode) -> None:
    result = describe(AdminWorld(), kind, name)
    assert result.error_code == error
    assert result.error_message
    assert result.configs == ()
