"""The keys of a segment's objects."""

from typing import NamedTuple

import pytest

from reference_broker.remote_log.objects import ObjectKind, ObjectName, key_of, keys_of, name_of

TOPIC_ID = bytes(range(240, 256))
SEGMENT_ID = bytes(range(16))


class Named(NamedTuple):
    topic: str = "events"
    topic_id: bytes = TOPIC_ID
    partition: int = 3
    start_offset: int = 1200
    segment_id: bytes = SEGMENT_ID


def test_key_has_partition_segment_and_kind() -> None:
    assert key_of(Named(), ObjectKind.LEADER_EPOCHS) == (
        "events-3-8PHy8_T19vf4-fr7_P3-_w/00000000000000001200-AAECAwQFBgcICQoLDA0ODw.leader-epoch-checkpoint"
    )


def test_segment_has_six_objects_in_copy_order() -> None:
    suffixes = [key.rpartition(".")[2] for key in keys_of(Named())]
    assert suffixes == ["log", "index", "timeindex", "txnindex", "snapshot", "leader-epoch-checkpoint"]


@pytest.mark.parametrize("kind", ObjectKind)
def test_key_round_trip(kind: ObjectKind) -> None:
    assert name_of(key_of(Named(), kind)) == ObjectName(1200, SEGMENT_ID, kind)


@pytest.mark.parametrize(
    "name",
    [
        "00000000000000001200.log",
        "00000000000000001200-AAECAwQFBgcICQoLDA0ODw.txt",
        "0000000000000001200-AAECAwQFBgcICQoLDA0ODw.log",
        "00000000000000001200-AAECAwQFBgcICQoLDA0OD.log",
        "00000000000000001200-AAECAwQFBgcICQoLDA0ODw.log.part",
    ],
)
def test_other_names_are_not_keys(name: str) -> None:
    assert name_of(f"events-3-8PHy8_T19vf4-fr7_P3-_w/{name}") is None
