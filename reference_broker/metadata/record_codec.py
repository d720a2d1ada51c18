"""Encodes metadata records as record values, and decodes them. A value has Kafka's framing: the frame version 1, the
API key and the version as varints, then the body. All bodies are flexible, and ``wire`` codes them from their
declaration.
"""

from collections.abc import Mapping
from typing import Final, cast, get_args

from reference_broker.metadata.delta import MetadataFault
from reference_broker.metadata.records import MetadataRecord
from reference_broker.wire.decoding import decoder
from reference_broker.wire.encoding import encoder
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.reading import BAD_BYTES, error_of_bad_bytes, read_uvarint
from reference_broker.wire.writing import uvarint

FRAME_VERSION: Final = 1

_CLASSES: Final[Mapping[int, type]] = {cls.__api_key__: cls for cls in get_args(MetadataRecord)}


def encode(record: MetadataRecord) -> bytes:
    """Returns the value of a record of the metadata log."""
    kind: type = type(record)
    version = record.needed_version
    out = bytearray(uvarint(FRAME_VERSION) + uvarint(record.__api_key__) + uvarint(version))
    encoder(kind, kind, version)(out, record)
    return bytes(out)


def decode(data: bytes) -> MetadataRecord:
    """Raises MetadataFault for an unknown frame, type or version, or a body that does not fit."""
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
