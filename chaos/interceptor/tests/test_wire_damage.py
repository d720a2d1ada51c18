"""One bit of a frame is flipped: where, and what the receiver makes of the bytes."""

from random import Random

import pytest

from chaos.interceptor.frame_faults import RequestStream, damaged, has_part
from chaos.interceptor.interceptor import Interceptor
from chaos.interceptor.raw_frames import request_frame
from chaos.interceptor.rules import SharedHitCounter
from chaos.interceptor.tests.intercepted import NOW, Log, rule
from chaos.sim.codec_check import ReplyStream, reply_bytes
from reference_broker.core.events import Closed, Reply, Request
from reference_broker.records.batch import InvalidRecords, validate
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode, ProtocolError
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchRequest, FetchResponse, FetchTopicResponse, PartitionData
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from reference_broker.wire.tags import Tag

BATCH = build([Record(0, 0, None, b"value", ())], base_sequence=0)
PRODUCE = ProduceRequest(-1, 1000, [ProduceTopic("hot", NO_TOPIC_ID, [ProducePartition(0, BATCH + BATCH)])])


def produce(correlation: int = 5) -> Request:
    return Request(1, correlation, ApiKey.PRODUCE, 9, "p", PRODUCE, Tag(ApiKey.PRODUCE, 9, "p"))


def fetched(correlation: int = 5) -> Reply:
    data = PartitionData(0, 0, 2, records=BATCH + BATCH)
    body = FetchResponse(responses=[FetchTopicResponse("hot", NO_TOPIC_ID, [data])])
    return Reply(1, correlation, ApiKey.FETCH, 12, body, Tag(ApiKey.FETCH, 12, "f"))


@pytest.mark.parametrize("seed", range(30))
def test_damage_inside_a_checksum_is_seen_by_the_checksum(seed: int) -> None:
    hit = damaged(request_frame(produce()), PRODUCE, "checksummed", Random(seed))
    (request,) = RequestStream().arrived(1, hit.frame)
    assert isinstance(request.body, ProduceRequest)
    with pytest.raises(InvalidRecords) as seen:
        validate(request.body.topics[0].partitions[0].records or b"")
    assert seen.value.error == ErrorCode.corrupt_message


@pytest.mark.parametrize("seed", range(30))
def test_damaged_length_is_never_read_as_a_good_request(seed: int) -> None:
    hit = damaged(request_frame(produce()), PRODUCE, "length", Random(seed))
    assert hit.position < 4 or hit.frame[:4] == request_frame(produce())[:4]
    try:
        for request in RequestStream().arrived(1, hit.frame):
            assert isinstance(request.body, ProduceRequest)
            with pytest.raises(InvalidRecords):
                validate(request.body.topics[0].partitions[0].records or b"")
    except ProtocolError:
        pass


def test_damage_flips_one_bit_and_evidence_names_the_byte() -> None:
    whole = request_frame(produce())
    hit = damaged(whole, PRODUCE, "anywhere", Random(3))
    (differs,) = [at for at, (old, new) in enumerate(zip(whole, hit.frame, strict=True)) if old != new]
    assert differs == hit.position
    assert (hit.old ^ hit.new).bit_count() == 1
    assert hit.detail == f"byte {differs} of {len(whole)}: {hit.old:#04x} became {hit.new:#04x}"


def test_frame_without_records_has_no_checksummed_part() -> None:
    assert not has_part("checksummed", FetchRequest())
    assert not has_part("checksummed", FetchResponse())
    assert has_part("length", FetchRequest())
    assert has_part("checksummed", fetched().body)


def damaging(part: str, log: Log, on: str = "request", seed: int = 1) -> Interceptor:
    kind = "request_damaged" if on == "request" else "response_damaged"
    return Interceptor(0, [rule(kind, on, part=part)], log, Random(seed), 0, SharedHitCounter(), lambda: "")


def test_node_gets_the_damaged_request_and_later_ones_of_the_connection() -> None:
    log = Log()
    watch = damaging("checksummed", log)
    (first,) = watch.before(NOW, produce())
    assert isinstance(first, Request)
    assert first.body != PRODUCE
    (second,) = watch.before(NOW, produce(6))
    assert second == produce(6)._replace(frame_bytes=len(request_frame(produce(6))))
    assert [row.kind for row in log.rows] == ["request_damaged"]
    assert "read as a request" in log.rows[0].detail


def test_request_whose_length_grew_waits_for_more_bytes_and_then_the_connection_closes() -> None:
    for seed in range(40):
        log = Log()
        watch = damaging("length", log, seed=seed)
        if watch.before(NOW, produce()) == () or "not whole" not in log.rows[0].detail:
            continue
        assert [call[0] for call in log.calls] == ["reply_later", "report"]
        for number in range(6, 600):
            if list(watch.before(NOW, produce(number))) or ("discard", 1) in log.calls:
                break
        watch.before(NOW, Closed(1))
        return
    raise AssertionError("no seed made a length longer")


def test_node_sends_the_damaged_bytes_of_its_response() -> None:
    log = Log()
    watch = damaging("checksummed", log, on="response")
    assert list(watch.after(NOW, produce(), [fetched()])) == []
    (_, reply, frame) = log.calls[-1]
    assert reply == fetched()
    assert isinstance(frame, bytes)
    assert frame != reply_bytes(fetched())
    assert len(frame) == len(reply_bytes(fetched()))


def test_receiver_of_responses_closes_the_connection_after_a_length_that_is_too_small() -> None:
    frame = bytearray(reply_bytes(fetched()))
    frame[:4] = (len(frame) - 4 - 16).to_bytes(4, "big")
    stream = ReplyStream()
    with pytest.raises(ProtocolError):
        list(stream.arrived(fetched(), bytes(frame)))


def test_receiver_of_responses_reads_good_ones_after_damage_that_leaves_the_length() -> None:
    stream = ReplyStream()
    hit = damaged(reply_bytes(fetched()), fetched().body, "checksummed", Random(1))
    assert len(list(stream.arrived(fetched(), hit.frame))) == 1
    assert len(list(stream.arrived(fetched(6), reply_bytes(fetched(6))))) == 1
