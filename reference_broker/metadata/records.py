"""The records of the metadata log, and their bytes.

The source is Apache Kafka's metadata/src/main/resources/common/metadata/*.json (4.1). ``since`` is the first version
that has the field, and ``tag`` marks a tagged field. UUIDs are 16 raw bytes. The reader skips tagged fields that are
not declared here.

A record value has Kafka's framing: the frame version 1, the API key and the version as varints, then the body. All
bodies are flexible, and ``wire`` codes them from their declaration.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, cast, dataclass_transform, get_args

from reference_broker.wire.decoding import decoder
from reference_broker.wire.encoding import encoder
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.primitives import BAD_BYTES, error_of_bad_bytes, read_uvarint, uvarint

NO_UUID = bytes(16)

T = TypeVar("T")


def _field(kafka_type: str, *, default: Any = MISSING, **marks: Any) -> Any:
    """``marks`` are ``since``, ``tag`` and ``nullable``, the class of a structure (``struct``), or the class of an
    array's elements (``of``)."""
    return field(default=default, metadata={"kafka_type": kafka_type, **marks})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(_field,))
def _declared(cls: type[T]) -> type[T]:
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


class _Record:
    """``__version__`` is the version that is written, and ``__versions__`` is the highest that is read.

    A record that uses a field of a later version is written in the version that its ``needed_version`` says. So a
    record without such fields can be read by every node, whatever the metadata.version.
    """

    __slots__ = ()
    __api_key__: ClassVar[int]
    __version__: ClassVar[int] = 0
    __versions__: ClassVar[int] = 0

    @property
    def needed_version(self) -> int:
        return self.__version__


@_declared
class BrokerEndpoint:
    name: str = _field("string")
    host: str = _field("string")
    port: int = _field("uint16")
    security_protocol: int = _field("int16")


@_declared
class BrokerFeature:
    name: str = _field("string")
    min_supported_version: int = _field("int16")
    max_supported_version: int = _field("int16")


@_declared
class RegisterBrokerRecord(_Record):
    __api_key__ = 0
    __version__ = __versions__ = 3
    broker_id: int = _field("int32")
    is_migrating_zk_broker: bool = _field("bool", since=2, default=False)
    incarnation_id: bytes = _field("uuid")
    broker_epoch: int = _field("int64")
    end_points: tuple[BrokerEndpoint, ...] = _field("[]", of=BrokerEndpoint)
    features: tuple[BrokerFeature, ...] = _field("[]", of=BrokerFeature)
    rack: str | None = _field("string", nullable=True, default=None)
    fenced: bool = _field("bool", default=True)
    in_controlled_shutdown: bool = _field("bool", since=1, default=False)
    log_dirs: tuple[bytes, ...] = _field("[]uuid", since=3, tag=0, default=())


@_declared
class UnregisterBrokerRecord(_Record):
    __api_key__ = 1
    broker_id: int = _field("int32")
    broker_epoch: int = _field("int64")


@_declared
class TopicRecord(_Record):
    __api_key__ = 2
    name: str = _field("string")
    topic_id: bytes = _field("uuid")


@_declared
class PartitionRecord(_Record):
    __api_key__ = 3
    __version__ = 1
    __versions__ = 2
    partition_id: int = _field("int32", default=-1)
    topic_id: bytes = _field("uuid")
    replicas: tuple[int, ...] = _field("[]int32")
    isr: tuple[int, ...] = _field("[]int32")
    removing_replicas: tuple[int, ...] = _field("[]int32", default=())
    adding_replicas: tuple[int, ...] = _field("[]int32", default=())
    leader: int = _field("int32", default=-1)
    leader_recovery_state: int = _field("int8", tag=0, default=0)
    leader_epoch: int = _field("int32", default=-1)
    partition_epoch: int = _field("int32", default=-1)
    directories: tuple[bytes, ...] = _field("[]uuid", since=1, default=())
    eligible_leader_replicas: tuple[int, ...] | None = _field("[]int32", nullable=True, since=2, tag=1, default=None)
    last_known_elr: tuple[int, ...] | None = _field("[]int32", nullable=True, since=2, tag=2, default=None)

    @property
    def needed_version(self) -> int:
        """Version 2 has the fields of KIP-966."""
        return 1 if self.eligible_leader_replicas is None and self.last_known_elr is None else 2


@_declared
class ConfigRecord(_Record):
    """A ``value`` of None deletes the setting."""

    __api_key__ = 4
    resource_type: int = _field("int8")
    resource_name: str = _field("string")
    name: str = _field("string")
    value: str | None = _field("string", nullable=True)


@_declared
class PartitionChangeRecord(_Record):
    """A field that is None is not changed. For ``leader`` this is -2, and for ``leader_recovery_state`` it is -1."""

    __api_key__ = 5
    __version__ = 1
    __versions__ = 2
    partition_id: int = _field("int32", default=-1)
    topic_id: bytes = _field("uuid")
    isr: tuple[int, ...] | None = _field("[]int32", nullable=True, tag=0, default=None)
    leader: int = _field("int32", tag=1, default=-2)
    replicas: tuple[int, ...] | None = _field("[]int32", nullable=True, tag=2, default=None)
    removing_replicas: tuple[int, ...] | None = _field("[]int32", nullable=True, tag=3, default=None)
    adding_replicas: tuple[int, ...] | None = _field("[]int32", nullable=True, tag=4, default=None)
    leader_recovery_state: int = _field("int8", tag=5, default=-1)
    eligible_leader_replicas: tuple[int, ...] | None = _field("[]int32", nullable=True, since=2, tag=6, default=None)
    last_known_elr: tuple[int, ...] | None = _field("[]int32", nullable=True, since=2, tag=7, default=None)
    directories: tuple[bytes, ...] | None = _field("[]uuid", nullable=True, since=1, tag=8, default=None)

    @property
    def needed_version(self) -> int:
        """Version 2 has the fields of KIP-966."""
        return 1 if self.eligible_leader_replicas is None and self.last_known_elr is None else 2


