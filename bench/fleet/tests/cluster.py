"""Three nodes that respond to admins and metadata readers, one of them the active controller; faults on request."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kio.schema.api_versions.v4.response import ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey
from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.create_topics.v7.response import CreatableTopicResult, CreateTopicsResponse
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest
from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest
from kio.schema.describe_configs.v4.response import DescribeConfigsResponse
from kio.schema.incremental_alter_configs.v1.request import IncrementalAlterConfigsRequest
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from kio.schema.metadata.v13.response import MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic
from kio.schema.types import BrokerId, TopicName
from kio.schema.update_features.v2.request import UpdateFeaturesRequest
from kio.schema.update_features.v2.response import UpdateFeaturesResponse
from kio.static.primitive import i8, i16, i32, i64

from bench.fleet.behaviours import bodies
from bench.fleet.behaviours.protocol import Address, Behaviour, Disconnected, Request, TimedOut
from bench.fleet.tests.conftest import TICK_US, FleetWorld, described
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.retired_fields import MetadataRequest, MetadataResponse

ADDRESSES = tuple(Address(f"node-{number}", 9092) for number in range(3))
NO_WAIT = bodies.milliseconds(0)


@dataclass
class Made:
    topic_id: uuid.UUID
    partitions: int
    config: dict[str, str | None]


class FakeQuorum:
    """``behind``: nodes whose metadata does not change. ``hidden``: partitions that a node omits from a topic."""

    def __init__(self) -> None:
        self.controller = 0
        self.level = 20
        self.topics: dict[str, Made] = {}
        self.behind: dict[int, dict[str, Made]] = {}
        self.hidden: dict[tuple[int, str], int] = {}
        self.created = 0
        self.requests: list[tuple[int, Request]] = []

    def handle(self, node: int, request: Request) -> object:
        self.requests.append((node, request))
        body: Any = request.body
        if request.api_key == ApiKey.METADATA:
            return self.metadata(node, body)
        if request.api_key == ApiKey.DESCRIBE_CONFIGS:
            return self.describe(body)
        if request.api_key == ApiKey.API_VERSIONS:
            return ApiVersionsResponse(
                error_code=ErrorCode.none,
                api_keys=(),
                throttle_time=NO_WAIT,
                finalized_features_epoch=i64(0),
                supported_features=(
                    SupportedFeatureKey(name="metadata.version", min_version=i16(7), max_version=i16(27)),
                ),
                finalized_features=(
                    FinalizedFeatureKey(
                        name="metadata.version", max_version_level=i16(self.level), min_version_level=i16(1)
                    ),
                ),
            )
        refused = ErrorCode.not_controller if node != self.controller else None
        changes: dict[int, Callable[[Any, ErrorCode | None], object]] = {
            ApiKey.CREATE_TOPICS: self.create,
            ApiKey.DELETE_TOPICS: self.delete,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.alter,
            ApiKey.UPDATE_FEATURES: self.update,
        }
        return changes[request.api_key](body, refused)

    def create(self, body: CreateTopicsRequest, refused: ErrorCode | None) -> CreateTopicsResponse:
        results = []
        for topic in body.topics:
            error = refused or (ErrorCode.topic_already_exists if topic.name in self.topics else ErrorCode.none)
            if error is ErrorCode.none:
                self.created += 1
                self.topics[topic.name] = Made(uuid.UUID(int=self.created), topic.num_partitions, {})
            results.append(
                CreatableTopicResult(name=topic.name, topic_id=None, error_code=error, error_message=None, configs=())
            )
        return CreateTopicsResponse(throttle_time=NO_WAIT, topics=tuple(results))

    def delete(self, body: DeleteTopicsRequest, refused: ErrorCode | None) -> DeleteTopicsResponse:
        results = []
        for topic in body.topics:
            gone = None if refused else self.topics.pop(topic.name or "", None)
            error = refused or (ErrorCode.none if gone else ErrorCode.unknown_topic_or_partition)
            results.append(DeletableTopicResult(name=topic.name, topic_id=None, error_code=error))
        return DeleteTopicsResponse(throttle_time=NO_WAIT, responses=tuple(results))

    def alter(self, body: IncrementalAlterConfigsRequest, refused: ErrorCode | None) -> IncrementalAlterConfigsResponse:
        results = []
        for resource in body.resources:
            known = self.topics.get(resource.resource_name)
            if known is not None and refused is None:
                known.config.update({config.name: config.value for config in resource.configs})
            error = refused or (ErrorCode.none if known else ErrorCode.unknown_topic_or_partition)
            results.append(
                AlterConfigsResourceResponse(
                    error_code=error, error_message=None, resource_type=i8(2), resource_name=resource.resource_name
                )
            )
        return IncrementalAlterConfigsResponse(throttle_time=NO_WAIT, responses=tuple(results))

    def update(self, body: UpdateFeaturesRequest, refused: ErrorCode | None) -> UpdateFeaturesResponse:
        if refused is None:
            self.level = body.feature_updates[0].max_version_level
        return UpdateFeaturesResponse(throttle_time=NO_WAIT, error_code=refused or ErrorCode.none, error_message=None)

    def describe(self, body: DescribeConfigsRequest) -> DescribeConfigsResponse:
        return described(body, {name: topic.config for name, topic in self.topics.items()})

    def metadata(self, node: int, body: MetadataRequest) -> MetadataResponse:
        shown = self.behind.get(node, self.topics) if body.topics is None else {}
        return MetadataResponse(
            throttle_time=NO_WAIT,
            brokers=tuple(
                MetadataResponseBroker(node_id=BrokerId(number), host=address.host, port=i32(address.port))
                for number, address in enumerate(ADDRESSES)
            ),
            controller_id=BrokerId(self.controller),
            error_code=ErrorCode.none,
            topics=tuple(
                MetadataResponseTopic(
                    error_code=ErrorCode.none,
                    name=TopicName(name),
                    topic_id=made.topic_id,
                    partitions=tuple(
                        MetadataResponsePartition(
                            error_code=ErrorCode.none, partition_index=i32(number), leader_id=BrokerId(0)
                        )
                        for number in range(made.partitions - self.hidden.get((node, name), 0))
                    ),
                )
                for name, made in shown.items()
            ),
        )


class QuorumWorld(FleetWorld):
    """``down``: nodes that refuse and lose their connections."""

    def __init__(self, quorum: FakeQuorum) -> None:
        super().__init__(quorum)  # type: ignore[arg-type]
        self.quorum = quorum

    def send(self, behaviour: Behaviour, request: Request) -> None:
        node = self.at_node[behaviour.process, request.channel]
        if node in self.down:
            self.at(self.now_us + TICK_US, behaviour, Disconnected("closed", request.channel))
            return
        fate = self.fault(request)
        body = None if fate == "lose_request" else self.quorum.handle(node, request)
        if fate in ("lose_request", "lose_response"):
            self.at(self.now_us + request.timeout_us, behaviour, TimedOut(request.channel))
        else:
            self.respond(behaviour, body, request.channel)
