"""DescribeConfigs: returns the settings of topics and of this broker.

* The response has all settings, or those whose keys the request names.
* Each setting has its source and type. It has synonyms and documentation if the request wants them.
* A resource that is named twice is described with the keys of each entry.
* The empty broker name means the settings that the metadata sets for all brokers. A broker describes only itself.
* Settings of brokers that cannot change while they run are read-only (``metadata.broker_settings``).
* A setting of brokers whose name Kafka does not know is sensitive: its value is null.
* Unlike Kafka: broker loggers, client metrics and groups get INVALID_REQUEST. A retention in hours or minutes is shown
  under the name in milliseconds, and so has no synonyms in other units. A resource that is named again with the same
  keys is described once, because a small request could get gigabytes.

KIPs: 133, 226, 569.
"""

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kio.static.primitive import i8

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, respond_in_slices
from reference_broker.apis.configs.altering import strange_broker
from reference_broker.apis.configs.config_rows import ConfigRow, broker_rows, cluster_rows, topic_rows
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, ApiError, error_fields
from reference_broker.controller.planning.config_changes import unknown_kind
from reference_broker.controller.write_operations import UNKNOWN_TOPIC
from reference_broker.metadata.broker_settings import layers_of
from reference_broker.metadata.identifiers import name_problem
from reference_broker.metadata.image import TOPIC_RESOURCE
from reference_broker.ports.slicing import DESCRIBED_RESOURCES_PER_SLICE, Sliced, run_to_end
from reference_broker.wire.errors import ErrorCode


def handle(broker: Broker, call: Call, body: DescribeConfigsRequest) -> DescribeConfigsResponse | None:
    """Return one result for each resource, in the order of the request. Many are described in several events
    and sent through ``call``."""
    building = _response(broker, body)
    if len(body.resources) <= DESCRIBED_RESOURCES_PER_SLICE:
        return run_to_end(building)
    respond_in_slices(broker, call, building)
    return None


API = Api.of(DescribeConfigsRequest, handle)


def _response(broker: Broker, body: DescribeConfigsRequest) -> Sliced[DescribeConfigsResponse]:
    results: dict[tuple[int, str, tuple[str, ...]], DescribeConfigsResult] = {}
    built_rows: dict[ConfigRow, DescribeConfigsResourceResult] = {}
    for number, resource in enumerate(body.resources, 1):
        key = resource.resource_type, resource.resource_name, tuple(resource.configuration_keys or ())
        if key not in results:
            results[key] = _result(broker, body, resource, built_rows)
        if number % DESCRIBED_RESOURCES_PER_SLICE == 0:
            yield
    return DescribeConfigsResponse(throttle_time=NO_THROTTLE, results=tuple(results.values()))


def _result(
    broker: Broker,
    body: DescribeConfigsRequest,
    resource: DescribeConfigsResource,
    built_rows: dict[ConfigRow, DescribeConfigsResourceResult],
) -> DescribeConfigsResult:
    """``built_rows`` has the settings that were built already: most topics have those of the broker."""
    rows = _rows(broker, resource)
    configs: list[DescribeConfigsResourceResult] = []
    for row in () if isinstance(rows, ApiError) else rows:
        built = built_rows.get(row)
        if built is None:
            built = built_rows[row] = _row(row, body)
        configs.append(built)
    return DescribeConfigsResult(
        resource_type=i8(resource.resource_type),
        resource_name=resource.resource_name,
        configs=tuple(configs),
        **error_fields(rows),
    )


def _rows(broker: Broker, resource: DescribeConfigsResource) -> list[ConfigRow] | ApiError:
    name, wanted_keys, image = resource.resource_name, resource.configuration_keys, broker.controller.image
    layers = layers_of(image, broker.node_id)
    if resource.resource_type == TOPIC_RESOURCE:
        problem = name_problem(name)
        if problem is not None:
            return ApiError(ErrorCode.invalid_topic_exception, problem)
        if name not in image.topics:
            return UNKNOWN_TOPIC
        return topic_rows(broker.config, image.topic_configs(name), wanted_keys, layers)
    refusal = unknown_kind(resource.resource_type, name) or strange_broker(broker.node_id, name)
    if refusal is not None:
        return refusal
    return broker_rows(broker.config, wanted_keys, layers) if name else cluster_rows(layers.cluster, wanted_keys)


def _row(row: ConfigRow, body: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=row.key.name,
        value=row.value,
        read_only=row.read_only,
        config_source=i8(row.source),
        is_sensitive=row.is_sensitive,
        synonyms=tuple(
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=i8(synonym.source))
            for synonym in row.synonyms
        )
        if body.include_synonyms
        else (),
        config_type=i8(row.key.kind),
        documentation=(row.key.doc or None) if body.include_documentation else None,
    )
