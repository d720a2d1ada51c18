"""UpdateFeatures: raises or lowers the finalized levels of features.

* metadata.version has levels 1 to 25, transaction.version has 0 to 2, eligible.leader.replicas.version and
  crucible.metadata.epoch have 0 (off) and 1.
* A level must be known to this node and to every registered broker, as announced when it registered.
* All updates of a request are done or none.
* Unlike Kafka: nothing is stored otherwise at a lower level, so a safe downgrade is always possible.

Version notes:
* v2: the reason of a refusal is the top-level error. Before, it stands at each feature.

KIPs: 232, 584, 778, 890, 966.
"""

from kio.schema.update_features.v1.response import UpdatableFeatureResult, UpdateFeaturesResponse
from kio.schema.update_features.v2.request import UpdateFeaturesRequest

from reference_broker.apis.api import Api
from reference_broker.apis.call import Call
from reference_broker.apis.passing_on import PassesOn, propose
from reference_broker.apis.proposing import NO_THROTTLE, Refusal, verdict
from reference_broker.controller.planning.feature_updates import FeatureOutcomes, FeatureUpdates, WantedLevel
from reference_broker.wire.apis import ApiKey


def handle(broker: PassesOn, call: Call, body: UpdateFeaturesRequest) -> None:
    """Answers once the levels are committed and published."""
    wanted = [WantedLevel(one.feature, one.max_version_level, one.upgrade_type) for one in body.feature_updates]
    propose(
        broker,
        call,
        ApiKey.UPDATE_FEATURES,
        body,
        FeatureUpdates(wanted, body.validate_only),
        lambda outcomes: _response(body, outcomes, call.api_version),
    )


API = Api.of(UpdateFeaturesRequest, handle)


def _response(
    body: UpdateFeaturesRequest, outcomes: FeatureOutcomes | Refusal, api_version: int
) -> UpdateFeaturesResponse:
    """Only versions before 2 have a result for each feature. There a feature without a problem has no error, although
    nothing is done because of the others. Kafka answers the same."""
    tells_each = api_version <= 1
    problems: FeatureOutcomes = {} if isinstance(outcomes, Refusal) else outcomes
    top = outcomes if isinstance(outcomes, Refusal) else None
    if top is None and problems and not tells_each:
        top = next(iter(problems.values()))
    return UpdateFeaturesResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            UpdatableFeatureResult(feature=one.feature, **verdict(problems.get(one.feature)))
            for one in body.feature_updates
        )
        if tells_each and not top
        else (),
        **verdict(top),
    )
