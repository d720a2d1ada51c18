"""UpdateFeatures: raises or lowers the finalized levels of features.

* metadata.version has levels 7 to 27, transaction.version has 0 to 2. eligible.leader.replicas.version, group.version,
  kraft.version and crucible.metadata.epoch have 0 (off) and 1. share.version and streams.version are known to be off.
* A level must be known to this node and to every registered broker, as announced when it registered.
* All updates of a request are done or none. The first problem is the top-level error, and no feature has a result then.
* Level 1 of a private draft is granted and not stored: ApiVersions announces it as finalized.
* Unlike Kafka: nothing is stored otherwise at a lower level, so a safe downgrade is always possible. A feature that is
  named twice gets INVALID_REQUEST. Level 1 of group.version and of kraft.version is stored and shown, so that
  ``kafka-features upgrade --release-version`` works, and changes nothing: the APIs of KIP-848 and KIP-853 are not
  served. As in Kafka, kraft.version does not go down again.

Version notes:
* v0, v1: each feature has a result once all are done.

KIPs: 232, 584, 778, 848, 853, 890, 966, 1022.
"""

from kio.schema.update_features.v1.response import UpdatableFeatureResult, UpdateFeaturesResponse
from kio.schema.update_features.v2.request import UpdateFeaturesRequest

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.forwarding import forward_or_append
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, NOT_CONTROLLER, ApiError, error_fields
from reference_broker.controller.planning.feature_updates import FeatureUpdates, RequestedLevel
from reference_broker.wire.apis import ApiKey

LAST_WITH_RESULTS = 1
"""The last version with a result for each feature."""


def handle(broker: Broker, call: Call, body: UpdateFeaturesRequest) -> None:
    """Respond once the levels are committed and published."""
    levels = [
        RequestedLevel(feature_update.feature, feature_update.max_version_level, feature_update.upgrade_type)
        for feature_update in body.feature_updates
    ]
    forward_or_append(
        broker,
        call,
        ApiKey.UPDATE_FEATURES,
        body,
        FeatureUpdates(levels, body.validate_only),
        lambda problem: _response(body, problem, call.api_version),
    )


API = Api.of(UpdateFeaturesRequest, handle)


def _response(body: UpdateFeaturesRequest, problem: ApiError | None, api_version: int) -> UpdateFeaturesResponse:
    if problem is not None and problem is not NOT_CONTROLLER:
        why = f"The update failed for all features since the following feature had an error: {problem.message}"
        problem = ApiError(problem.error, why)
    has_results = api_version <= LAST_WITH_RESULTS and problem is None
    return UpdateFeaturesResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            UpdatableFeatureResult(feature=feature_update.feature, **error_fields(None))
            for feature_update in body.feature_updates
        )
        if has_results
        else (),
        **error_fields(problem),
    )
