"""Values that prove themselves, and the verdict on what was read."""

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from crucible_kafka import Cluster, DeliveryViolated, Sent, assert_delivered, values
from crucible_kafka.library.judging import Guarantee, damage_of

LIMIT_S = 20


def violation(sent: object, read: object, guarantee: Guarantee = "exactly-once") -> str:
    with pytest.raises(DeliveryViolated) as failure:
        assert_delivered(sent, read, guarantee)  # type: ignore[arg-type]
    return str(failure.value)


def test_values_differ_and_prove_themselves() -> None:
    made = values(3, "w", size_bytes=64)
    assert len(set(made)) == 3
    assert [len(each) for each in made] == [64, 64, 64]
    assert not any(map(damage_of, made))
    assert values(1) != values(1), "writers without a name differ"
    assert values(2, "w", first=1) == values(3, "w")[1:]
    with pytest.raises(ValueError, match="without a colon"):
        values(1, "a:b")


def test_what_was_read_as_it_was_sent_is_delivered() -> None:
    sent = values(5, "w")
    assert_delivered(sent, sent, "exactly-once")
    assert_delivered(sent, sent, "at-least-once")
    assert_delivered(sent, sent, "in-order")
    assert_delivered(["a", "b"], [b"a", "b"])
    assert_delivered([b"same", b"same"], [b"same", b"same"])


def test_missing_value_is_named() -> None:
    sent = values(3, "w")
    assert violation(sent, [sent[0], sent[2]]) == (
        "Not exactly-once: value 1 of writer w was acknowledged and never read."
    )
    assert "value 2 of writer w" in violation(sent, sent[:2], "at-least-once")
    assert "value 0 of writer w" in violation(sent, sent[1:], "in-order")


def test_repeated_value_violates_exactly_once_alone() -> None:
    sent = values(2, "w")
    assert violation(sent, [*sent, sent[0]]) == (
        "Not exactly-once: value 0 of writer w was read twice, first before, then again."
    )
    assert_delivered(sent, [*sent, sent[0]], "at-least-once")
    assert_delivered(sent, [*sent, sent[0]], "in-order")


def test_overtaken_value_violates_the_order() -> None:
    sent = values(3, "w")
    assert violation(sent, [sent[0], sent[2], sent[1]], "in-order") == (
        "Not in-order: value 1 of writer w was read after value 2 of writer w, which was sent later."
    )
    assert_delivered(sent, sent[::-1], "exactly-once")
    one, other = values(2, "a"), values(2, "b")
    assert_delivered([*one, *other], [other[0], one[0], one[1], other[1]], "in-order")


def test_damaged_or_foreign_value_is_told_apart() -> None:
    sent = values(2, "w", size_bytes=60)
    damaged = sent[0][:-1] + b"!"
    assert "is damaged: its checksum is" in violation(sent, [damaged, sent[1]], "at-least-once")
    assert "is damaged: it ends after 12 bytes" in violation(sent, [sent[0][:12]], "at-least-once")
    assert "is none of the 2 values that were sent" in violation(sent, [*values(1, "x")], "at-least-once")
    assert "the value b'stray' was read" in violation(sent, [b"stray"], "at-least-once")


def test_what_was_not_acknowledged_may_be_missing() -> None:
    sent = Sent("w")
    known, failed, unknown = sent.next(), sent.next(), sent.next()
    sent.acknowledged(known)
    sent.failed(failed)
    assert_delivered(sent, [known])
    assert_delivered(sent, [known, unknown, failed])
    assert "value 0 of writer w was acknowledged" in violation(sent, [failed])


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="one of exactly-once, at-least-once, in-order"):
        assert_delivered([], [], "always")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is no value, message or record"):
        assert_delivered([], [5])


def test_lost_acknowledgement_is_found_and_explained() -> None:
    with Cluster() as kafka:
        kafka.create_topic("orders")
        kafka.on("Produce").drop_response(times=1)
        sent = kafka.sent("app")
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "retry.backoff.ms": 10})
        producer.produce("orders", sent.next(), on_delivery=sent.delivered)
        assert producer.flush(LIMIT_S) == 0
        read = kafka.records("orders")
        kafka.assert_delivered(sent, read, "at-least-once")
        with pytest.raises(DeliveryViolated) as failure:
            kafka.assert_delivered(sent, read, "exactly-once")
        first, *frames = str(failure.value).split("\n")
        assert first == (
            "Not exactly-once: value 0 of writer app was read twice, first at orders-0 offset 0, then at "
            "orders-0 offset 1. In the logs it is at orders-0 offset 0, orders-0 offset 1."
        )
        assert any("rule 1: response dropped" in line for line in frames)


def test_messages_of_a_client_are_judged() -> None:
    with Cluster() as kafka:
        kafka.create_topic("orders", partitions=2)
        sent = kafka.values(20)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for number, value in enumerate(sent):
            producer.produce("orders", value, partition=number % 2)
        assert producer.flush(LIMIT_S) == 0
        consumer = Consumer(
            {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        try:
            consumer.subscribe(["orders"])
            read: list[object] = []
            deadline = time.monotonic() + LIMIT_S
            while len(read) < len(sent) and time.monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is not None and not message.error():
                    read.append(message)
        finally:
            consumer.close()
        kafka.assert_delivered(sent, read, "exactly-once")
        kafka.assert_delivered(sent, read, "in-order")
        with pytest.raises(DeliveryViolated, match=r"acknowledged and never read\. In the logs it is at orders-"):
            kafka.assert_delivered(sent, read[:-1], "exactly-once")
        with pytest.raises(DeliveryViolated, match=r"acknowledged and never read\. It is in no log"):
            kafka.assert_delivered([*sent, *kafka.values(1)], read, "exactly-once")


def test_a_value_that_is_sent_again_later_is_in_order() -> None:
    assert_delivered(["a", "b", "a"], ["a", "b", "a"], "in-order")
    with pytest.raises(DeliveryViolated, match="b'a' was read after the value b'b'"):
        assert_delivered(["a", "b", "a"], ["b", "a", "a"], "in-order")


@pytest.mark.parametrize("sent", [[1, 2], "ab", b"ab", [None]])
def test_what_is_no_list_of_values_is_refused(sent: Any) -> None:
    with pytest.raises(TypeError, match="give"):
        assert_delivered(sent, [b"\0", b"\0\0"])


def test_values_without_any_outcome_prove_nothing() -> None:
    sent = Sent("writer")
    value = sent.next()
    with pytest.raises(ValueError, match="None of the 1 values is known to be acknowledged or not"):
        assert_delivered(sent, [])
    sent.failed(value)
    assert_delivered(sent, [])
    with pytest.raises(ValueError, match="is no value of this writer"):
        sent.acknowledged(b"foreign")
