"""ApiVersions: returns the APIs and versions that this node serves.

* A version that is not served gets a response in the layout of version 0, with UNSUPPORTED_VERSION and the range of
  ApiVersions itself, so that the client can retry.
* A listener announces only what it takes.
* Private drafts lie outside the ranges. They are announced as supported features, which are finalized at their one
  level: administrators and their tools upgrade what is supported beyond its finalized level.

Version notes:
* v3: a client names its software. A malformed name gets INVALID_REQUEST.
* v4: the response has features whose lowest level is 0.

KIPs: 35, 511, 584.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.api_versions.v4.response import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from kio.static.primitive import i16, i64

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.listener_scopes import takes_api
from reference_broker.apis.registry import SERVED, Api, drafts_of
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.metadata.features import DRAFT_LEVEL, supported_features
from reference_broker.wire.apis import FIRST_DRAFT_VERSION, ApiKey
from reference_broker.wire.errors import ErrorCode

ADVERTISED_MINIMUM = {ApiKey.PRODUCE: 0}
"""Older versions of librdkafka do not compress unless Produce v0 is announced (KAFKA-18659). Kafka 4 announces it too.
A request in a version that is not served closes the connection, as in Kafka."""

LEVEL_0_FROM = 4
"""Clients of older versions take a feature that begins at level 0 for damage (KAFKA-17011)."""

Served: TypeAlias = tuple[tuple[int, tuple[int, int]], ...]
"""API keys, each with the lowest and the highest version that is served."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(broker: Broker, call: Call, body: ApiVersionsRequest | None) -> ApiVersionsResponse | None:
    """``body`` is None if the requested version is not served. The core passes that on for this API only."""
    if body is None:
        own = SERVED[ApiKey.API_VERSIONS]
        call.respond(_refusal(ErrorCode.unsupported_version, ((ApiKey.API_VERSIONS, own),)), api_version=0)
        return None
    if call.api_version >= 3 and not (
        _SOFTWARE.fullmatch(body.client_software_name) and _SOFTWARE.fullmatch(body.client_software_version)
    ):
        return _refusal(ErrorCode.invalid_request, ())
    image = broker.loader.image
    taken = _taken_on(broker, call.listener)
    drafts = _drafts(broker, taken)
    return ApiVersionsResponse(
        error_code=ErrorCode.none,
        api_keys=_ranges(tuple((key, served) for key, served in SERVED.items() if taken(key))),
        throttle_time=NO_THROTTLE,
        supported_features=_supported_keys(
            tuple(
                feature
                for feature in (*supported_features(broker.config), *drafts)
                if feature[1] > 0 or call.api_version >= LEVEL_0_FROM
            )
        ),
        finalized_features_epoch=i64(image.provenance.offset),
        finalized_features=_finalized_keys((*image.features.items(), *_finalized(drafts))),
    )


API: Api[ApiVersionsRequest | None] = Api.of((ApiVersionsRequest, type(None)), handle)


def _taken_on(broker: Broker, listener: str) -> Callable[[int], bool]:
    """Whether requests of an API are taken on the listener that the client came to."""
    if not listener:
        return lambda _: True
    scope = broker.config.listener_plan().scopes[listener]
    return lambda api_key: takes_api(scope, api_key)


def _drafts(broker: Broker, taken: Callable[[int], bool]) -> list[tuple[str, int, int]]:
    """Each private draft that is served, as a feature with the one level 1."""
    return [
        (feature, DRAFT_LEVEL, DRAFT_LEVEL)
        for draft, feature in drafts_of(broker.config).items()
        if draft[0] in SERVED and taken(draft[0])
    ]


def _finalized(drafts: Sequence[tuple[str, int, int]]) -> list[tuple[str, int]]:
    """The finalized level of each draft. A node that knows a draft always serves it."""
    return [(name, highest) for name, _, highest in drafts]


def _refusal(error: ErrorCode, served: Served) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=error, api_keys=_ranges(served), throttle_time=NO_THROTTLE)


# The parts of the response are built once for each listener and level, since every new connection requests them.


@lru_cache(16)
def _ranges(served: Served) -> tuple[ApiVersion, ...]:
    """Return the ranges for the wire."""
    return tuple(
        ApiVersion(
            api_key=i16(api_key),
            min_version=i16(ADVERTISED_MINIMUM.get(ApiKey(api_key), low)),
            max_version=i16(high),
        )
        for api_key, (low, high) in served
        if low < FIRST_DRAFT_VERSION
    )


@lru_cache(16)
def _supported_keys(features: tuple[tuple[str, int, int], ...]) -> tuple[SupportedFeatureKey, ...]:
    return tuple(
        SupportedFeatureKey(name=name, min_version=i16(low), max_version=i16(high)) for name, low, high in features
    )


@lru_cache(16)
def _finalized_keys(levels: tuple[tuple[str, int], ...]) -> tuple[FinalizedFeatureKey, ...]:
    return tuple(
        FinalizedFeatureKey(name=name, max_version_level=i16(level), min_version_level=i16(level))
        for name, level in levels
    )
