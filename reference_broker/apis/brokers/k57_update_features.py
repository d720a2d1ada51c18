"""UpdateFeatures: raises or lowers the finalized metadata.version and crucible.metadata.epoch.

* metadata.version has levels 1 to 25, crucible.metadata.epoch has 0 (off) and 1.
* A level must be known to this node and to every registered broker, as announced when it registered.
* All updates of a request are done or none.
* Unlike Kafka: nothing is stored otherwise at a lower level, so a safe downgrade is always possible.

Version notes:
* v2: the reason of a refusal is the top-level error. Before, it stands at each feature.

KIPs: 232, 584, 778.
"""

from collections.abc import Mapping

from kio.schema.errors import ErrorCode
from kio.schema.update_features.v1.response import UpdatableFeatureResult, UpdateFeaturesResponse
from kio.schema.update_features.v2.request import FeatureUpdateKey, UpdateFeaturesRequest

from reference_broker.apis.api import Api
from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.passing_on import passed_on
from reference_broker.apis.proposing import NO_THROTTLE, Refusal
from reference_broker.controller.operations import Records
from reference_broker.controller.refusal import NOT_CONTROLLER
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.records import FeatureLevelRecord
from reference_broker.wire.apis import ApiKey

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def handle(broker: Broker, call: Call, body: UpdateFeaturesRequest) -> None:
    """Answers later."""
    problems: dict[str, Refusal] = {}

    def plan() -> Records:
        latest, seen = broker.controller.latest, dict[str, None]()
        known = {name: (low, high) for name, low, high in broker.controller.supported_features()}
        for update in body.feature_updates:
            problem = _problem(latest, known, update, update.feature in seen)
            seen[update.feature] = None
            if problem is not None:
                problems[update.feature] = problem
        if problems or body.validate_only:
            return ()
        return [
            FeatureLevelRecord(name=update.feature, feature_level=update.max_version_level)
            for update in body.feature_updates
            if latest.features.get(update.feature, 0) != update.max_version_level
        ]

    def answer(refused: Refusal | None) -> None:
        call.respond(_response(body, refused, problems, call.api_version))

    if not passed_on(broker, call, ApiKey.UPDATE_FEATURES, body, lambda: answer(NOT_CONTROLLER)):
        broker.controller.submit(plan, answer, name="update features")


API = Api.of(UpdateFeaturesRequest, handle)


def _problem(
    latest: MetadataImage, known: Mapping[str, tuple[int, int]], update: FeatureUpdateKey, is_twice: bool
) -> Refusal | None:
    name, level = update.feature, int(update.max_version_level)
    if is_twice:
        return Refusal(ErrorCode.invalid_request, f"Feature {name} is given twice.")
    if name not in known:
        return Refusal(ErrorCode.feature_update_failed, f"The controller does not support the given feature {name}.")
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return Refusal(ErrorCode.invalid_request, f"The upgrade type {update.upgrade_type} is unknown.")
    reason = _level_problem(latest, known[name], update)
    if reason is None:
        return None
    return Refusal(ErrorCode.invalid_update_version, f"Invalid update version {level} for feature {name}. {reason}")


def _level_problem(latest: MetadataImage, known: tuple[int, int], update: FeatureUpdateKey) -> str | None:
    """Why not this level; what this node lacks comes before what others lack."""
    name, level = update.feature, int(update.max_version_level)
    current = latest.features.get(name, 0)
    if not known[0] <= level <= known[1]:
        return f"Local controller only supports versions {known[0]}-{known[1]}"
    if level < current and update.upgrade_type == UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if level > current and update.upgrade_type != UPGRADE:
        return "Can't downgrade to a newer version."
    lacking = next((one for _, one in sorted(latest.brokers.items()) if not one.supports(name, level)), None)
    return None if lacking is None else f"Broker {lacking.broker_id} does not support it."


def _response(
    body: UpdateFeaturesRequest, refused: Refusal | None, problems: dict[str, Refusal], api_version: int
) -> UpdateFeaturesResponse:
    """Before version 2 a feature that would have been updated has no error although nothing is done, as in Kafka."""
    top = refused
    if top is None and problems and api_version > 1:
        top = next(iter(problems.values()))
    return UpdateFeaturesResponse(
        throttle_time=NO_THROTTLE,
        error_code=top.error if top else ErrorCode.none,
        error_message=top.message if top else None,
        results=() if top else tuple(_result(update.feature, problems) for update in body.feature_updates),
    )


def _result(name: str, problems: dict[str, Refusal]) -> UpdatableFeatureResult:
    problem = problems.get(name)
    return UpdatableFeatureResult(
        feature=name,
        error_code=problem.error if problem else ErrorCode.none,
        error_message=problem.message if problem else None,
    )
