"""What a client gets whose request failed because of a bug of ours."""

from reference_broker.apis.call import Call
from reference_broker.core.events import Request
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.messages import empty_response, has_error_code
from reference_broker.wire.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)

FAILED = ErrorCode.unknown_server_error


def failed_request(call: Call, request: Request) -> None:
    """Answers with UNKNOWN_SERVER_ERROR, as Kafka does. Closes the connection if the answer cannot carry the error.

    A produce with acks=0 has no answer, so its connection closes, too. Does nothing if the call was answered before it
    failed.
    """
    if call.closed:
        return
    body = request.body
    if request.api_key == ApiKey.PRODUCE and isinstance(body, ProduceRequest) and body.acks != 0:
        call.respond(_produce_response(body))
    elif has_error_code(request.api_key, request.api_version):
        call.respond(empty_response(request.api_key, request.api_version, FAILED))
    else:
        call.close("a request failed because of a bug of ours")


def _produce_response(request: ProduceRequest) -> ProduceResponse:
    """Names each partition. Whether its records were written is unknown."""
    return ProduceResponse(
        [
            ProduceTopicResponse(
                topic.topic,
                topic.topic_id,
                [ProducePartitionResponse(each.partition, int(FAILED)) for each in topic.partitions],
            )
            for topic in request.topics
        ]
    )
