"""Metadata records against bytes written by hand from Kafka's schema files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataEpoch,
    MetadataFault,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    decode,
    encode,
)

ID = bytes(range(16))
HEX = ID.hex()

GOLDEN = [
    (TopicRecord(name="ab", topic_id=ID), "01 02 00 03 6162" + HEX + "00"),
    (
        PartitionRecord(
            partition_id=3,
            topic_id=ID,
            replicas=(1, 2),
            isr=(1,),
            leader=1,
            leader_epoch=4,
            partition_epoch=5,
            directories=(bytes(16), ID),
        ),
        "01 03 01 00000003" + HEX + "03 00000001 00000002  02 00000001  01 01  00000001 00000004 00000005"
        "03" + "00" * 16 + HEX + "00",
    ),
    (
        PartitionRecord(topic_id=ID, replicas=(), isr=(), leader_recovery_state=1),
        "01 03 01 ffffffff" + HEX + "01 01 01 01 ffffffff ffffffff ffffffff 01  01 00 01 01",
    ),
    (PartitionChangeRecord(partition_id=0, topic_id=ID), "01 05 01 00000000" + HEX + "00"),
    (
        PartitionChangeRecord(partition_id=1, topic_id=ID, isr=(7,), leader=7, directories=(ID,)),
        "01 05 01 00000001" + HEX + "03  00 05 02 00000007  01 04 00000007  08 11 02" + HEX,
    ),
    (
        PartitionRecord(topic_id=ID, replicas=(), isr=(), eligible_leader_replicas=(2,), last_known_elr=(1,)),
        "01 03 02 ffffffff" + HEX + "01 01 01 01 ffffffff ffffffff ffffffff 0102  01 05 02 00000002  02 05 02 00000001",
    ),
    (
        PartitionChangeRecord(partition_id=0, topic_id=ID, eligible_leader_replicas=(2,), last_known_elr=()),
        "01 05 02 00000000" + HEX + "02  06 05 02 00000002  07 01 01",
    ),
    (ClearElrRecord(topic_name="t"), "01 1c 00 02 74 00"),
    (ConfigRecord(resource_type=2, resource_name="t", name="k", value="v"), "01 04 00 02 02 74 02 6b 02 76 00"),
    (ConfigRecord(resource_type=2, resource_name="t", name="k", value=None), "01 04 00 02 02 74 02 6b 00 00"),
    (RemoveTopicRecord(topic_id=ID), "01 09 00" + HEX + "00"),
    (FeatureLevelRecord(name="f", feature_level=25), "01 0c 00 02 66 0019 00"),
    (
        ProducerIdsRecord(broker_id=1, broker_epoch=2, next_producer_id=1000),
        "01 0f 00 00000001 0000000000000002 00000000000003e8 00",
    ),
    (
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=2, fenced=-1),
        "01 11 02 00000001 0000000000000002 01 00 01 ff",
    ),
    (UnregisterBrokerRecord(broker_id=1, broker_epoch=2), "01 01 00 00000001 0000000000000002 00"),
    (NoOpRecord(), "01 14 00 00"),
    (
        NoOpRecord(metadata_epoch=MetadataEpoch(metadata_epoch=0x0102)),
        "01 14 00 01 90 4e 0d 00000000 0000000000000102 00",
    ),
    (BeginTransactionRecord(name="x"), "01 17 00 01 00 02 02 78"),
    (BeginTransactionRecord(), "01 17 00 00"),
    (EndTransactionRecord(), "01 18 00 00"),
    (AbortTransactionRecord(reason="x"), "01 19 00 01 00 02 02 78"),
    (
        RegisterBrokerRecord(
            broker_id=1,
            incarnation_id=ID,
            broker_epoch=9,
            end_points=(BrokerEndpoint(name="P", host="h", port=65535, security_protocol=0),),
            features=(BrokerFeature(name="m", min_supported_version=1, max_supported_version=25),),
            log_dirs=(ID,),
        ),
        "01 00 03 00000001 00" + HEX + "0000000000000009"
        "02 02 50 02 68 ffff 0000 00   02 02 6d 0001 0019 00   00 01 00   01 00 11 02" + HEX,
    ),
]


@pytest.mark.clause("MetadataRecordSerdeTest.testSerde")
@pytest.mark.parametrize(("record", "text"), GOLDEN, ids=lambda value: type(value).__name__)
def test_each_record_type_has_exactly_kafkas_bytes(record: MetadataRecord, text: str) -> None:
    assert encode(record) == bytes.fromhex(text.replace(" ", ""))
    assert decode(encode(record)) == record


def test_unknown_tagged_fields_are_skipped() -> None:
    with_tag = bytes.fromhex("0114000191 4e 03 aabbcc".replace(" ", ""))  # NoOpRecord with tag 10001.
    assert decode(with_tag) == NoOpRecord()


def test_older_versions_of_a_registration_read_with_defaults() -> None:
    written = "01 00 00 00000001" + HEX + "0000000000000009 01 01 00 00 00"
    assert decode(bytes.fromhex(written.replace(" ", ""))) == RegisterBrokerRecord(
        broker_id=1, incarnation_id=ID, broker_epoch=9, end_points=(), features=(), fenced=False
    )


@pytest.mark.clause(
    "MetadataRecordSerdeTest.testDeserializeWithUnhandledFrameVersion",
    "MetadataRecordSerdeTest.testParsingUnsupportedApiKey",
)
@pytest.mark.parametrize("text", ["", "02140000", "01630000", "01140100", "0102000361", "0114000000", "01ffffffffff"])
def test_damaged_records_are_a_fault_not_a_crash(text: str) -> None:
    with pytest.raises(MetadataFault):
        decode(bytes.fromhex(text))


ENDLESS = "ffffffffffffffff80"
TOPIC = "01 02 00  02 61  00000000000000000000000000000001  00"
"""A TopicRecord: frame version, type, version, name, ID, no tagged fields."""


def test_valid_record_of_malformed_cases_is_decoded() -> None:
    assert decode(bytes.fromhex(TOPIC)) == TopicRecord(name="a", topic_id=bytes([*bytes(15), 1]))


@pytest.mark.clause(
    "MetadataRecordSerdeTest.testParsingMalformedFrameVersionVarint",
    "MetadataRecordSerdeTest.testParsingMalformedMessageTypeVarint",
    "MetadataRecordSerdeTest.testParsingMalformedMessageVersionVarint",
    "MetadataRecordSerdeTest.testParsingVersionTooLarge",
    "MetadataRecordSerdeTest.testParsingMalformedMessage",
    "MetadataRecordSerdeTest.testParsingRecordWithGarbageAtEnd",
)
@pytest.mark.parametrize(
    "text",
    [
        ENDLESS + TOPIC,
        "01" + ENDLESS + TOPIC[3:],
        "01 02" + ENDLESS + TOPIC[6:],
        "01 02 ff7f" + TOPIC[9:],
        "01 02 ffffffff0f" + TOPIC[9:],
        TOPIC[:21],
        TOPIC[:-2],
        TOPIC + "00",
        TOPIC + TOPIC,
    ],
    ids=["frame", "type", "version", "large version", "larger version", "cut", "no tags", "a byte more", "twice"],
)
def test_each_malformed_part_of_a_record_is_a_fault(text: str) -> None:
    with pytest.raises(MetadataFault):
        decode(bytes.fromhex(text.replace(" ", "")))


@given(st.binary(max_size=60))
def test_random_bytes_never_crash_the_reader(data: bytes) -> None:
    try:
        decode(b"\x01" + data)
    except MetadataFault:
        return
