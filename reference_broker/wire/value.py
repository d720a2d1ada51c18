"""Values that are complete when they are made: the bodies of Fetch and Produce."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

ValueT = TypeVar("ValueT")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[ValueT]) -> type[ValueT]:
    """A dataclass with slots, frozen for the type checker only.

    Python sets each field of a frozen dataclass through a call of its own. For bodies that hold thousands of partitions
    that costs 5 to 20 % of the whole node's speed.
    """
    return dataclass(slots=True)(cls)
