"""Names as long as a request can contain: each request is rejected, in a response that can be encoded."""

from datetime import timedelta
from typing import Any

import pytest

from reference_broker.apis.registry import SERVED
from reference_broker.core.tests.hostile_client import HostileClient
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

LONG = "x" * 32_760
"""A message that repeats it does not fit a text of a version that is not flexible."""
SECOND = timedelta(seconds=1)
NAMED: dict[int, dict[str, Any]] = {
    ApiKey.CREATE_TOPICS: {
        "topics": [{"name": LONG, "num_partitions": 1, "replication_factor": 1}],
        "timeout": SECOND,
    },
    ApiKey.CREATE_PARTITIONS: {"topics": [{"name": LONG, "count": 3}], "timeout": SECOND},
    ApiKey.DELETE_TOPICS: {"topics": [{"name": LONG}], "timeout": SECOND},
    ApiKey.DESCRIBE_CONFIGS: {
        "resources": [{"resource_type": 2, "resource_name": LONG}, {"resource_type": 4, "resource_name": LONG}]
    },
    ApiKey.ALTER_CONFIGS: {
        "resources": [
            {"resource_type": 2, "resource_name": LONG},
            {"resource_type": 2, "resource_name": "t", "configs": [{"name": LONG, "value": "1"}]},
            {"resource_type": 2, "resource_name": "u", "configs": [{"name": "retention.ms", "value": LONG}]},
        ]
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {
        "resources": [
            {"resource_type": 2, "resource_name": LONG},
            {"resource_type": 2, "resource_name": "t", "configs": [{"name": LONG, "value": "1"}]},
            {
                "resource_type": 2,
                "resource_name": "u",
                "configs": [{"name": "retention.ms", "value": LONG}],
            },
        ]
    },
    ApiKey.ELECT_LEADERS: {"topic_partitions": [{"topic": LONG, "partitions": (1,)}], "timeout": SECOND},
    ApiKey.METADATA: {"topics": [{"name": LONG}]},
    ApiKey.FIND_COORDINATOR: {"key_type": 0, "coordinator_keys": (LONG,)},
    ApiKey.DESCRIBE_GROUPS: {"groups": (LONG,)},
}
REFUSED_IN_BOTH = [(key, version) for key in NAMED for version in range(SERVED[key][0], SERVED[key][1] + 1)]


@pytest.mark.thorough
@pytest.mark.parametrize(("key", "version"), REFUSED_IN_BOTH)
def test_long_name_is_rejected_in_encodable_response(key: int, version: int) -> None:
    if key == ApiKey.FIND_COORDINATOR and version < 4:
        named: dict[str, Any] = {"key_type": 0, "coordinator_keys": ("x" * 32_760,)}
    else:
        named = NAMED[key]
    world = NodeWorld()
    world.create("t")
    world.create("u")
    client = HostileClient(world)
    assert client.request(key, version, **named) is not None
    assert client.request(ApiKey.METADATA, 9, topics=[{"name": "t"}]).topics[0].error_code == ErrorCode.none


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_delete_records_of_internal_topics_is_rejected(name: str) -> None:
    world = NodeWorld()
    world.create(name, cleanup_policy="compact,delete")
    wanted = [{"partition_index": index, "offset": -1} for index in (0, 1)]
    topics = [{"name": name, "partitions": wanted}, {"name": "__share_group_state", "partitions": wanted[:1]}]
    response = HostileClient(world).request(ApiKey.DELETE_RECORDS, 2, topics=topics, timeout=SECOND)
    errors = [partition.error_code for topic in response.topics for partition in topic.partitions]
    assert errors == [ErrorCode.invalid_topic_exception, *[ErrorCode.unknown_topic_or_partition] * 2]
