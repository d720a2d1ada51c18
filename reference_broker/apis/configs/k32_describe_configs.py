"""DescribeConfigs: tells the settings of topics and of this broker.

* The answer holds all settings, or those whose keys the request names.
* Each setting has its source and type. It has synonyms and documentation if the request asks for them.
* The empty broker name means dynamic settings of the whole cluster, of which there are none.
* Unlike Kafka: the settings of a broker are fixed at its start. Broker loggers, client metrics and groups get
  INVALID_REQUEST.

KIPs: 133, 226, 569.
"""

from typing import Protocol

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kio.static.primitive import i8

from reference_broker.apis.api import Api
from reference_broker.apis.call import Call
from reference_broker.apis.configs.config_rows import ConfigRow, broker_rows, cluster_rows, topic_rows
from reference_broker.apis.parts import HasConfig, HasController, HasNodeId
from reference_broker.apis.proposing import NO_THROTTLE, Refusal, verdict
from reference_broker.controller.refusal import UNKNOWN_TOPIC
from reference_broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE
from reference_broker.metadata.min_isr import CLUSTER
from reference_broker.metadata.topic_names import name_problem
from reference_broker.wire.errors import ErrorCode


class Needs(HasConfig, HasController, HasNodeId, Protocol):
    """What this API uses of its broker."""


def handle(broker: Needs, call: Call, body: DescribeConfigsRequest) -> DescribeConfigsResponse:  # noqa: ARG001
    """Answers with one result for each resource, in the order of the request."""
    return DescribeConfigsResponse(
        throttle_time=NO_THROTTLE, results=tuple(_result(broker, body, resource) for resource in body.resources)
    )


API = Api.of(DescribeConfigsRequest, handle)


def _result(broker: Needs, body: DescribeConfigsRequest, resource: DescribeConfigsResource) -> DescribeConfigsResult:
    rows = _rows(broker, resource)
    return DescribeConfigsResult(
        resource_type=i8(resource.resource_type),
        resource_name=resource.resource_name,
        configs=() if isinstance(rows, Refusal) else tuple(_row(row, body) for row in rows),
        **verdict(rows),
    )


def _rows(broker: Needs, resource: DescribeConfigsResource) -> list[ConfigRow] | Refusal:
    name, asked, image = resource.resource_name, resource.configuration_keys, broker.controller.image
    cluster = image.configs.get(CLUSTER, {})
    if resource.resource_type == TOPIC_RESOURCE:
        problem = name_problem(name)
        if problem is not None:
            return Refusal(ErrorCode.invalid_topic_exception, problem)
        if name not in image.topics:
            return UNKNOWN_TOPIC
        return topic_rows(broker.config, image.topic_configs(name), asked, cluster)
    if resource.resource_type != BROKER_RESOURCE:
        return Refusal(ErrorCode.invalid_request, f"Unsupported resource type: {resource.resource_type}")
    if name == "":
        return cluster_rows(cluster, asked)
    if name != str(broker.node_id):
        return Refusal(
            ErrorCode.invalid_request, f"Unexpected broker id, expected {broker.node_id} or empty string, got {name}"
        )
    return broker_rows(broker.config, asked, cluster)


def _row(row: ConfigRow, body: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=row.key.name,
        value=row.value,
        read_only=row.read_only,
        config_source=i8(row.source),
        is_sensitive=False,
        synonyms=tuple(
            DescribeConfigsSynonym(name=one.name, value=one.value, source=i8(one.source)) for one in row.synonyms
        )
        if body.include_synonyms
        else (),
        config_type=i8(row.key.kind),
        documentation=row.key.doc if body.include_documentation else None,
    )
