"""ApiVersions: which APIs and versions this node serves (KIP-35, KIP-511)."""

import re
from datetime import timedelta

from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.api_versions.v4.response import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16, i32Timedelta, i64

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.wire.apis import DRAFTS, ApiKey

CARD = Card(
    api_key=ApiKey.API_VERSIONS,
    min_version=0,
    max_version=4,
    behaviour="Ranges come from the cards. A version that is not served is answered in the layout of version 0 "
    "with UNSUPPORTED_VERSION and ApiVersions' own range, so that the client can ask again (KIP-511). "
    "Private drafts are outside the ranges and announced as supported features.",
    kips=(35, 511, 584),
)

ADVERTISED_MINIMUM = {ApiKey.PRODUCE: 0}
"""Older librdkafka takes compression for unsupported unless Produce v0 is announced (KAFKA-18659); Kafka 4 does
the same. A request in a version below the card's closes the connection, as in Kafka."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_NO_THROTTLE = i32Timedelta.parse(timedelta(0))


def handle(broker: Broker, call: Call, body: object) -> ApiVersionsResponse | None:
    """``body`` None: the version asked for is not served (the core passes that on for this API only)."""
    if body is None:
        call.respond(_refusal(ErrorCode.unsupported_version, [CARD]), api_version=0)
        return None
    assert isinstance(body, ApiVersionsRequest)
    if call.api_version >= 3 and not (
        _SOFTWARE.fullmatch(body.client_software_name) and _SOFTWARE.fullmatch(body.client_software_version)
    ):
        return _refusal(ErrorCode.invalid_request, [])
    return ApiVersionsResponse(
        error_code=ErrorCode.none,
        api_keys=_ranges(list(broker.cards)),
        throttle_time=_NO_THROTTLE,
        supported_features=tuple(
            SupportedFeatureKey(name=name, min_version=i16(low), max_version=i16(high))
            for name, low, high in (*broker.controller.supported_features(), *_drafts(broker.cards))
        ),
        finalized_features_epoch=i64(broker.controller.finalized_features_epoch),
        finalized_features=tuple(
            FinalizedFeatureKey(name=name, max_version_level=i16(level), min_version_level=i16(level))
            for name, level in broker.controller.finalized_features()
        ),
    )


def _drafts(cards: tuple[Card, ...]) -> list[tuple[str, int, int]]:
    """Each private draft of an API that is served, as a feature with the one level 1."""
    served = [card.api_key for card in cards]
    return [(feature, 1, 1) for (api_key, _), feature in DRAFTS.items() if api_key in served]


def _refusal(error: ErrorCode, cards: list[Card]) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=error, api_keys=_ranges(cards), throttle_time=_NO_THROTTLE)


def _ranges(cards: list[Card]) -> tuple[ApiVersion, ...]:
    return tuple(
        ApiVersion(
            api_key=i16(card.api_key),
            min_version=i16(ADVERTISED_MINIMUM.get(ApiKey(card.api_key), card.min_version)),
            max_version=i16(card.max_version),
        )
        for card in cards
    )
