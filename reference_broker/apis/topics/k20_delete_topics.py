"""DeleteTopics: removes topics by name or by ID, all good ones of a request at once or none.

* The active controller responds once the removal is committed and published there. Others forward the request.
* The files are deleted later.
* Unlike Kafka: the timeout is not used, because nothing waits for other brokers.

Version notes:
* v3: TOPIC_DELETION_DISABLED. Older versions get INVALID_REQUEST.
* v6: topics may be named by ID.

KIPs: 4, 322, 516, 599.
"""

from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.types import TopicName

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.forwarding import forward_or_append
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, ApiError, as_uuid
from reference_broker.controller.planning.topic_deletion import DeletionOutcomes, NamedTopic, TopicDeletion
from reference_broker.metadata.image import TopicImage
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

DELETION_DISABLED_FROM = 3
"""The first version that has the error TOPIC_DELETION_DISABLED."""


def handle(broker: Broker, call: Call, body: DeleteTopicsRequest) -> None:
    """Respond later, with one result for each entry in the order of the request. Equal entries have one result."""

    def response_of(outcomes: DeletionOutcomes) -> DeleteTopicsResponse:
        by_entry = dict(zip(body.topics, outcomes, strict=True))
        results = tuple(_result(entry, outcome, call.api_version) for entry, outcome in by_entry.items())
        return DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=results)

    operation = TopicDeletion([_named(entry) for entry in body.topics])
    forward_or_append(broker, call, ApiKey.DELETE_TOPICS, body, operation, response_of)


API = Api.of(DeleteTopicsRequest, handle)


def _named(entry: DeleteTopicState) -> NamedTopic:
    return NamedTopic(entry.name, None if entry.topic_id is None else entry.topic_id.bytes)


def _result(entry: DeleteTopicState, outcome: TopicImage | ApiError, api_version: int) -> DeletableTopicResult:
    if isinstance(outcome, TopicImage):
        return DeletableTopicResult(
            name=TopicName(outcome.name), topic_id=as_uuid(outcome.topic_id), error_code=ErrorCode.none
        )
    return DeletableTopicResult(
        name=entry.name,
        topic_id=entry.topic_id,
        error_code=_error_code(outcome, api_version),
        error_message=outcome.message,
    )


def _error_code(refusal: ApiError, api_version: int) -> ErrorCode:
    if refusal.error is ErrorCode.topic_deletion_disabled and api_version < DELETION_DISABLED_FROM:
        return ErrorCode.invalid_request
    return refusal.error
