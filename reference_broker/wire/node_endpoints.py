"""Tagged fields that Fetch and Produce responses share: the current leader and where nodes listen (KIP-951)."""

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

from reference_broker.wire.fetch import LeaderIdAndEpoch, NodeEndpoint
from reference_broker.wire.reading import (
    Frame,
    Reader,
    read_compact_count,
    read_compact_nullable_string,
    read_compact_string,
    skip_tagged_fields,
)
from reference_broker.wire.writing import compact_string, tagged, uvarint

_INT32: Final = Struct(">i")
_LEADER = Struct(">ii")
_LEADER_AND_NO_TAGS = Struct(">iiB")
_LEAST_ENDPOINT_BYTES = 4 + 1 + 4 + 1 + 1


def write_leader(tag: int, leader: LeaderIdAndEpoch) -> bytes:
    """Returns the tagged field. For the default (-1, -1) it is empty."""
    if leader.leader_id == -1 and leader.leader_epoch == -1:
        return b""
    return tagged(tag, _LEADER_AND_NO_TAGS.pack(leader.leader_id, leader.leader_epoch, 0))


def read_leader(frame: Frame, offset: int) -> tuple[LeaderIdAndEpoch, int]:
    leader_id, leader_epoch = _LEADER.unpack_from(frame, offset)
    return LeaderIdAndEpoch(leader_id, leader_epoch), skip_tagged_fields(frame, offset + 8)


def write_endpoints(tag: int, endpoints: Sequence[NodeEndpoint]) -> bytes:
    """Returns the tag buffer of a response. ``tag`` is its only tagged field."""
    if not endpoints:
        return b"\0"
    out = bytearray(uvarint(len(endpoints) + 1))
    for each in endpoints:
        out += _INT32.pack(each.node_id) + compact_string(each.host) + _INT32.pack(each.port)
        out += compact_string(each.rack) + b"\0"
    return b"\x01" + tagged(tag, bytes(out))


def read_endpoints(frame: Frame, offset: int) -> tuple[list[NodeEndpoint], int]:
    count, offset = read_compact_count(frame, offset, _LEAST_ENDPOINT_BYTES)
    endpoints = []
    for _ in range(count):
        (node_id,) = _INT32.unpack_from(frame, offset)
        host, offset = read_compact_string(frame, offset + 4)
        (port,) = _INT32.unpack_from(frame, offset)
        rack, offset = read_compact_nullable_string(frame, offset + 4)
        offset = skip_tagged_fields(frame, offset)
        endpoints.append(NodeEndpoint(node_id, host, port, rack))
    return endpoints, offset


ENDPOINT_TAGS: Final[Mapping[int, Reader]] = {0: read_endpoints}
"""The readers of the tagged fields at the end of a response, by tag."""
