"""DescribeConfigs, DeleteRecords, InitProducerId."""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest
from kio.schema.delete_acls.v3.request import DeleteAclsFilter, DeleteAclsRequest
from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import DescribeConfigsResult
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.types import TopicName
from kio.static.primitive import i8, i32, i64

from reference_broker.apis.acls import k29_describe_acls, k30_create_acls, k31_delete_acls
from reference_broker.apis.configs import k32_describe_configs
from reference_broker.apis.records import k21_delete_records
from reference_broker.apis.tests.admin_world import NO_WAIT, AdminWorld
from reference_broker.apis.tests.test_topic_admin import create, topic
from reference_broker.apis.transactions import k22_init_producer_id
from reference_broker.configuration.topic_config import TOPIC_KEYS
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.messages import decode_response, encode_response


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


def delete_records(world: AdminWorld, *offsets: tuple[int, int], name: str = "t") -> list[tuple[str, int]]:
    partitions = tuple(
        DeleteRecordsPartition(partition_index=i32(index), offset=i64(offset)) for index, offset in offsets
    )
    body = DeleteRecordsRequest(
        topics=(DeleteRecordsTopic(name=TopicName(name), partitions=partitions),), timeout=NO_WAIT
    )
    response = world.request(k21_delete_records, body).topics[0].partitions
    return [(each.error_code.name, each.low_watermark) for each in response]


def init(**fields: Any) -> InitProducerIdRequest:
    return InitProducerIdRequest(**{"transactional_id": None, "transaction_timeout": timedelta(seconds=1), **fields})


def test_describe_topic_config_returns_source_and_synonyms() -> None:
    world = AdminWorld(log_segment_bytes="5000", log_retention_hours="1")
    create(world, topic("t", configs=(("segment.bytes", "6000"),)))
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
    create(world, topic("t"))
    result = describe(world, 2, "t")
    assert {row.name for row in result.configs} == set(TOPIC_KEYS) - {"internal.segment.bytes"}
    assert all(row.synonyms == () and row.documentation is None for row in result.configs)
    assert len(describe(world, 2, "t", ()).configs) == len(result.configs)


def test_repeated_resource_is_described_once_for_each_list_of_keys() -> None:
    world = AdminWorld()
    create(world, topic("t"))
    wanted = (("retention.ms",), ("segment.ms",), ("retention.ms",))
    resources = tuple(
        DescribeConfigsResource(resource_type=i8(2), resource_name="t", configuration_keys=keys) for keys in wanted
    )
    body = DescribeConfigsRequest(resources=resources, include_synonyms=False, include_documentation=False)
    results = world.request(k32_describe_configs, body).results
    assert [[row.name for row in result.configs] for result in results] == [["retention.ms"], ["segment.ms"]]


def test_internal_config_is_described_only_where_topic_sets_it() -> None:
    world = AdminWorld()
    create(world, topic("t", configs=(("internal.segment.bytes", "2000"),)))
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
    assert (result.error_code, bool(result.error_message), result.configs) == (error, True, ())


def test_delete_records_up_to_offset_or_high_watermark() -> None:
    world = AdminWorld()
    create(world, topic("t", 2))
    world.append("t", 0, 10)
    world.append("t", 1, 10)
    assert delete_records(world, (0, 4), (1, -1)) == [("none", 4), ("none", 10)]
    assert delete_records(world, (0, 2)) == [("none", 4)]
    assert world.broker.partitions.by_name["t", 0].log.log_start_offset == 4


def test_delete_records_notifies_watchers_of_partition() -> None:
    world = AdminWorld()
    create(world, topic("t"))
    world.append("t", 0, 3)
    seen = []

    class Watching:
        def partition_changed(self, partition: Partition) -> None:
            seen.append(partition.log.log_start_offset)

    world.broker.partitions.by_name["t", 0].watch(Watching())
    delete_records(world, (0, 2))
    assert seen == [2]


def test_invalid_delete_records_returns_error() -> None:
    world = AdminWorld()
    create(world, topic("t"), topic("c", configs=(("cleanup.policy", "compact"),)))
    world.append("t", 0, 3)
    assert delete_records(world, (0, 4), (0, -2), (5, 0)) == [
        ("offset_out_of_range", -1),
        ("offset_out_of_range", -1),
        ("unknown_topic_or_partition", -1),
    ]
    assert delete_records(world, (0, 0), name="c") == [("policy_violation", -1)]


