"""How a private draft is declared: the Kafka type of each field, and the decorator of a struct.

The annotation of a field names its Kafka type, from which ``schema`` reads the layout. Drafts are never flexible. Error
codes are plain numbers because kio's ``ErrorCode`` cannot hold private ones.
"""

from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypeVar, dataclass_transform
from uuid import UUID

DraftT = TypeVar("DraftT")

Int8: TypeAlias = Annotated[int, "int8"]
Int16: TypeAlias = Annotated[int, "int16"]
Int32: TypeAlias = Annotated[int, "int32"]
Int64: TypeAlias = Annotated[int, "int64"]
Bool: TypeAlias = Annotated[bool, "bool"]
String: TypeAlias = Annotated[str, "string"]
Bytes: TypeAlias = Annotated[bytes, "bytes"]
Uuid: TypeAlias = Annotated[UUID, "uuid"]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def draft(cls: type[DraftT]) -> type[DraftT]:
    """Declares one struct of a draft. Its fields stand in the order of the wire."""
    cls.__flexible__ = False  # type: ignore[attr-defined]
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)
