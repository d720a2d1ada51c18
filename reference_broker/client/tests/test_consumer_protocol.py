"""Subscriptions and assignments as bytes: golden ones, those of other libraries, and random ones."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.client.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.errors import ProtocolError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

T0, T1, U4 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 4)

names = st.text(min_size=1, max_size=5)
partitions = st.lists(st.builds(TopicPartition, st.sampled_from("tuv"), st.integers(0, 9)), unique=True, max_size=6)


def grouped(owned: list[TopicPartition]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(owned, key=lambda each: each.topic))


subscriptions = st.builds(
    Subscription,
    topics=st.lists(names, max_size=4).map(tuple),
    owned=partitions.map(grouped),
    generation_id=st.integers(-1, 9),
    user_data=st.none() | st.binary(max_size=6),
    rack_id=st.none() | names,
)


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (0, "0000 00000001 000174 00000002 6162"),
        (1, "0001 00000001 000174 00000002 6162 00000002 000174 00000002 00000000 00000001 000175 00000001 00000004"),
        (
            2,
            "0002 00000001 000174 00000002 6162 00000002 000174 00000002 00000000 00000001 000175 00000001 00000004"
            "00000007",
        ),
        (
            3,
            "0003 00000001 000174 00000002 6162 00000002 000174 00000002 00000000 00000001 000175 00000001 00000004"
            "00000007 000172",
        ),
    ],
)
def test_subscription_of_each_version_has_kafka_bytes(version: int, data: str) -> None:
    whole = Subscription(("t",), (T0, T1, U4), 7, b"ab", "r")
    expected = Subscription(
        ("t",), whole.owned if version >= 1 else (), 7 if version >= 2 else -1, b"ab", "r" if version >= 3 else None
    )
    assert encode_subscription(whole, version) == bytes.fromhex(data)
    assert decode_subscription(bytes.fromhex(data)) == expected


@given(subscriptions, st.binary(max_size=3))
def test_subscription_round_trip_and_later_versions(subscription: Subscription, more: bytes) -> None:
    data = encode_subscription(subscription)
    assert decode_subscription(data) == subscription
    assert decode_subscription(b"\x00\x09" + data[2:] + more) == subscription


@given(partitions.map(grouped), st.none() | st.binary(max_size=4), st.integers(0, 3))
def test_assignment_round_trip(
    given_partitions: tuple[TopicPartition, ...], user_data: bytes | None, version: int
) -> None:
    assignment = Assignment(given_partitions, user_data)
    assert decode_assignment(encode_assignment(assignment, version)) == assignment


@given(st.binary(max_size=40))
def test_random_bytes_are_decoded_or_rejected(data: bytes) -> None:
    for read in (decode_subscription, decode_assignment):
        try:
            read(data)
        except ProtocolError:
            continue


def test_empty_bytes_are_empty_assignment() -> None:
    assert decode_assignment(b"") == Assignment()


def test_aiokafka_reads_ours_and_we_read_aiokafka() -> None:
    ours = ConsumerProtocolMemberMetadata.decode(encode_subscription(Subscription(("t", "u")), 0))
    assert ours.subscription == ["t", "u"]
    assert decode_subscription(ConsumerProtocolMemberMetadata(0, ["t"], b"x").encode()) == Subscription(
        ("t",), user_data=b"x"
    )
    theirs = ConsumerProtocolMemberAssignment(0, [("t", [0, 1]), ("u", [4])], b"")
    assert decode_assignment(theirs.encode()) == Assignment((T0, T1, U4), b"")
    assert encode_assignment(Assignment((T0, T1, U4), b""), 0) == theirs.encode()