@pytest.mark.clause("TransactionCoordinatorTest.shouldAcceptInitPidAndReturnNextPidWhenTransactionalIdIsNull")
@pytest.mark.clause("ProducerIdsIntegrationTest.testUniqueProducerIds")
def test_producer_ids_are_unique_across_restart() -> None:
    world = AdminWorld()
    given = [world.request(k22_init_producer_id, init()).producer_id for _ in range(1500)]
    again = world.restart(seed=1)
    given += [again.request(k22_init_producer_id, init()).producer_id for _ in range(10)]
    assert len(dict.fromkeys(given)) == len(given)
    assert given[:3] == [0, 1, 2]
    assert min(given[1500:]) == 2000


def test_init_producer_id_waits_for_durable_block_and_keeps_order() -> None:
    world = AdminWorld()
    world.auto = False
    calls = [world.send(k22_init_producer_id, init()) for _ in range(1002)]
    assert not any(call.responses for call in calls)
    world.metadata.commit()
    assert [len(call.responses) for call in calls[998:]] == [1, 1, 0, 0]
    world.metadata.commit()
    assert [(call.responses[0].producer_id, call.responses[0].producer_epoch) for call in calls] == [
        (number, 0) for number in range(1002)
    ]


def test_disk_error_fails_pending_init_producer_id_and_next_request_retries() -> None:
    world = AdminWorld()
    world.metadata.quorum.failing = 1
    response = world.request(k22_init_producer_id, init())
    assert (response.error_code, response.producer_id) == (ErrorCode.kafka_storage_error, -1)
    assert world.request(k22_init_producer_id, init()).producer_id == 0


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"transactional_id": ""}, ErrorCode.invalid_request),
        ({"transactional_id": "tx"}, ErrorCode.not_coordinator),
        ({"producer_id": 5}, ErrorCode.invalid_request),
        ({"producer_epoch": 5}, ErrorCode.invalid_request),
    ],
)
def test_invalid_init_producer_id_returns_error(fields: dict[str, int | str], error: ErrorCode) -> None:
    response = AdminWorld().request(k22_init_producer_id, init(**fields))
    assert (response.error_code, response.producer_id, response.producer_epoch) == (error, -1, -1)


def test_init_producer_id_without_transactional_id_ignores_given_id_and_epoch() -> None:
    response = AdminWorld().request(k22_init_producer_id, init(producer_id=5, producer_epoch=3))
    assert (response.error_code, response.producer_id, response.producer_epoch) == (ErrorCode.none, 0, 0)


@pytest.mark.parametrize("version", [1, 3])
def test_acl_requests_without_authorizer_return_security_disabled(version: int) -> None:
    """The error codes that a running Kafka 4.1.1 without an authorizer returned, in the layout of each version."""
    creation = AclCreation(
        resource_type=i8(2), resource_name="t", principal="User:a", host="*", operation=i8(3), permission_type=i8(3)
    )
    match = DeleteAclsFilter(
        resource_type_filter=i8(1),
        resource_name_filter=None,
        principal_filter=None,
        host_filter=None,
        operation=i8(1),
        permission_type=i8(1),
    )
    everything = DescribeAclsRequest(
        resource_type_filter=i8(1),
        resource_name_filter=None,
        pattern_type_filter=i8(1),
        principal_filter=None,
        host_filter=None,
        operation=i8(1),
        permission_type=i8(1),
    )
    response = AdminWorld().request(k29_describe_acls, everything)
    assert (response.error_code, response.resources) == (ErrorCode.security_disabled, ())
    response = AdminWorld().request(k30_create_acls, CreateAclsRequest(creations=(creation, creation)))
    assert [result.error_code for result in response.results] == [ErrorCode.security_disabled] * 2
    response = AdminWorld().request(k31_delete_acls, DeleteAclsRequest(filters=(match, match)))
    assert [result.error_code for result in response.filter_results] == [ErrorCode.security_disabled] * 2
    frame = b"".join(encode_response(31, version, 1, response))[4:]
    _, again = decode_response(31, version, memoryview(frame))
    assert again == response
