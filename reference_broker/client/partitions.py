"""A partition's name as clients use it."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    topic: str
    partition: int
