"""The control record that opens an epoch: who leads, and who voted (LeaderChangeMessage.json, version 0)."""

from collections.abc import Sequence

from reference_broker.records.record import Record
from reference_broker.wire.writing import uvarint

_KEY = bytes((0, 0, 0, 2))
"""ControlRecordType: version 0, type LEADER_CHANGE."""


def leader_change_record(timestamp_ms: int, leader_id: int, voters: Sequence[int]) -> Record:
    """Builds the record. It names all voters as those who granted, because the leader of a static quorum keeps no list
    of the voters that did."""
    out = bytearray((0).to_bytes(2, "big") + leader_id.to_bytes(4, "big", signed=True))
    for _ in ("voters", "granting voters"):
        out += uvarint(len(voters) + 1)
        for voter in voters:
            out += voter.to_bytes(4, "big", signed=True) + b"\x00"
    return Record(timestamp_ms=timestamp_ms, key=_KEY, value=bytes(out + b"\x00"))
