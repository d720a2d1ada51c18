"""The end of a Produce: who is told of what was appended, and when the producer is answered."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol, TypeAlias

from reference_broker.apis.call import Call, contained
from reference_broker.apis.parts import HasController, HasOutside, HasReplication
from reference_broker.apis.records.produce_answers import marked_response, response_of
from reference_broker.replication.durable import must_be_durable, nobody_waits, sync_led_then
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, error_name
from reference_broker.wire.produce import ProduceRequest, ProduceResponse, ProduceTopicResponse

ALL = -1
"""acks=all: every replica in sync must have the records, and there must be ``min.insync.replicas`` of them."""

Written: TypeAlias = tuple[Partition, bool, int]
"""The partition, whether something new was written, and where that ends."""


class Acknowledges(HasOutside, HasReplication, HasController, Protocol):
    """What this step uses of its broker."""


def finish(
    broker: Acknowledges,
    call: Call,
    body: ProduceRequest,
    responses: list[ProduceTopicResponse],
    new: Sequence[Written],
    written: Sequence[Written],
) -> ProduceResponse | None:
    """Answers once it may. ``new`` is the part of ``written`` of which nobody knows yet."""
    response = response_of(broker, responses, call)
    due: list[Partition] = []
    replicated: list[tuple[Partition, int]] = []
    tell(new)
    for partition, _, end in written:
        if partition.followers is not None:
            replicated.append((partition, end))
        if must_be_durable(partition.log):
            due.append(partition)
        elif partition.followers is None and partition.log.high_watermark < end and not partition.deleted:
            # When it was appended a sync was due, which another one has made needless.
            partition.log.advance_high_watermark(partition.log.log_end_offset)
            partition.changed()
    if body.acks == 0:
        for partition in due:
            sync_led_then(broker.outside, [partition], nobody_waits)
        _finish_unacknowledged(call, response)
        return None
    if replicated and body.acks == ALL:
        acknowledge = contained(call, partial(_acknowledge, broker, call, body.timeout_ms, response, replicated))
        if due:
            sync_led_then(broker.outside, due, acknowledge)
        else:
            acknowledge()
        return None
    if not due:
        return response
    sync_led_then(broker.outside, due, lambda: call.respond(response))
    return None


def tell(written: Sequence[Written]) -> None:
    for partition, is_new, _ in written:
        if is_new:
            partition.changed()


def _acknowledge(
    broker: Acknowledges,
    call: Call,
    timeout_ms: int,
    response: ProduceResponse,
    replicated: list[tuple[Partition, int]],
) -> None:
    """Responds once all replicas in sync have what was written."""

    def answered(errors: dict[Partition, Error]) -> None:
        call.respond(marked_response(broker, call, response, errors) if errors else response)

    abandon = broker.replication.leaders.acknowledge(replicated, timeout_ms, contained(call, answered))
    if abandon is not None:
        call.on_closed(abandon)


def _finish_unacknowledged(call: Call, response: ProduceResponse) -> None:
    """With acks=0 there is no answer. The client learns of an error by losing its connection, as in Kafka."""
    for topic in response.responses:
        for answer in topic.partitions:
            if answer.error_code:
                call.close(f"produce with acks=0 to {topic.topic}-{answer.partition}: {error_name(answer.error_code)}")
                return
    call.respond(None)
