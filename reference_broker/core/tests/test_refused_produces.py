"""Fields of the response to a rejected produce beside its error."""

from reference_broker.core.tests.node_world import NodeWorld, batch
from reference_broker.records.record import Record, build
from reference_broker.wire.errors import ErrorCode


def test_rejected_batch_returns_log_start_offset() -> None:
    world = NodeWorld(crucible_unknown_producer_id_policy="reject")
    world.create("t", cleanup_policy="compact")
    refused = [
        (build([Record(timestamp_ms=1, value=b"no key")]), ErrorCode.invalid_record),
        (batch(is_control=True), ErrorCode.invalid_record),
        (batch(producer_id=7, producer_epoch=0, base_sequence=3), ErrorCode.unknown_producer_id),
    ]
    for data, error in refused:
        response = world.produce("t", 0, data)
        assert (response.error_code, response.log_start_offset) == (error, 0)


def test_damaged_or_large_batch_returns_no_log_start_offset() -> None:
    world = NodeWorld()
    world.create("t", max_message_bytes="100")
    good = batch(b"v")
    damaged = good[:-1] + bytes([good[-1] ^ 1])
    for data, error in ((damaged, ErrorCode.corrupt_message), (batch(bytes(200)), ErrorCode.message_too_large)):
        response = world.produce("t", 0, data)
        assert (response.error_code, response.log_start_offset) == (error, -1)
