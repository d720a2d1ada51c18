"""DeleteTopics (KIP-516): plans the removal of topics, which a request names by name or by ID (Kafka's
ReplicationControlManager)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from reference_broker.controller.write_operations import (
    UNKNOWN_TOPIC,
    ApiError,
    ControllerWriteOperation,
    PlanContext,
    Records,
)
from reference_broker.metadata.identifiers import REMOTE_LOG_METADATA_TOPIC
from reference_broker.metadata.image import MetadataImage, TopicImage
from reference_broker.metadata.records import RemoveTopicRecord
from reference_broker.ports.slicing import Sliced
from reference_broker.wire.errors import ErrorCode

DUPLICATE_TOPIC_OR_ID = ApiError(ErrorCode.invalid_request, "Duplicate topic name or ID.")
DISABLED = ApiError(
    ErrorCode.topic_deletion_disabled, "This topic cannot be deleted because delete.topic.enable is set to false."
)


KEPT_FOR_THE_TIER = ApiError(
    ErrorCode.topic_deletion_disabled,
    f"{REMOTE_LOG_METADATA_TOPIC} says what is in the remote tier. It can be deleted only while "
    "remote.log.storage.system.enable is false.",
)


@dataclass(frozen=True, slots=True)
class NamedTopic:
    """A topic, named by its name or by its ID. The other one is None."""

    name: str | None
    topic_id: bytes | None


DeletionOutcomes: TypeAlias = Sequence[TopicImage | ApiError]
"""For each entry of the request the removed topic, or why it was not removed."""


@dataclass(slots=True)
class TopicDeletion(ControllerWriteOperation[DeletionOutcomes]):
    """All good topics of one request are deleted at once, or none."""

    name = "delete topics"

    named: Sequence[NamedTopic]
    results: list[TopicImage | ApiError] = field(default_factory=list)

    def plan(self, context: PlanContext) -> Sliced[Records]:
        if not context.config.delete_topic_enable:
            self.results += [DISABLED] * len(self.named)
            return ()
        for entry in self.named:
            self.results.append(_kept_for_the_tier(context, _find(context.latest, entry)))
            if context.spend(1):
                yield
        self._refuse_duplicates()
        return [RemoveTopicRecord(topic_id=topic.topic_id) for topic in self.results if isinstance(topic, TopicImage)]

    def outcome(self, refused: ApiError | None) -> DeletionOutcomes:
        return self.results if refused is None else [refused] * len(self.named)

    def _refuse_duplicates(self) -> None:
        """Refuse the entries of a topic that is named twice, by its name, its ID or both, and repeated entries of
        unknown topics."""
        keys = [_key(entry, topic) for entry, topic in zip(self.named, self.results, strict=True)]
        times = Counter(keys)
        self.results = [
            DUPLICATE_TOPIC_OR_ID if key is not None and times[key] > 1 else topic
            for key, topic in zip(keys, self.results, strict=True)
        ]


def _key(entry: NamedTopic, topic: TopicImage | ApiError) -> bytes | str | None:
    """Return the topic's ID, or the entry's name or ID if no topic has it. Return None for an entry with neither or
    both."""
    if isinstance(topic, TopicImage):
        return topic.topic_id
    return None if (entry.name is None) == (entry.topic_id is None) else entry.topic_id or entry.name


def _find(image: MetadataImage, entry: NamedTopic) -> TopicImage | ApiError:
    if entry.name is not None and entry.topic_id is not None:
        return ApiError(ErrorCode.invalid_request, "You may not specify both topic name and topic id.")
    if entry.topic_id is not None:
        topic = image.topic_by_id(entry.topic_id)
        return topic or ApiError(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
    if entry.name is None:
        return ApiError(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    return image.topics.get(entry.name) or UNKNOWN_TOPIC


def _kept_for_the_tier(context: PlanContext, topic: TopicImage | ApiError) -> TopicImage | ApiError:
    """Unlike Kafka, where whatever is in the tier is lost with the topic."""
    is_needed = context.config.remote_log_storage_system_enable
    if is_needed and isinstance(topic, TopicImage) and topic.name == REMOTE_LOG_METADATA_TOPIC:
        return KEPT_FOR_THE_TIER
    return topic
