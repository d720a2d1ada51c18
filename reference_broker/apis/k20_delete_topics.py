"""DeleteTopics: removes topics by name or by ID, all good ones of a request in one batch (KIP-516, KIP-599)."""

from dataclasses import dataclass

from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.proposing import NO_THROTTLE, Refusal, as_uuid, propose
from reference_broker.model.metadata_image import MetadataImage, TopicImage
from reference_broker.raft.metadata_records import RemoveTopicRecord
from reference_broker.wire.apis import ApiKey

CARD = Card(
    api_key=ApiKey.DELETE_TOPICS,
    min_version=1,
    max_version=6,
    behaviour="Answered once the removal is durable and the partitions are closed; their files go later, in slices.",
    simplifications="The timeout is not used: nothing waits for other brokers.",
    kips=(4, 322, 516, 599),
)


@dataclass(frozen=True, slots=True)
class _Choice:
    """One entry of the request, and the topic that it means or why it means none."""

    entry: DeleteTopicState
    found: TopicImage | Refusal


def handle(broker: Broker, call: Call, body: object) -> None:
    """Answers later. One result for each entry of the request, in its order."""
    assert isinstance(body, DeleteTopicsRequest)
    choices = _choices(broker, call.api_version, body)
    records = [
        RemoveTopicRecord(topic_id=choice.found.topic_id)
        for choice in choices
        if isinstance(choice.found, TopicImage)
    ]

    def answer(refusal: Refusal | None) -> None:
        results = tuple(_result(choice, refusal) for choice in choices)
        call.respond(DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=results))

    propose(broker, records, answer)


def _choices(broker: Broker, api_version: int, body: DeleteTopicsRequest) -> list[_Choice]:
    if not broker.config.delete_topic_enable:
        error = ErrorCode.invalid_request if api_version < 3 else ErrorCode.topic_deletion_disabled
        disabled = Refusal(error, "This topic cannot be deleted because delete.topic.enable is set to false.")
        return [_Choice(entry, disabled) for entry in body.topics]
    image = broker.controller.latest
    found = [_find(image, entry) for entry in body.topics]
    times: dict[bytes, int] = {}
    for topic in found:
        if isinstance(topic, TopicImage):
            times[topic.topic_id] = times.get(topic.topic_id, 0) + 1
    return [
        _Choice(entry, _once(topic, times) if isinstance(topic, TopicImage) else topic)
        for entry, topic in zip(body.topics, found, strict=True)
    ]


def _once(topic: TopicImage, times: dict[bytes, int]) -> TopicImage | Refusal:
    if times[topic.topic_id] > 1:
        return Refusal(ErrorCode.invalid_request, "Duplicate topic name or ID.")
    return topic


def _find(image: MetadataImage, entry: DeleteTopicState) -> TopicImage | Refusal:
    if entry.name is not None and entry.topic_id is not None:
        return Refusal(ErrorCode.invalid_request, "You may not specify both topic name and topic id.")
    if entry.topic_id is not None:
        topic = image.topic_by_id(entry.topic_id.bytes)
        return topic or Refusal(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
    if entry.name is None:
        return Refusal(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    return image.topics.get(entry.name) or Refusal(
        ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition."
    )


def _result(choice: _Choice, refused: Refusal | None) -> DeletableTopicResult:
    found = choice.found
    if isinstance(found, TopicImage) and refused is None:
        return DeletableTopicResult(
            name=TopicName(found.name), topic_id=as_uuid(found.topic_id), error_code=ErrorCode.none
        )
    refusal = found if isinstance(found, Refusal) else refused
    assert refusal is not None, "a topic is deleted or there is a reason why not"
    return DeletableTopicResult(
        name=choice.entry.name,
        topic_id=choice.entry.topic_id,
        error_code=refusal.error,
        error_message=refusal.message,
    )
