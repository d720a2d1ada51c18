"""Scripts that know the cluster: its metadata, and how to reach a leader.

A script that sets ``KEEPS_CONNECTIONS`` holds one connection to each address, on a channel of its own. Any other script
has a single connection.

A script with ``EpochHabits.metadata_epoch`` checks whether each node knows KIP-232's drafts, and requests metadata in
those. It drops a response that is older than the last one that it accepted, and queries another node later (M-5).

The clients of one load worker share a ``MetadataBoard``, so that a thousand of them do not request the same metadata at
once. Real clients each send their own requests, and in the simulator these do too: there a script has no board. A
response lists every partition of the requested topics, so if each client sent its own requests, the cost would grow
with the square of the fleet's size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, cast

from bench.fleet.behaviours.bodies import EARLIEST, list_offsets_request, metadata_request
from bench.fleet.behaviours.protocol import Address, Chance, ClientSettings, TopicPartition
from bench.fleet.behaviours.script import Script, Steps
from reference_broker.client.api_versions import (
    API_VERSIONS,
    API_VERSIONS_REQUEST,
    API_VERSIONS_VERSION,
    announces_drafts,
)
from reference_broker.client.metadata_cache import MetadataCache, MetadataUpdate, NodeAddress
from reference_broker.wire.apis import WITH_LEADER_EPOCHS, ApiKey
from reference_broker.wire.errors import error_name
from reports.rows import MetadataEpochRow

if TYPE_CHECKING:
    from kio.schema.list_offsets.v10.response import ListOffsetsResponse

    from reference_broker.wire.retired_fields import MetadataResponse


FRESH_US: Final = 2_000_000
"""Maximum age of a response that other clients of the board still accept. Longer than any client's backoff."""
REQUEST_LIMIT_US: Final = 3_000_000
"""Time for which a pending request keeps other clients from sending one."""


@dataclass(slots=True)
class MetadataBoard:
    """Metadata that several scripts share."""

    topics: tuple[str, ...]  # topics of all of them
    update: MetadataUpdate | None = None  # the last response
    received_us: int = -1  # when it came; -1: never
    requested_us: int = -1  # when the last request was sent; -1: never, or it failed

    def news(self, seen_us: int, now_us: int) -> MetadataUpdate | None:
        """Return the last response if it is fresh and came after ``seen_us``. For a client that has seen none (-1) any
        response is fresh."""
        fresh = seen_us < 0 or now_us - self.received_us <= FRESH_US
        return self.update if seen_us < self.received_us and fresh else None

    def begin_request(self, now_us: int) -> bool:
        """Return whether the caller may send a request now, and record it. It may not while another client waits for
        a response."""
        pending = self.requested_us > self.received_us and now_us - self.requested_us < REQUEST_LIMIT_US
        if not pending:
            self.requested_us = now_us
        return not pending

    def post(self, update: MetadataUpdate, now_us: int) -> None:
        self.update, self.received_us = update, now_us

    def failed(self) -> None:
        """The last request got no response, so the next client may send one."""
        self.requested_us = -1


METADATA_DRAFT: Final = WITH_LEADER_EPOCHS
PATIENT_FAILURES: Final = 2
"""After more failures than this in a row, the script requests metadata from another node."""


class EpochHabits(NamedTuple):
    metadata_epoch: bool = False  # switches on the drafts and the guard of M-5
    metadata_interval_us: int = 0  # after this time another node is queried although nothing is wrong; 0: never


NO_HABITS: Final = EpochHabits()


