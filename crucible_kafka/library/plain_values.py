"""Bodies of requests and responses as plain values: what JSON has, Kafka's names of errors, sizes of records."""

from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, TypeAlias
from uuid import UUID

from reference_broker.metadata.identifiers import uuid_text
from reference_broker.records.batch import InvalidRecords, iterate
from reference_broker.wire.errors import ErrorCode, error_name

Plain: TypeAlias = Any
"""None, a bool, a number, a string, or a list or a dictionary of these."""

SHOWN_BYTES: Final = 1024
"""The limit of one field of bytes; the rest is counted."""
UUID_BYTES: Final = 16


def plain(value: object, name: str = "") -> Plain:
    """Return the value of a field called ``name`` as JSON could hold it."""
    if isinstance(value, ErrorCode) or (name == "error_code" and isinstance(value, int)):
        return error_name(int(value))
    if isinstance(value, Enum):
        return plain(value.value, name)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, timedelta):
        return round(value / timedelta(milliseconds=1))
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, UUID):
        return uuid_text(value.bytes)
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes(bytes(value), name)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name), field.name) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return str(value)


def _bytes(value: bytes, name: str) -> Plain:
    if name == "records":
        return _sizes_of_records(value)
    if name.endswith("_id") and len(value) == UUID_BYTES:
        return uuid_text(value)
    more = f"... ({len(value) - SHOWN_BYTES} more bytes)" if len(value) > SHOWN_BYTES else ""
    shown = value[:SHOWN_BYTES]
    try:
        text = shown.decode()
    except UnicodeDecodeError:
        return shown.hex() + more
    return (text if text.isprintable() else shown.hex()) + more


def _sizes_of_records(value: bytes) -> dict[str, int]:
    """Return the number of batches and records, and their bytes. The count ends at a batch that was cut."""
    batches = records = 0
    try:
        for _, header in iterate(value):
            batches += 1
            records += header.record_count
    except InvalidRecords:
        pass
    return {"batches": batches, "records": records, "bytes": len(value)}
