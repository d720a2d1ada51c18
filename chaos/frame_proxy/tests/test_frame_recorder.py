"""Records for the verdict of a run: each request with its response, and the partitions of fetches."""

import json
from pathlib import Path
from typing import Any

from chaos.frame_proxy.conversation import LARGE_BYTES
from chaos.frame_proxy.recorder import FRAMES, LINES, FrameRecorder
from chaos.frame_proxy.tests.talk import Talk
from chaos.frame_proxy.tests.test_conversation import UNKNOWN_API, produce, request, response
from chaos.interceptor.tests.intercepted import rule
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    ForgottenTopic,
    PartitionData,
)
from reference_broker.wire.messages import encode_request, encode_response
from reports.rows import FrameLineRow, FrameRow

ID = bytes(range(16))


def recorded(talk: Talk, folder: Path) -> tuple[list[FrameRow], list[FrameLineRow]]:
    assert talk.services.recorder is not None
    talk.services.recorder.close()
    found: Any = [
        [make(*json.loads(line)) for line in (folder / name).read_text().splitlines()]
        for name, make in ((FRAMES, FrameRow), (LINES, FrameLineRow))
    ]
    return found[0], found[1]


def talking(folder: Path, *rules: Any) -> Talk:
    talk = Talk(*rules)
    talk.services.recorder = FrameRecorder(folder, 3, lambda: 0)
    return talk.connect()


def fetch(correlation: int, **more: Any) -> bytes:
    topics = [FetchTopic("", ID, [FetchPartition(0, 5, 100), FetchPartition(1, 0, 100)])]
    body = FetchRequest(topics=topics, forgotten=[ForgottenTopic("", ID, [2])], **more)
    return b"".join(bytes(part) for part in encode_request(ApiKey.FETCH, 17, correlation, "c", body))


def fetched(correlation: int, records: bytes) -> bytes:
    data = [PartitionData(0, 0, 9, log_start_offset=2, records=records), PartitionData(1, 6, -1)]
    body = FetchResponse(session_id=77, throttle_time_ms=4, responses=[FetchTopicResponse("", ID, data)])
    return b"".join(bytes(part) for part in encode_response(ApiKey.FETCH, 17, correlation, body))


def test_fetch_is_recorded_with_its_partitions_and_its_response(tmp_path: Path) -> None:
    talk = talking(tmp_path)
    talk.conversation.from_client(fetch(1, session_id=5, session_epoch=3))
    talk.conversation.from_node(fetched(1, b"records"))
    (frame,), lines = recorded(talk, tmp_path)
    assert frame.node == 0
    assert frame.nodes == 3
    assert frame.source == -1
    assert frame.client_id == "c"
    assert frame.api_key == 1
    assert frame.session_id == 5
    assert frame.session_epoch == 3
    assert frame.response_session_id == 77
    assert frame.error == 0
    assert frame.what == "response"
    assert frame.seq == 1
    assert frame.response_seq == 2
    assert frame.throttle_ms == 4
    name = ID.hex()
    assert lines == [
        FrameLineRow(1, 0, "named", name, 0, 5),
        FrameLineRow(1, 0, "named", name, 1, 0),
        FrameLineRow(1, 0, "forgotten", name, 2),
        FrameLineRow(1, 0, "returned", name, 0, -1, 9, 2, 0, 7),
        FrameLineRow(1, 0, "returned", name, 1, -1, -1, -1, 6, 0),
    ]


def test_large_response_is_held_until_its_partitions_are_known(tmp_path: Path) -> None:
    talk = talking(tmp_path)
    talk.conversation.from_client(fetch(1))
    whole = fetched(1, bytes(2 * LARGE_BYTES))
    talk.conversation.from_node(whole[:-1])
    assert talk.client.got == b""
    talk.conversation.from_node(whole[-1:])
    assert talk.client.got == whole
    (frame,), lines = recorded(talk, tmp_path)
    assert frame.response_bytes == len(whole)
    assert lines[3].record_bytes == 2 * LARGE_BYTES


def test_response_dropped_by_rule_is_recorded(tmp_path: Path) -> None:
    talk = talking(tmp_path, rule("response_dropped", "response"))
    talk.conversation.from_client(fetch(1))
    talk.conversation.from_node(fetched(1, b""))
    (frame,), lines = recorded(talk, tmp_path)
    assert frame.what == "response_taken"
    assert frame.response_seq == 2
    assert frame.response_session_id == 77
    assert len(lines) == 5


def test_dropped_request_never_went_to_the_node(tmp_path: Path) -> None:
    talk = talking(tmp_path, rule("request_dropped", "request"))
    talk.conversation.from_client(fetch(1))
    assert recorded(talk, tmp_path) == ([], [])


def test_requests_without_a_response_are_distinguished(tmp_path: Path) -> None:
    talk = talking(tmp_path)
    talk.conversation.from_client(produce(1, 0) + request(UNKNOWN_API, 0, 2) + request(UNKNOWN_API, 0, 3))
    talk.conversation.from_node(response(2))
    talk.conversation.end("the client closed the connection")
    frames, lines = recorded(talk, tmp_path)
    assert [(frame.what, frame.seq, frame.response_seq) for frame in frames] == [
        ("no_response", 1, -1),
        ("response", 2, 4),
        ("lost", 3, -1),
    ]
    assert lines == []