class ClusterScript(Script):
    """``topics`` are the topics that all metadata requests of the script name."""

    KEEPS_CONNECTIONS: ClassVar[bool] = False

    def __init__(
        self,
        process: str,
        settings: ClientSettings,
        random: Chance,
        topics: Sequence[str],
        habits: EpochHabits = NO_HABITS,
    ) -> None:
        super().__init__(process, settings, random)
        self.habits = habits
        self._drafts: dict[Address, bool] = {}
        self._updated_us = self._visits = 0
        self.topics = tuple(dict.fromkeys(topics))
        self.metadata = MetadataCache()
        self._tried = random.randrange(len(settings.bootstrap))
        self._channels: dict[Address, int] = {}
        self.board: MetadataBoard | None = None
        self._seen_us = -1

    @property
    def gives_up(self) -> bool:
        """Whether the script stops retrying. It is read before each retry."""
        return self.out_of_time

    def channel_of(self, address: Address) -> int:
        """The channel of the connection to this address."""
        return self._channels.setdefault(address, len(self._channels)) if self.KEEPS_CONNECTIONS else 0

    def connect_to_node(self, node: NodeAddress) -> Steps[bool]:
        """Connect to the node unless it is connected, and return whether the connection is open."""
        return (yield from self._reach(Address(node.host, node.port), node.node_id))

    def _reach(self, address: Address, node_id: int = -1) -> Steps[bool]:
        if self.KEEPS_CONNECTIONS:
            self.running_task.channel = self.channel_of(address)
        if self.connected_to == address:
            return True
        if not (yield from self.connect(address, node_id)):
            return False
        return not self.habits.metadata_epoch or (yield from self._learn_drafts(address))

    def _learn_drafts(self, address: Address) -> Steps[bool]:
        """Requests on a new connection whether the node announces the drafts. Returns whether it responded."""
        response = yield from self.call(API_VERSIONS, API_VERSIONS_VERSION, API_VERSIONS_REQUEST)
        if isinstance(response, str):
            return False
        self._drafts[address] = announces_drafts(response.body)
        return True

    def stay_informed(self) -> Steps[None]:
        """Request metadata from the next node, if the last response is older than the script's interval."""
        if 0 < self.habits.metadata_interval_us <= self.now.mono_us - self._updated_us:
            self._updated_us = self.now.mono_us
            self._visits += 1
            known = self._known_addresses()
            if (yield from self._reach(known[self._visits % len(known)])):
                yield from self._request_metadata()

    def refresh(self) -> Steps[bool]:
        """Try once to get new metadata, over the open connection. If there is none, or it has not helped, the script
        queries the next known node. Among scripts that share a board, only one has a request pending."""
        if self.board is None:
            return (yield from self._request_metadata())
        news = self.board.news(self._seen_us, self.now.mono_us)
        if news is not None:
            self._seen_us = self.board.received_us
            self.metadata = self.metadata.apply(news)
            return True
        if not self.board.begin_request(self.now.mono_us):
            return False
        if not (yield from self._request_metadata()):
            self.board.failed()
            return False
        self._seen_us = self.board.received_us
        return True

    def _request_metadata(self) -> Steps[bool]:
        elsewhere = self.connected_to is None or (
            self.KEEPS_CONNECTIONS and self.running_task.failures > PATIENT_FAILURES
        )
        if elsewhere and not (yield from self._reach(self._next_address())):
            return False
        operation = self.journal.begin("metadata")
        drafted = self.connected_to is not None and self._drafts.get(self.connected_to, False)
        version = METADATA_DRAFT if drafted else self.settings.versions.metadata
        response = yield from self.call(ApiKey.METADATA, version, metadata_request(self.topics))
        if isinstance(response, str):
            self.journal.end(operation, "fail", response)
            return False
        self._updated_us = self.now.mono_us
        update = MetadataUpdate.of(cast("MetadataResponse", response.body))
        accepted = self._take_metadata(update)
        rows = []
        if drafted:
            seen = (self._connected_node(), update.metadata_epoch, accepted)
            rows.append(MetadataEpochRow(self.process, operation.index, *seen, self.now.mono_us))
        self.journal.end(operation, "ok", None, response, rows=tuple(rows))
        if not accepted:
            self.disconnect()  # So that another node is queried after the backoff (M-5).
        elif self.board is not None:
            self.board.post(update, self.now.mono_us)
        return accepted

    def _connected_node(self) -> int:
        """The ID of the connected node, or -1 if the metadata do not have it."""
        address = self.connected_to
        nodes = self.metadata.nodes.values()
        return next((node.node_id for node in nodes if Address(node.host, node.port) == address), -1)

    def _take_metadata(self, update: MetadataUpdate) -> bool:
        """Apply the metadata, or return False if they are older than the last that were applied."""
        accepted = self.metadata.accepts(update)
        self.metadata = self.metadata.apply(update)
        return accepted

    def _next_address(self) -> Address:
        """Known nodes and bootstrap addresses take turns, so that one dead node does not hold a client up. Two times
        out of three only nodes with an open connection are chosen from."""
        self._tried += 1
        known = self._known_addresses()
        alive = [address for address in known if self.connected_on(self._channels.get(address, -1)) == address]
        if not alive:
            return known[self._tried % len(known)]
        return alive[self._tried % len(alive)] if self._tried % 3 else known[self._tried // 3 % len(known)]

    def _known_addresses(self) -> list[Address]:
        known = [Address(node.host, node.port) for node in self.metadata.nodes.values()]
        return list(dict.fromkeys((*known, *self.settings.bootstrap)))

    def find_leaders(self, partitions: Sequence[TopicPartition]) -> Steps[bool]:
        """Refresh the metadata until each partition has a leader. Return False if the script gives up first."""
        while True:
            if (yield from self.refresh()) and not self.metadata.missing(partitions):
                self.succeeded()
                return True
            if self.gives_up:
                return False
            yield from self.back_off()

    def bound_offsets(
        self, partitions: Sequence[TopicPartition], at: int = EARLIEST
    ) -> Steps[dict[TopicPartition, int]]:
        """Return the log start offsets, or with LATEST the ends, of partitions that the connected node leads.
        Partitions without a response are omitted."""
        operation = self.journal.begin("list_offsets")
        body = list_offsets_request(partitions, at)
        response = yield from self.call(ApiKey.LIST_OFFSETS, self.settings.versions.list_offsets, body)
        if isinstance(response, str):
            self.journal.end(operation, "fail", response)
            return {}
        found: dict[TopicPartition, int] = {}
        error: str | None = None
        for topic in cast("ListOffsetsResponse", response.body).topics:
            for partition in topic.partitions:
                code = int(partition.error_code.value)
                if code == 0:
                    found[TopicPartition(topic.name, int(partition.partition_index))] = int(partition.offset)
                else:
                    error = error_name(code)
        self.journal.end(operation, "fail" if error else "ok", error, response)
        return found
