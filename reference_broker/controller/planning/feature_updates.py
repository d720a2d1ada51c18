"""New levels of metadata.version and crucible.metadata.epoch (UpdateFeatures, KIP-584, KIP-778)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from reference_broker.controller.operations import Records
from reference_broker.controller.planning.change import Change, Situation
from reference_broker.controller.refusal import Refusal
from reference_broker.metadata.features import supported_features
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.records import FeatureLevelRecord
from reference_broker.wire.errors import ErrorCode

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


@dataclass(frozen=True, slots=True)
class WantedLevel:
    """The level that one feature is to have. ``upgrade_type`` is UPGRADE, SAFE_DOWNGRADE or UNSAFE_DOWNGRADE."""

    feature: str
    level: int
    upgrade_type: int


FeatureOutcomes: TypeAlias = Mapping[str, Refusal]
"""For each feature with a problem, why it cannot have the level. If there is one, no level was changed."""


@dataclass(slots=True)
class FeatureUpdates(Change[FeatureOutcomes | Refusal]):
    """All updates of one request are done, or none."""

    name = "update features"

    wanted: Sequence[WantedLevel]
    validate_only: bool
    problems: dict[str, Refusal] = field(default_factory=dict)

    def plan(self, situation: Situation) -> Records:
        latest, seen = situation.latest, dict[str, None]()
        known = {name: (low, high) for name, low, high in supported_features(situation.config)}
        for one in self.wanted:
            problem = _problem(latest, known, one, one.feature in seen)
            seen[one.feature] = None
            if problem is not None:
                self.problems[one.feature] = problem
        if self.problems or self.validate_only:
            return ()
        return [
            FeatureLevelRecord(name=one.feature, feature_level=one.level)
            for one in self.wanted
            if latest.features.get(one.feature, 0) != one.level
        ]

    def outcome(self, refused: Refusal | None) -> FeatureOutcomes | Refusal:
        return refused or self.problems


def _problem(
    latest: MetadataImage, known: Mapping[str, tuple[int, int]], wanted: WantedLevel, is_twice: bool
) -> Refusal | None:
    name = wanted.feature
    if is_twice:
        return Refusal(ErrorCode.invalid_request, f"Feature {name} is given twice.")
    if name not in known:
        return Refusal(ErrorCode.feature_update_failed, f"The controller does not support the given feature {name}.")
    if wanted.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return Refusal(ErrorCode.invalid_request, f"The upgrade type {wanted.upgrade_type} is unknown.")
    reason = _level_problem(latest, known[name], wanted)
    if reason is None:
        return None
    return Refusal(
        ErrorCode.invalid_update_version, f"Invalid update version {wanted.level} for feature {name}. {reason}"
    )


def _level_problem(latest: MetadataImage, known: tuple[int, int], wanted: WantedLevel) -> str | None:
    """Why the level is not possible. What this node lacks comes before what other brokers lack."""
    name, level = wanted.feature, wanted.level
    current = latest.features.get(name, 0)
    if not known[0] <= level <= known[1]:
        return f"Local controller only supports versions {known[0]}-{known[1]}"
    if level < current and wanted.upgrade_type == UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if level > current and wanted.upgrade_type != UPGRADE:
        return "Can't downgrade to a newer version."
    lacking = next((one for _, one in sorted(latest.brokers.items()) if not one.supports(name, level)), None)
    return None if lacking is None else f"Broker {lacking.broker_id} does not support it."
