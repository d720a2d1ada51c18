"""Requests that only the active controller serves, as tests build them."""

from collections.abc import Sequence
from typing import TypeAlias
from uuid import UUID

from kio.schema.alter_configs.v2.request import AlterableConfig as PlainConfig
from kio.schema.alter_configs.v2.request import AlterConfigsRequest
from kio.schema.alter_configs.v2.request import AlterConfigsResource as PlainResource
from kio.schema.broker_heartbeat.v2.request import BrokerHeartbeatRequest
from kio.schema.broker_registration.v4.request import BrokerRegistrationRequest, Feature, Listener
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.types import BrokerId
from kio.schema.update_features.v2.request import FeatureUpdateKey, UpdateFeaturesRequest
from kio.static.primitive import i8, i16, i64, u16

from reference_broker.apis.configs import k33_alter_configs, k44_incremental_alter_configs
from reference_broker.apis.tests.admin_world import A_SECOND, AdminWorld

Setting: TypeAlias = tuple[str, int, str | None]
Resource: TypeAlias = tuple[str, Sequence[Setting]] | tuple[str, Sequence[Setting], int]
SET = 0
DELETE = 1
APPEND = 2
SUBTRACT = 3


def incremental_alter_configs_request(
    *resources: Resource, validate_only: bool = False
) -> IncrementalAlterConfigsRequest:
    """Return a request for resources as (name, [(setting, operation, value)]) or (name, settings, type)."""
    return IncrementalAlterConfigsRequest(
        resources=tuple(
            AlterConfigsResource(
                resource_type=i8(kind[0] if kind else 2),
                resource_name=name,
                configs=tuple(
                    AlterableConfig(name=key, config_operation=i8(operation), value=value)
                    for key, operation, value in configs
                ),
            )
            for name, configs, *kind in resources
        ),
        validate_only=validate_only,
    )


def incremental_alter_configs(world: AdminWorld, *resources: Resource, validate_only: bool = False) -> list[str]:
    response = world.request(
        k44_incremental_alter_configs, incremental_alter_configs_request(*resources, validate_only=validate_only)
    )
    return [each.error_code.name for each in response.responses]


def alter_configs(world: AdminWorld, name: str, pairs: list[tuple[str, str | None]], kind: int = 2) -> str:
    resource = PlainResource(
        resource_type=i8(kind),
        resource_name=name,
        configs=tuple(PlainConfig(name=key, value=value) for key, value in pairs),
    )
    response = world.request(k33_alter_configs, AlterConfigsRequest(resources=(resource,), validate_only=False))
    return str(response.responses[0].error_code.name)


def settings_of(world: AdminWorld, name: str) -> dict[str, str]:
    return dict(world.controller.image.topic_configs(name))


def update_features_request(
    level: int, upgrade_type: int = 1, feature: str = "metadata.version", validate_only: bool = False
) -> UpdateFeaturesRequest:
    update = FeatureUpdateKey(feature=feature, max_version_level=i16(level), upgrade_type=i8(upgrade_type))
    return UpdateFeaturesRequest(timeout=A_SECOND, feature_updates=(update,), validate_only=validate_only)


def registration_request(
    broker_id: int = 7, incarnation: int = 5, cluster_id: str = "cluster", directory: int = 3
) -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(
        broker_id=BrokerId(broker_id),
        cluster_id=cluster_id,
        incarnation_id=UUID(int=incarnation),
        listeners=(Listener(name="PLAINTEXT", host="h", port=u16(1), security_protocol=i16(0)),),
        features=(
            Feature(name="metadata.version", min_supported_version=i16(7), max_supported_version=i16(27)),
            Feature(
                name="eligible.leader.replicas.version", min_supported_version=i16(0), max_supported_version=i16(1)
            ),
            Feature(name="transaction.version", min_supported_version=i16(0), max_supported_version=i16(2)),
        ),
        rack=None,
        log_dirs=(UUID(int=directory),),
    )


def heartbeat_request(
    broker_id: int, epoch: int, fence: bool = False, shut_down: bool = False
) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(
        broker_id=BrokerId(broker_id),
        broker_epoch=i64(epoch),
        current_metadata_offset=i64(10**6),
        want_fence=fence,
        want_shut_down=shut_down,
    )
