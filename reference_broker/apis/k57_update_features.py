"""UpdateFeatures: raises or lowers the finalized metadata.version (KIP-584, KIP-778)."""

from kio.schema.errors import ErrorCode
from kio.schema.update_features.v1.response import UpdatableFeatureResult, UpdateFeaturesResponse
from kio.schema.update_features.v2.request import FeatureUpdateKey, UpdateFeaturesRequest

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.passing_on import passed_on
from reference_broker.apis.proposing import NO_THROTTLE, Refusal
from reference_broker.model.metadata_image import MetadataImage
from reference_broker.raft.features import (
    LOWEST_METADATA_VERSION,
    METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    metadata_version,
)
from reference_broker.raft.metadata_records import FeatureLevelRecord
from reference_broker.raft.operations import Records
from reference_broker.raft.refusal import NOT_CONTROLLER
from reference_broker.wire.apis import ApiKey

CARD = Card(
    api_key=ApiKey.UPDATE_FEATURES,
    min_version=0,
    max_version=2,
    behaviour="Only metadata.version exists, levels 1 to 25. All updates of a request are done or none; the reason is "
    "the top-level error from version 2 on, and stands at each feature before.",
    simplifications="Nothing is stored otherwise at a lower level, so a safe downgrade is always possible; the levels "
    "that other brokers announced are not looked at, since all run this code.",
    kips=(584, 778),
)

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def handle(broker: Broker, call: Call, body: object) -> None:
    """Answers later."""
    assert isinstance(body, UpdateFeaturesRequest)
    problems: dict[str, Refusal] = {}

    def plan() -> Records:
        latest, seen = broker.controller.latest, dict[str, None]()
        for update in body.feature_updates:
            problem = _problem(latest, update, update.feature in seen)
            seen[update.feature] = None
            if problem is not None:
                problems[update.feature] = problem
        if problems or body.validate_only:
            return ()
        return [
            FeatureLevelRecord(name=update.feature, feature_level=update.max_version_level)
            for update in body.feature_updates
            if latest.features.get(update.feature) != update.max_version_level
        ]

    def answer(refused: Refusal | None) -> None:
        call.respond(_response(body, refused, problems, call.api_version))

    if not passed_on(broker, call, CARD, body, lambda: answer(NOT_CONTROLLER)):
        broker.controller.submit(plan, answer, name="update features")


def _problem(latest: MetadataImage, update: FeatureUpdateKey, is_twice: bool) -> Refusal | None:
    name, level, current = update.feature, update.max_version_level, metadata_version(latest)
    if is_twice:
        return Refusal(ErrorCode.invalid_request, f"Feature {name} is given twice.")
    if name != METADATA_VERSION_FEATURE:
        return Refusal(ErrorCode.feature_update_failed, f"The controller does not support the given feature {name}.")
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return Refusal(ErrorCode.invalid_request, f"The upgrade type {update.upgrade_type} is unknown.")
    problem = None
    if not LOWEST_METADATA_VERSION <= level <= METADATA_VERSION:
        problem = (
            f"Invalid update version {level} for feature {name}. Local controller only supports versions "
            f"{LOWEST_METADATA_VERSION}-{METADATA_VERSION}"
        )
    elif level < current and update.upgrade_type == UPGRADE:
        problem = (
            f"Invalid update version {level} for feature {name}. Can't downgrade the version of this feature without "
            "setting the upgrade type to either safe or unsafe downgrade."
        )
    elif level > current and update.upgrade_type != UPGRADE:
        problem = f"Invalid update version {level} for feature {name}. Can't downgrade to a newer version."
    return None if problem is None else Refusal(ErrorCode.invalid_update_version, problem)


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
