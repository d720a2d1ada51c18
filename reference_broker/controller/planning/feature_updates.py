"""New levels of the cluster's features (UpdateFeatures, KIP-584, KIP-778, KIP-966)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from reference_broker.controller.write_operations import ApiError, ControllerWriteOperation, PlanContext, Records
from reference_broker.metadata.broker_settings import CLUSTER, MIN_ISR_KEY, cluster_min_isr_record
from reference_broker.metadata.features import (
    DRAFT_FEATURES,
    DRAFT_LEVEL,
    ELR_FEATURE,
    ELR_FROM,
    KRAFT_FEATURE,
    METADATA_VERSION_FEATURE,
    OFF_FEATURES,
    supported_features,
)
from reference_broker.metadata.image import BROKER_RESOURCE, MetadataImage
from reference_broker.metadata.records import ConfigRecord, FeatureLevelRecord, MetadataRecord
from reference_broker.wire.errors import ErrorCode

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


@dataclass(frozen=True, slots=True)
class RequestedLevel:
    """The level that one feature is to have. ``upgrade_type`` is UPGRADE, SAFE_DOWNGRADE or UNSAFE_DOWNGRADE."""

    feature: str
    level: int
    upgrade_type: int


@dataclass(slots=True)
class FeatureUpdates(ControllerWriteOperation[ApiError | None]):
    """All updates of one request are done, or none. The outcome is the first problem, as in Kafka."""

    name = "update features"

    requested: Sequence[RequestedLevel]
    validate_only: bool
    problem: ApiError | None = None

    def plan(self, context: PlanContext) -> Records:
        latest = context.latest
        supported = {name: (low, high) for name, low, high in supported_features(context.config)}
        times = Counter(update.feature for update in self.requested)
        problems = (_problem(latest, supported, update, times[update.feature] > 1) for update in self.requested)
        self.problem = next((problem for problem in problems if problem is not None), None) or _unmet(
            latest, self.requested
        )
        if self.problem is not None or self.validate_only:
            return ()
        records: list[MetadataRecord] = [
            FeatureLevelRecord(name=update.feature, feature_level=update.level)
            for update in self.requested
            if _current(latest, update.feature) != update.level
        ]
        begins = any(update.feature == ELR_FEATURE and update.level for update in self.requested)
        if begins and MIN_ISR_KEY not in latest.configs.get(CLUSTER, {}):
            records.append(cluster_min_isr_record(context.config.min_insync_replicas))
        if begins:
            records += _without_min_isr_of_brokers(latest)
        return records

    def outcome(self, refused: ApiError | None) -> ApiError | None:
        return refused or self.problem


def _without_min_isr_of_brokers(latest: MetadataImage) -> Iterator[ConfigRecord]:
    """Remove the settings of single brokers, since the cluster must have one min.insync.replicas (E-8)."""
    for kind, name in latest.configs:
        if kind == BROKER_RESOURCE and name and MIN_ISR_KEY in latest.configs[kind, name]:
            yield ConfigRecord(resource_type=kind, resource_name=name, name=MIN_ISR_KEY, value=None)


def _problem(
    latest: MetadataImage, supported: Mapping[str, tuple[int, int]], requested: RequestedLevel, is_twice: bool
) -> ApiError | None:
    name = requested.feature
    if is_twice:
        return ApiError(ErrorCode.invalid_request, f"Feature {name} is given twice.")
    if name in DRAFT_FEATURES:
        supported = {name: (DRAFT_LEVEL, DRAFT_LEVEL)}
    if name in OFF_FEATURES and requested.level == 0:
        return None
    if name not in supported:
        reason: str | None = "The local controller does not support this feature."
    elif requested.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        reason = "The controller does not support the given upgrade type."
    else:
        reason = _level_problem(latest, supported[name], requested)
    if reason is None:
        return None
    return ApiError(
        ErrorCode.invalid_update_version, f"Invalid update version {requested.level} for feature {name}. {reason}"
    )


def _current(latest: MetadataImage, feature: str) -> int:
    return DRAFT_LEVEL if feature in DRAFT_FEATURES else latest.features.get(feature, 0)


def _unmet(latest: MetadataImage, requested: Sequence[RequestedLevel]) -> ApiError | None:
    """Return why the levels cannot be combined, or None: the records of eligible leader replicas need a
    metadata.version."""
    levels = {**latest.features, **{update.feature: update.level for update in requested}}
    if levels.get(ELR_FEATURE, 0) == 0 or levels.get(METADATA_VERSION_FEATURE, 0) >= ELR_FROM:
        return None
    return ApiError(
        ErrorCode.invalid_update_version,
        f"{ELR_FEATURE} {levels[ELR_FEATURE]} needs {METADATA_VERSION_FEATURE} {ELR_FROM} or higher.",
    )


def _level_problem(latest: MetadataImage, supported: tuple[int, int], requested: RequestedLevel) -> str | None:
    """Return why the level is not possible, or None. A lack of this node is reported before a lack of other brokers."""
    name, level = requested.feature, requested.level
    current = _current(latest, name)
    if not supported[0] <= level <= supported[1]:
        return f"Local controller only supports versions {supported[0]}-{supported[1]}"
    if level < current and requested.upgrade_type == UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if level < current and name == KRAFT_FEATURE:
        return "Can't downgrade the version of this feature."
    if level > current and requested.upgrade_type != UPGRADE:
        return "Can't downgrade to a newer version."
    if name in DRAFT_FEATURES:  # Brokers do not register them.
        return None
    lacking = next((broker for _, broker in sorted(latest.brokers.items()) if not broker.supports(name, level)), None)
    return None if lacking is None else f"Broker {lacking.broker_id} does not support it."
