"""Responses of the reference broker and of Apache Kafka to each request with one field changed (``field_variations``).

Where they differ, ``bench/peers/field_differences.toml`` says why. A row is for one API, field and pair of responses,
with the versions and the values that have them. A row that nothing needs any more is an error, too.
"""

import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.peers.field_bases import AMONG_NODES, BASES, PreparedBroker
from bench.peers.field_variations import (
    CANNOT_SAY,
    NOBODY,
    NOT_SENT,
    Difference,
    differences,
    frame,
    summary,
    variations,
)
from bench.peers.systems import KAFKA, REFERENCE
from reference_broker.apis import registry
from reference_broker.wire.apis import ApiKey

ROWS = tomllib.loads((Path(__file__).parents[1] / "field_differences.toml").read_text())["rows"]
CONFIG = {
    "log.retention.ms": "-1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
}


def allowed() -> Iterator[Difference]:
    for row in ROWS:
        first, last = row["versions"]
        for version in range(first, last + 1):
            for value in row["values"]:
                yield Difference(row["api"], version, row["field"], value, row["ours"], row["kafka"])


def test_each_difference_has_a_reason() -> None:
    known = {base.name for base in BASES}
    for row in ROWS:
        assert row.keys() == {"api", "versions", "field", "values", "ours", "kafka", "reason"}
        assert row["api"] in known
        assert row["reason"]
        assert row["ours"] != row["kafka"]
    assert len({*allowed()}) == len([*allowed()]), "a difference is listed twice"


def test_each_field_of_a_request_is_changed_and_nothing_else() -> None:
    (base,) = (each for each in BASES if each.api_key is ApiKey.OFFSET_DELETE)
    variants = [*variations(base, 0)]
    changed = {(variant.field, variant.value) for variant in variants}
    assert len(changed) == len(variants)
    assert {variant.field for variant in variants} == {
        "",
        "group_id",
        "topics",
        "topics.name",
        "topics.partitions",
        "topics.partitions.partition_index",
    }
    assert {
        ("group_id", "''"),
        ("topics", "[]"),
        ("topics.name", "'__consumer_offsets'"),
        ("topics.partitions.partition_index", str((1 << 31) - 1)),
        ("topics.partitions.partition_index", "-1"),
    } <= changed
    valid = variants[0].values
    for variant in variants[1:]:
        assert {name for name, value in variant.values.items() if value != valid[name]} == {
            variant.field.partition(".")[0]
        }


def test_each_api_for_clients_is_compared() -> None:
    assert len({base.name for base in BASES}) == len(BASES)
    assert {base.api_key for base in BASES}.isdisjoint(AMONG_NODES)
    assert {base.api_key for base in BASES} | AMONG_NODES.keys() == {*registry.MODULES} - {ApiKey.UPDATE_METADATA}
    assert all(base.versions for base in BASES)


@pytest.mark.thorough
def test_no_variation_is_dropped_that_a_version_can_say() -> None:
    """``frame`` raises for what a version cannot say, and for nothing else."""
    dropped: dict[tuple[ApiKey, str, str], set[int]] = {}
    unsent = set()
    for base in BASES:
        for version in base.versions:
            for variation in variations(base, version):
                key = (base.api_key, variation.field, variation.value)
                if not variation.is_sent:
                    unsent.add(key)
                if not variation.cannot_be_said(version):
                    assert frame(NOBODY, variation, version)
                    continue
                dropped.setdefault(key, set()).add(version)
                with pytest.raises((AssertionError, ValueError)):
                    frame(NOBODY, variation, version)
    assert {key: max(versions) for key, versions in dropped.items()} == CANNOT_SAY
    assert unsent == NOT_SENT.keys()


def test_error_codes_lengths_flags_and_nulls_are_compared() -> None:
    from kio.schema.offset_delete.v0.response import (
        OffsetDeleteResponse,
        OffsetDeleteResponsePartition,
        OffsetDeleteResponseTopic,
    )
    from kio.schema.types import TopicName
    from kio.static.primitive import i32

    from reference_broker.apis.responses import NO_THROTTLE
    from reference_broker.wire.errors import ErrorCode

    partition = OffsetDeleteResponsePartition(partition_index=i32(7), error_code=ErrorCode.group_subscribed_to_topic)
    topic = OffsetDeleteResponseTopic(name=TopicName("t"), partitions=(partition, partition))
    found = OffsetDeleteResponse(error_code=ErrorCode.none, throttle_time=NO_THROTTLE, topics=(topic,))
    assert summary(found) == {
        "error_code=NONE": 1,
        "topics has 1": 1,
        "topics.partitions has 2": 1,
        "topics.partitions.error_code=GROUP_SUBSCRIBED_TO_TOPIC": 2,
    }


@pytest.mark.peer
@pytest.mark.timeout(900)
def test_both_brokers_respond_alike_or_have_a_reason(tmp_path: Path) -> None:
    with (
        REFERENCE.launched(tmp_path / "reference", 1, CONFIG) as reference,
        KAFKA.launched(tmp_path / "kafka", 1, CONFIG) as kafka,
        closing(PreparedBroker(reference.ports[0])) as ours,
        closing(PreparedBroker(kafka.ports[0])) as theirs,
    ):
        ours.prepare()
        theirs.prepare()
        differing = {*differences(ours, theirs)}
    expected = {*allowed()}
    assert sorted(differing - expected) == []
    assert sorted(expected - differing) == [], "these differences are no more"
