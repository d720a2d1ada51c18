"""Every response of the admin APIs can be encoded and decoded in every version that is announced."""

from types import ModuleType

import pytest
from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest
from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest
from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.metadata.v13.request import MetadataRequestTopic
from kio.schema.types import TopicName
from kio.static.primitive import i8, i32, i64

from reference_broker.apis.configs import k32_describe_configs
from reference_broker.apis.groups import k10_find_coordinator
from reference_broker.apis.metadata import k03_metadata, k60_describe_cluster, k75_describe_topic_partitions
from reference_broker.apis.records import k21_delete_records
from reference_broker.apis.tests.admin_world import NO_WAIT, AdminWorld
from reference_broker.apis.tests.declared import key_of, versions_of
from reference_broker.apis.tests.topic_requests import (
    by_name,
    create_partitions_request,
    create_topics,
    create_topics_request,
    topic,
)
from reference_broker.apis.topics import k19_create_topics, k20_delete_topics, k37_create_partitions
from reference_broker.apis.transactions import k22_init_producer_id
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import decode_request, decode_response, encode_request, encode_response
from reference_broker.wire.retired_fields import MetadataRequest

BODIES = {
    k03_metadata: MetadataRequest(
        topics=(MetadataRequestTopic(name=TopicName("t"), topic_id=None),), include_topic_authorized_operations=False
    ),
    k10_find_coordinator: FindCoordinatorRequest(coordinator_keys=("g",)),
    k19_create_topics: create_topics_request("new"),
    k20_delete_topics: DeleteTopicsRequest(topics=(by_name("t"),), timeout=NO_WAIT),
    k21_delete_records: DeleteRecordsRequest(
        topics=(
            DeleteRecordsTopic(
                name=TopicName("t"), partitions=(DeleteRecordsPartition(partition_index=i32(0), offset=i64(-1)),)
            ),
        ),
        timeout=NO_WAIT,
    ),
    k22_init_producer_id: InitProducerIdRequest(transactional_id=None, transaction_timeout=NO_WAIT),
    k32_describe_configs: DescribeConfigsRequest(
        resources=(DescribeConfigsResource(resource_type=i8(2), resource_name="t"),), include_synonyms=True
    ),
    k37_create_partitions: create_partitions_request("t", 2),
    k60_describe_cluster: DescribeClusterRequest(
        include_cluster_authorized_operations=False, include_fenced_brokers=False
    ),
    k75_describe_topic_partitions: DescribeTopicPartitionsRequest(topics=()),
}
CASES = [(module, version) for module in BODIES for version in versions_of(module)]


@pytest.mark.thorough
@pytest.mark.parametrize(("module", "version"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_request_and_response_round_trip_in_each_announced_version(module: ModuleType, version: int) -> None:
    world, key = AdminWorld(), key_of(module)
    create_topics(world, topic("t"))
    frame = memoryview(b"".join(encode_request(key, version, 1, "c", BODIES[module])))[4:]
    header, offset = read_request_header(frame)
    assert (header.api_key, header.api_version) == (key, version)
    request = decode_request(key, version, frame, offset)
    response = world.request(module, request, version)
    written = b"".join(encode_response(key, version, 9, response))
    correlation_id, read = decode_response(key, version, memoryview(written)[4:])
    assert correlation_id == 9
    assert b"".join(encode_response(key, version, 9, read)) == written
