"""How much one request may contain, and how much of a message is one slice.

A frame of 100 MiB has room for tens of millions of items, and each becomes an object. So a request's items are counted
before they are read, and large messages are decoded and encoded in slices.
"""

from typing import Final, TypeAlias, TypeVar

from reference_broker.ports.slicing import WIRE_UNITS_PER_SLICE, Sliced
from reference_broker.wire.apis import ApiKey, api_name
from reference_broker.wire.errors import ProtocolError

LARGE_FRAME_BYTES: Final = 4096
"""A larger frame is decoded in slices. A smaller one has room for so few items that nobody waits for them."""
LARGE_RESPONSE_ITEMS: Final = 1000
"""A response whose outer arrays hold more items is encoded in slices."""
BYTES_PER_UNIT: Final = 1024
"""A unit of work is one item, or as many bytes of text."""
UNITS_PER_LOOK: Final = 32
"""So many items of one array are read or written before somebody looks whether the slice is over. The end of each array
is looked at, too: many short arrays are as much work as a long one."""

ITEM_BYTES: Final = 300
"""An estimate of what an item takes in memory while its request is decoded and served, and its response encoded. So
much was measured of a Metadata request for topics that do not exist."""
SLICE_BYTES: Final = WIRE_UNITS_PER_SLICE * ITEM_BYTES
"""An estimate of what a slice of decoding adds."""
LEAST_ITEM_BYTES: Final = 2
"""What an item takes in a frame at least. A response, whose items are in memory, is so ranked before requests of as
many items, which are not yet."""

MOST_REQUEST_BYTES: Final = 16 << 20
"""The limit for the frame of any request but Produce. Its texts and byte strings are copied, 16 MiB in some 5 ms."""

SMALL_ITEMS: Final = 8
"""So many numbers or IDs count as one item, and as one unit."""

MOST_ITEMS_OF_MOST: Final = 5000
MOST_ITEMS: Final[dict[int, int]] = {
    # Their handlers work in slices.
    ApiKey.METADATA: 100_000,
    ApiKey.DESCRIBE_CONFIGS: 100_000,
    ApiKey.LIST_OFFSETS: 100_000,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 100_000,
    ApiKey.FIND_COORDINATOR: 100_000,
    ApiKey.DESCRIBE_GROUPS: 100_000,
    ApiKey.OFFSET_FETCH: 100_000,
    ApiKey.ADD_PARTITIONS_TO_TXN: 100_000,
    ApiKey.WRITE_TXN_MARKERS: 100_000,
    ApiKey.DESCRIBE_PRODUCERS: 100_000,
    ApiKey.DESCRIBE_TRANSACTIONS: 100_000,
    ApiKey.UPDATE_METADATA: 150_000,
    # Part of what their handlers do is one slice.
    ApiKey.CREATE_TOPICS: 100_000,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: 50_000,
    ApiKey.DELETE_RECORDS: 40_000,
    ApiKey.DELETE_GROUPS: 20_000,
    # Their handlers are one slice.
    ApiKey.ALTER_CONFIGS: 20_000,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 20_000,
    ApiKey.ALTER_PARTITION: 20_000,
    ApiKey.DELETE_TOPICS: 20_000,
    ApiKey.OFFSET_COMMIT: 20_000,
    ApiKey.OFFSET_DELETE: 20_000,
    ApiKey.CREATE_PARTITIONS: 15_000,
    ApiKey.ELECT_LEADERS: 12_000,
}
"""The most items that the arrays of one request may hold together, by API; MOST_ITEMS_OF_MOST for the others.

Kafka's clients put all that they ask into one request. So the limit of an API that names topics, partitions, groups or
settings leaves room for 10,000 of them. Where a handler works in slices the limit bounds memory, some 300 bytes for
each item. Elsewhere it bounds the handler's one slice to 20 ms; a change of the settings of 20,000 resources takes 35.
CreateTopics leaves room for settings and assignments, and its handler counts the topics. Fetch and Produce count their
topics and partitions themselves."""


ValueT = TypeVar("ValueT")
Decoding: TypeAlias = Sliced[tuple[ValueT, int]]
"""Yields after each slice. Returns the value, and the offset behind it."""


class TooMuchError(ProtocolError):
    """A request holds more than the limit of its API. Its connection is closed, as for a frame that is too large."""


def check_request_bytes(api_key: int, size_bytes: int) -> None:
    """Raise TooMuchError."""
    if size_bytes > MOST_REQUEST_BYTES:
        raise TooMuchError(f"a {api_name(api_key)} request has {size_bytes} bytes; the limit is {MOST_REQUEST_BYTES}")


class Work:
    """What is left of a message's limit of items, and of the slice."""

    __slots__ = ("_api_key", "_most_items", "_units", "items")

    def __init__(self, api_key: int, most_items: int) -> None:
        self._api_key = api_key
        self._most_items = most_items
        self._units = WIRE_UNITS_PER_SLICE
        self.items = 0
        """So many were announced so far."""

    @staticmethod
    def of_request(api_key: int) -> "Work":
        return Work(api_key, MOST_ITEMS.get(api_key, MOST_ITEMS_OF_MOST))

    def announce(self, count: int, are_small: bool) -> None:
        """An array begins, before its items are read. Raises TooMuchError if the message may not hold so many more."""
        self.items += count // SMALL_ITEMS if are_small else count
        if self.items > self._most_items:
            name = api_name(self._api_key)
            raise TooMuchError(f"a {name} request holds {self.items} items or more; the limit is {self._most_items}")

    def spend(self, units: int) -> bool:
        """Return True if the slice is over. A new one begins then."""
        self._units -= units
        if self._units > 0:
            return False
        self._units = WIRE_UNITS_PER_SLICE
        return True
