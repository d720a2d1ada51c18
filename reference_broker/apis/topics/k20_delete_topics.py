"""DeleteTopics: removes topics by name or by ID, all good ones of a request at once or none.

* The active controller answers once the removal is committed and published there. Others pass the request on.
* Files go later, in slices.
* Unlike Kafka: the timeout is not used, because nothing waits for other brokers.

Version notes:
* v3: TOPIC_DELETION_DISABLED. Older versions get INVALID_REQUEST.
* v6: topics may be named by ID.

KIPs: 4, 322, 516, 599.
"""

from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass

from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName

from reference_broker.apis.api import Api
from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.passing_on import passed_on
from reference_broker.apis.proposing import NO_THROTTLE, Refusal, as_uuid
from reference_broker.controller.operations import Planning
from reference_broker.controller.refusal import NOT_CONTROLLER
from reference_broker.metadata.image import MetadataImage, TopicImage
from reference_broker.metadata.records import RemoveTopicRecord
from reference_broker.wire.apis import ApiKey


@dataclass(frozen=True, slots=True)
class _Choice:
    """One entry of the request, and the topic that it means or why it means none."""

    entry: DeleteTopicState
    found: TopicImage | Refusal


def handle(broker: Broker, call: Call, body: DeleteTopicsRequest) -> None:
    """Answers later. One result for each entry of the request, in its order."""
    choices: list[_Choice] = []

    def planning() -> Planning:
        yield from _choose(broker, call.api_version, body, choices)
        found = [choice.found for choice in choices]
        return [RemoveTopicRecord(topic_id=topic.topic_id) for topic in found if isinstance(topic, TopicImage)]

    def answer(refused: Refusal | None) -> None:
        if refused is not None:
            choices[:] = [_Choice(entry, refused) for entry in body.topics]
        results = tuple(_result(choice) for choice in choices)
        call.respond(DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=results))

    if not passed_on(broker, call, ApiKey.DELETE_TOPICS, body, lambda: answer(NOT_CONTROLLER)):
        broker.controller.submit(planning(), answer, name="delete topics")


API = Api.of(DeleteTopicsRequest, handle)


def _choose(
    broker: Broker, api_version: int, body: DeleteTopicsRequest, choices: list[_Choice]
) -> Generator[None, None, None]:
    """Fills ``choices``, in slices."""
    if not broker.config.delete_topic_enable:
        error = ErrorCode.invalid_request if api_version < 3 else ErrorCode.topic_deletion_disabled
        disabled = Refusal(error, "This topic cannot be deleted because delete.topic.enable is set to false.")
        choices += (_Choice(entry, disabled) for entry in body.topics)
        return
    found: list[TopicImage | Refusal] = []
    for entry in body.topics:
        found.append(_find(broker.controller.latest, entry))
        if broker.controller.spend(1):
            yield
    times = Counter(topic.topic_id for topic in found if isinstance(topic, TopicImage))
    choices += (
        _Choice(entry, _once(topic, times) if isinstance(topic, TopicImage) else topic)
        for entry, topic in zip(body.topics, found, strict=True)
    )


def _once(topic: TopicImage, times: Mapping[bytes, int]) -> TopicImage | Refusal:
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


def _result(choice: _Choice) -> DeletableTopicResult:
    found = choice.found
    if isinstance(found, TopicImage):
        return DeletableTopicResult(
            name=TopicName(found.name), topic_id=as_uuid(found.topic_id), error_code=ErrorCode.none
        )
    return DeletableTopicResult(
        name=choice.entry.name,
        topic_id=choice.entry.topic_id,
        error_code=found.error,
        error_message=found.message,
    )
