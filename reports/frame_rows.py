"""The rows of what passed the frame proxy before a broker that is not ours. They are declared as those in ``rows``."""

from dataclasses import dataclass
from typing import Annotated

from reports.columns import Moment, Row, table


@table("frames", "trace/frames*.parquet")
@dataclass(frozen=True, slots=True)
class FrameRow(Row):
    """What passed the frame proxy between clients and a broker that is not ours, with one row for each request."""

    node: Annotated[int, "who was asked"]
    nodes: Annotated[int, "nodes of the cluster; where it is one, no session is a follower's"]
    source: Annotated[int, "the node that asked, or -1: a client"]
    connection: Annotated[int, "number of the connection through the proxy; below -1: one of a rule's own"]
    client_id: str
    api_key: int
    api_version: int
    session_id: Annotated[int, "fetch: in the request, else 0"]
    session_epoch: Annotated[int, "fetch: in the request, else -1"]
    what: Annotated[
        str,
        "answered; struck: a rule has taken the answer; lost: the connection ended first; unanswered: acks=0",
    ]
    seq: Annotated[int, "when it went to the node, in the order of all requests and answers that passed"]
    at_us: Annotated[int, Moment("when it went to the node")]
    answered_seq: Annotated[int, "when the node's answer came, in that order; -1: none came"]
    until_us: Annotated[int, Moment("when the node's answer came, or the connection ended")]
    error: Annotated[int, "the answer's own error code, else 0"]
    answered_session_id: Annotated[int, "fetch: in the answer, else 0"]
    throttle_ms: Annotated[int, "fetch: how long the answer asks to wait; then it may leave out everything, else 0"]
    request_bytes: int
    answer_bytes: Annotated[int, "0 if none came"]


@table("frame_lines", "trace/frame_lines*.parquet")
@dataclass(frozen=True, slots=True)
class FrameLineRow(Row):
    """The partitions in the fetches of ``frames`` and in their answers, from version 7 on, which has sessions."""

    seq: Annotated[int, "of the request, as in frames"]
    node: Annotated[int, "as in frames"]
    kind: Annotated[str, "named or forgotten by the request; told by the answer"]
    topic: Annotated[str, "its name or, from version 13 on, its ID in hex"]
    partition: int
    offset: Annotated[int, "named: the offset to fetch from, else -1"] = -1
    high_watermark: Annotated[int, "told, else -1"] = -1
    log_start_offset: Annotated[int, "told, else -1"] = -1
    error: Annotated[int, "told: the partition's error code, else 0"] = 0
    record_bytes: Annotated[int, "told: bytes of its record batches, else 0"] = 0
    points_on: Annotated[bool, "told: it has a diverging epoch or a preferred read replica"] = False