@_declared
class RemoveTopicRecord(_Record):
    __api_key__ = 9
    topic_id: bytes = _field("uuid")


@_declared
class FeatureLevelRecord(_Record):
    __api_key__ = 12
    name: str = _field("string")
    feature_level: int = _field("int16")


@_declared
class ProducerIdsRecord(_Record):
    __api_key__ = 15
    broker_id: int = _field("int32")
    broker_epoch: int = _field("int64", default=-1)
    next_producer_id: int = _field("int64")


@_declared
class BrokerRegistrationChangeRecord(_Record):
    """A change of a broker's registration."""

    __api_key__ = 17
    __version__ = __versions__ = 2
    broker_id: int = _field("int32")
    broker_epoch: int = _field("int64")
    fenced: int = _field("int8", tag=0, default=0)
    """-1 for unfenced, 0 for no change, and 1 for fenced."""
    in_controlled_shutdown: int = _field("int8", since=1, tag=1, default=0)
    """0 for no change, and 1 for yes."""
    log_dirs: tuple[bytes, ...] = _field("[]uuid", since=2, tag=2, default=())


@_declared
class MetadataEpoch:
    """The content of KIP-232's znode ``/metadata_epoch``."""

    version: int = _field("int32", default=0)
    metadata_epoch: int = _field("int64")


METADATA_EPOCH_TAG = 10000
"""The tag is far above Kafka's own, so that Kafka's tools skip it."""


@_declared
class NoOpRecord(_Record):
    """``metadata_epoch`` is not in Kafka's record. The metadata epoch is a tagged field of a record that otherwise
    changes nothing (M-1)."""

    __api_key__ = 20
    metadata_epoch: MetadataEpoch | None = _field(
        "struct", struct=MetadataEpoch, tag=METADATA_EPOCH_TAG, nullable=True, default=None
    )


@_declared
class BeginTransactionRecord(_Record):
    __api_key__ = 23
    name: str | None = _field("string", nullable=True, tag=0, default=None)


@_declared
class EndTransactionRecord(_Record):
    __api_key__ = 24


@_declared
class AbortTransactionRecord(_Record):
    __api_key__ = 25
    reason: str | None = _field("string", nullable=True, tag=0, default=None)


@_declared
class ClearElrRecord(_Record):
    """Clears the eligible leader replicas of a topic, or of all topics if ``topic_name`` is empty (KIP-966)."""

    __api_key__ = 28
    topic_name: str = _field("string")


MetadataRecord: TypeAlias = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | ConfigRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | FeatureLevelRecord
    | ProducerIdsRecord
    | BrokerRegistrationChangeRecord
    | NoOpRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
    | ClearElrRecord
)

MARKERS = (BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)
"""The markers of metadata transactions (KIP-868)."""

LISTENER_NAME = "PLAINTEXT"
SECURITY_PROTOCOL_PLAINTEXT = 0
"""Every endpoint that a broker registers has this protocol and name, because each node has one listener."""


class MetadataFault(Exception):  # noqa: N818 - the word of Kafka's fault handlers
    """A record cannot follow the ones before it. The metadata log is damaged, or the broker wrote it wrong."""


FRAME_VERSION: Final = 1

_CLASSES: Final[Mapping[int, type]] = {cls.__api_key__: cls for cls in get_args(MetadataRecord)}


def encode(record: MetadataRecord) -> bytes:
    """Return the value of a record of the metadata log."""
    kind: type = type(record)
    version = record.needed_version
    out = bytearray(uvarint(FRAME_VERSION) + uvarint(record.__api_key__) + uvarint(version))
    encoder(kind, kind, version)(out, record)
    return bytes(out)


def decode(data: bytes) -> MetadataRecord:
    """Raise MetadataFault for an unknown frame, type or version, or a body that does not fit."""
    try:
        frame, position = read_uvarint(data, 0)
        key, position = read_uvarint(data, position)
        version, position = read_uvarint(data, position)
        kind = _CLASSES.get(key)
        if frame != FRAME_VERSION or kind is None or version > kind.__versions__:  # type: ignore[attr-defined]
            raise MetadataFault(f"metadata record type {key} version {version} (frame {frame}) is not known here")
        record, position = decoder(kind, kind, version)(data, position)
    except BAD_BYTES as failure:
        raise MetadataFault(str(error_of_bad_bytes("a metadata record", failure))) from None
    except ProtocolError as damage:
        raise MetadataFault(str(damage)) from None
    if position != len(data):
        raise MetadataFault(f"{kind.__name__} is followed by {len(data) - position} bytes too many")
    return cast(MetadataRecord, record)
