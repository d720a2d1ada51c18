"""UpdateFeatures: raises or lowers the finalized metadata.version and crucible.metadata.epoch.

* metadata.version has levels 1 to 25, crucible.metadata.epoch has 0 (off) and 1.
* A level must be known to this node and to every registered broker, as announced when it registered.
* All updates of a request are done or none.
* Unlike Kafka: nothing is stored otherwise at a lower level, so a safe downgrade is always possible.

Version notes:
* v2: the reason of a refusal is the top-level error. Before, it stands at each feature.

KIPs: 232, 584, 778.
"""

from kio.schema.update_features.v1.response import UpdatableFeatureResult, UpdateFeaturesResponse
from kio.schema.update_features.v2.request import UpdateFeaturesRequest

from reference_broker.apis.api import Api
from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.passing_on import passed_on
from reference_broker.apis.proposing import NO_THROTTLE, NOT_CONTROLLER, Refusal
from reference_broker.controller.planning.feature_updates import FeatureOutcomes, WantedLevel
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode


def handle(broker: Broker, call: Call, body: UpdateFeaturesRequest) -> None:
    """Answers later."""

    def answer(outcomes: FeatureOutcomes | Refusal) -> None:
        call.respond(_response(body, outcomes, call.api_version))

    if not passed_on(broker, call, ApiKey.UPDATE_FEATURES, body, lambda: answer(NOT_CONTROLLER)):
        wanted = [
            WantedLevel(one.feature, int(one.max_version_level), int(one.upgrade_type)) for one in body.feature_updates
        ]
        broker.controller.update_features(wanted, body.validate_only, answer)


API = Api.of(UpdateFeaturesRequest, handle)


def _response(
    body: UpdateFeaturesRequest, outcomes: FeatureOutcomes | Refusal, api_version: int
) -> UpdateFeaturesResponse:
    """Each feature has a result before version 2 only; there, one that would have been updated has no error although
    nothing is done, as in Kafka."""
    tells_each = api_version <= 1
    problems: FeatureOutcomes = {} if isinstance(outcomes, Refusal) else outcomes
    top = outcomes if isinstance(outcomes, Refusal) else None
    if top is None and problems and not tells_each:
        top = next(iter(problems.values()))
    return UpdateFeaturesResponse(
        throttle_time=NO_THROTTLE,
        error_code=top.error if top else ErrorCode.none,
        error_message=top.message if top else None,
        results=tuple(_result(one.feature, problems) for one in body.feature_updates) if tells_each and not top else (),
    )


def _result(name: str, problems: FeatureOutcomes) -> UpdatableFeatureResult:
    problem = problems.get(name)
    return UpdatableFeatureResult(
        feature=name,
        error_code=problem.error if problem else ErrorCode.none,
        error_message=problem.message if problem else None,
    )
