"""Limits of one request: of what it may contain, and of what is decoded or encoded in one event.

A frame of 100 MiB has room for tens of millions of items, and each becomes an object. So a request's items are counted
before they are read, and large messages are decoded and encoded in parts, one in each event.
"""

from typing import Final, TypeAlias, TypeVar

from reference_broker.ports.slicing import WIRE_UNITS_PER_SLICE, Sliced
from reference_broker.wire.apis import ApiKey, api_name
from reference_broker.wire.errors import ProtocolError

LARGE_FRAME_BYTES: Final = 4096
"""A larger frame is decoded in parts. A smaller one has room for few items only."""
LARGE_RESPONSE_ITEMS: Final = 1000
"""A response whose outer arrays have more items is encoded in parts."""
BYTES_PER_UNIT: Final = 1024
"""A unit of work is one item, or as many bytes of text."""
UNITS_PER_LOOK: Final = 32
"""The number of items of one array that are read or written between two checks of the budget. The end of each array is
another check, because many short arrays are as much work as a long one."""

ITEM_BYTES: Final = 300
"""An estimate of what an item takes in memory while its request is decoded and served, and its response encoded. It
was measured with a Metadata request for topics that do not exist."""
SLICE_BYTES: Final = WIRE_UNITS_PER_SLICE * ITEM_BYTES
"""An estimate of the memory that one part of the decoding adds."""
MIN_ITEM_BYTES: Final = 2
"""The least that an item takes in a frame. By it a response, whose items are in memory, ranks before a request with as
many items, which are not in memory yet."""

MAX_REQUEST_BYTES: Final = 16 << 20
"""The limit for the frame of any request but Produce. Its texts and byte strings are copied, 16 MiB in some 5 ms."""

SMALL_ITEMS: Final = 8
"""The number of integers or IDs that count as one item, and as one unit."""

DEFAULT_MAX_ITEMS: Final = 5000
MAX_ITEMS: Final[dict[int, int]] = {
    # Their handlers take several events.
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
    # Their handlers do a part of the work in one event.
    ApiKey.CREATE_TOPICS: 100_000,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: 50_000,
    ApiKey.DELETE_RECORDS: 40_000,
    ApiKey.DELETE_GROUPS: 20_000,
    # Their handlers take one event.
    ApiKey.ALTER_CONFIGS: 20_000,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 20_000,
    ApiKey.ALTER_PARTITION: 20_000,
    ApiKey.DELETE_TOPICS: 20_000,
    ApiKey.OFFSET_COMMIT: 20_000,
    ApiKey.OFFSET_DELETE: 20_000,
    ApiKey.CREATE_PARTITIONS: 15_000,
    ApiKey.ELECT_LEADERS: 12_000,
}
"""The most items of all arrays of one request, by API; DEFAULT_MAX_ITEMS for the others.

Kafka's clients put everything into one request, so the limit of an API that names topics, partitions, groups or
settings leaves room for 10,000 of them. Where a handler takes several events the limit bounds memory, some 300 bytes
for each item. Elsewhere it bounds the handler's event to 20 ms; a change of the settings of 20,000 resources takes 35.
CreateTopics leaves room for settings and assignments, and its handler counts the topics. Fetch and Produce count their
topics and partitions themselves."""


ValueT = TypeVar("ValueT")
Decoding: TypeAlias = Sliced[tuple[ValueT, int]]
"""Yields where the rest must wait for another event. Returns the value, and the offset behind it."""


class TooMuchError(ProtocolError):
    """A request holds more than the limit of its API. Its connection is closed, as for a frame that is too large."""


def check_request_bytes(api_key: int, size_bytes: int) -> None:
    """Raise TooMuchError."""
    if size_bytes > MAX_REQUEST_BYTES:
        raise TooMuchError(f"a {api_name(api_key)} request has {size_bytes} bytes; the limit is {MAX_REQUEST_BYTES}")


class UnitBudget:
    """The remaining items that a message may have, and the remaining budget of the event."""

    __slots__ = ("_api_key", "_most_items", "_units", "items")

    def __init__(self, api_key: int, most_items: int) -> None:
        self._api_key = api_key
        self._most_items = most_items
        self._units = WIRE_UNITS_PER_SLICE
        self.items = 0
        """The number of items announced so far."""

    @staticmethod
    def of_request(api_key: int) -> "UnitBudget":
        return UnitBudget(api_key, MAX_ITEMS.get(api_key, DEFAULT_MAX_ITEMS))

    def announce(self, count: int, are_small: bool) -> None:
        """Count the items of an array before they are read. Raise TooMuchError if the message may not have that
        many."""
        self.items += count // SMALL_ITEMS if are_small else count
        if self.items > self._most_items:
            name = api_name(self._api_key)
            raise TooMuchError(f"a {name} request holds {self.items} items or more; the limit is {self._most_items}")

    def spend(self, units: int) -> bool:
        """Return True if the budget of the event is spent. It is renewed then."""
        self._units -= units
        if self._units > 0:
            return False
        self._units = WIRE_UNITS_PER_SLICE
        return True
