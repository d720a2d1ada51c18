"""A transactional producer in few words: it takes its ID, adds partitions, writes, commits offsets and ends.

It resends its requests while the coordinator is not ready or the last transaction is still ending, whose markers are
written after the response to EndTxn.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench.probe.case import ANY, PREPARING, NotAdvertised, Unsupported, Versions, since_version
from bench.probe.context import AGAIN_AFTER_S, NOT_SERVED_YET, ByKey, ProbeContext, Topic, address_of, single
from bench.probe.conversation import Conversation
from bench.probe.data import FETCH, PRODUCE, batch, fetch_one, produce_request, wanted
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import PartitionData
from reference_broker.wire.produce import ProducePartitionResponse

INIT, FIND, LIST_OFFSETS = int(ApiKey.INIT_PRODUCER_ID), int(ApiKey.FIND_COORDINATOR), int(ApiKey.LIST_OFFSETS)
ADD, ADD_OFFSETS = int(ApiKey.ADD_PARTITIONS_TO_TXN), int(ApiKey.ADD_OFFSETS_TO_TXN)
END, COMMIT_OFFSETS = int(ApiKey.END_TXN), int(ApiKey.TXN_OFFSET_COMMIT)
OF_TRANSACTIONS = 1
"""The type of a coordinator's key."""
UNCOMMITTED, COMMITTED = 0, 1
"""Isolation levels: of readers that see all records, and of those that see what is committed."""
LATEST = -1
TIMEOUT_MS = 30_000
WITHIN_S = 10.0
SPARE_S = 2.0
"""The time that a case must have left for a retry."""
ON_THE_WAY = (*NOT_SERVED_YET, ErrorCode.concurrent_transactions)
FENCED = (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced)
"""Clients that know PRODUCER_FENCED get it (KIP-588)."""
OWNED: dict[int, Versions] = {INIT: ANY, FIND: since_version(1)}
BY_CLIENTS: Versions = (0, 3)
"""Newer versions of AddPartitionsToTxn are for brokers."""
NEEDS: dict[int, Versions] = {
    **OWNED,
    ADD: BY_CLIENTS,
    END: (0, 4),
    PRODUCE: (3, 11),
    FETCH: since_version(4),
    LIST_OFFSETS: since_version(2),
    ApiKey.CREATE_TOPICS: ANY,
}
"""Versions for transactions whose epoch stays the same at their end (transaction.version 0 and 1)."""
NEEDS_2: dict[int, Versions] = {**NEEDS, END: since_version(5), PRODUCE: since_version(12)}
"""Versions for those whose epoch is raised (transaction.version 2, KIP-890)."""


def needs_version_2(at: ProbeContext) -> None:
    """Raise NotAdvertised unless ``transaction.version`` is finalized at 2 or higher: then clients may use it."""
    response = at.call(ApiKey.API_VERSIONS, {"client_software_name": "probe", "client_software_version": "1"})
    levels = {str(each.name): int(each.max_version_level) for each in getattr(response, "finalized_features", ())}
    if levels.get("transaction.version", 0) < 2:
        raise NotAdvertised("transaction.version is not finalized at 2")


def allowed(code: int) -> None:
    """Raise NotAdvertised if the request needs rights that the probe does not have."""
    if code == ErrorCode.cluster_authorization_failed:
        raise NotAdvertised("it needs rights of brokers or administrators")


def until(
    at: ProbeContext, holds: Callable[[], bool], within_s: float = WITHIN_S, every_s: float = AGAIN_AFTER_S
) -> None:
    """Repeat until it holds or the time is over. The case then checks what there is."""
    end = time.monotonic() + min(within_s, at.left_s() - 1)
    while not holds() and time.monotonic() < end:
        time.sleep(every_s)


def _error_code(result: Any) -> int:
    return int(result.error_code)


@dataclass(slots=True)
class Transactional:
    """A transactional producer. Sequences begin at 0 in each partition and epoch."""

    at: ProbeContext
    name: str = ""  # the transactional ID
    producer_id: int = -1  # from the last response
    epoch: int = -1  # from the last response
    on_node_of: "Transactional | None" = None  # a producer whose coordinator is connected to instead of its own
    on: Conversation = field(init=False)  # the connection to its coordinator
    _sequences: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = self.name or self.at.belongings.name("transaction")
        if self.name not in self.at.names:
            self.at.names.append(self.name)
        while self.on_node_of and _coordinator(self.at, self.name) != self.on_node_of.on.address:
            self.name = self.at.belongings.name("transaction")
        self.on = self.at.connect(_coordinator(self.at, self.name))

    @property
    def owner(self) -> dict[str, object]:
        return {"transactional_id": self.name, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    def call(
        self, api_key: int, values: Mapping[str, object], code: Callable[[Any], int] = _error_code, version: int = -1
    ) -> Any:
        """Send a request to its coordinator until ``code``, which finds an error in the response, is none of
        ON_THE_WAY."""
        chosen = self.at.version(api_key) if version < 0 else version
        return self._resend(lambda: self.at.call(api_key, values, chosen, self.on), code)

    def _resend(
        self,
        send: Callable[[], Any],
        code: Callable[[Any], int] = _error_code,
        errors: Sequence[int] = ON_THE_WAY,
    ) -> Any:
        """Send until the code is none of ``errors``, or until the case has little time left."""
        while code(result := send()) in errors and self.at.left_s() > SPARE_S:
            time.sleep(AGAIN_AFTER_S)
        return result

    def await_coordinator(self) -> None:
        """Wait until the coordinator serves transactional IDs that end up with it."""
        Transactional(self.at, on_node_of=self).take()

    # Its ID

    def init(self, **other: object) -> Any:
        """Send InitProducerId and return the response, with or without an error. ``other``: fields of the request."""
        request = {"transactional_id": self.name, "transaction_timeout": TIMEOUT_MS, **other}
        return self.call(INIT, request)

    def take(self, **other: object) -> "Transactional":
        """Take the ID, which must succeed, and remember what it got."""
        response = self.init(**other)
        self.at.expect("error code of InitProducerId", response.error_code, ErrorCode.none)
        self.producer_id, self.epoch = int(response.producer_id), int(response.producer_epoch)
        return self

    def reconnect(self) -> None:
        """Open a new connection to the coordinator, after a restart."""
        self.on = self.at.connect(_coordinator(self.at, self.name))

    def successor(self) -> "Transactional":
        """Another producer that takes the same ID."""
        return Transactional(self.at, self.name).take()

    # Partitions and records

    def add(self, topics: Mapping[str, Sequence[int]], **other: object) -> dict[tuple[str, int], int]:
        """Add partitions and return their error codes."""
        named = [{"name": name, "partitions": list(topic)} for name, topic in topics.items()]
        request = {"transactions": [{**self.owner, "topics": named, **other}]}
        return codes(
            self.call(ADD, request, lambda response: max(codes(response).values(), key=_is_on_the_way, default=0))
        )

    def add_one(self, topic: Topic, partition: int = 0, **other: object) -> int:
        """Add one partition and return its error code."""
        return self.add({topic.name: [partition]}, **other)[topic.name, partition]

    def adds(self, topic: Topic, *partitions: int) -> None:
        """Add what must be taken."""
        results = self.add({topic.name: partitions or (0,)})
        self.at.expect("error codes of AddPartitionsToTxn", sorted(set(results.values())), [0])

    def send(
        self,
        topic: Topic,
        *values: bytes,
        partition: int = 0,
        transactional: bool = True,
        on: Conversation | None = None,
        **other: Any,
    ) -> ProducePartitionResponse:
        """Write a batch and return the result of its partition. ``other``: its ``sequence``, and the
        ``transactional_id`` of the request. Resends it while the coordinator, which the broker may have to query first,
        is busy with the transaction before."""
        key = topic.name, partition, self.epoch
        sequence = other.get("sequence", self._sequences.get(key, 0))
        data = batch(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=transactional,
        )
        result = self.send_batch(topic, data, partition, on, other.get("transactional_id", self.name))
        if result.error_code == ErrorCode.none:
            self._sequences[key] = sequence + max(1, len(values))
        return result

    def send_batch(
        self,
        topic: Topic,
        data: bytes,
        partition: int = 0,
        on: Conversation | None = None,
        transactional_id: str | None = "",
    ) -> ProducePartitionResponse:
        """Write a batch that is made already. The request names this producer unless ``transactional_id`` is given."""
        version = self.at.version(PRODUCE)
        request = produce_request(topic, version, {partition: data})
        named = replace(request, transactional_id=self.name if transactional_id == "" else transactional_id)
        result = self._resend(
            lambda: single(self.at.call(PRODUCE, named, version, on), "responses", "partitions"),
            errors=(*ON_THE_WAY, ErrorCode.not_enough_replicas),
        )
        assert isinstance(result, ProducePartitionResponse)
        return result

    def forget_sequences(self) -> None:
        """The next batch has the sequence of the first one."""
        self._sequences.clear()

    def writes(self, topic: Topic, *values: bytes, partition: int = 0, on: Conversation | None = None) -> None:
        """Write what must be taken, to a partition of the transaction."""
        result = self.send(topic, *values, partition=partition, on=on)
        self.at.expect("error code of a produce in the transaction", result.error_code, ErrorCode.none)

    def begins(self, topic: Topic, *values: bytes, partition: int = 0) -> None:
        """Add a partition and write to it."""
        self.adds(topic, partition)
        self.writes(topic, *values, partition=partition)

    # Offsets of a group

    def add_offsets(self, group_id: str, **other: object) -> int:
        """Return the error code."""
        request = {**self.owner, "group_id": group_id, **other}
        return int(self.call(ADD_OFFSETS, request).error_code)

    def commit_offset(self, on: Conversation, group_id: str, topic: Topic, offset: int, **other: object) -> int:
        """Commit the offset of partition 0 in the transaction and return its error code. ``on``: the group's
        coordinator."""
        partitions = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}]
        request = {
            **self.owner,
            "group_id": group_id,
            "topics": [{"name": topic.name, "partitions": partitions}],
            **other,
        }
        result = self._resend(lambda: single(self.at.call(COMMIT_OFFSETS, request, on=on), "topics", "partitions"))
        return int(result.error_code)

    # Its end

    def end(self, *, commits: bool, **other: object) -> Any:
        """Send EndTxn and return the response, with or without an error."""
        return self.call(END, {**self.owner, "committed": commits, **other})

    def ends(self, *, commits: bool) -> None:
        """End the transaction, which must succeed, and go on in the epoch of the response."""
        response = self.end(commits=commits)
        self.at.expect("error code of EndTxn", response.error_code, ErrorCode.none)
        if self.at.version(END) >= 5:
            self.producer_id, self.epoch = int(response.producer_id), int(response.producer_epoch)

    def commits(self, *topics: Topic) -> None:
        """Commit, and wait until nothing is open in partition 0 of the topics."""
        self.ends(commits=True)
        settle(self.at, *topics)

    def aborts(self, *topics: Topic) -> None:
        """Aborts, and waits as ``commits`` does."""
        self.ends(commits=False)
        settle(self.at, *topics)


def _is_on_the_way(code: int) -> bool:
    return code in ON_THE_WAY


def codes(response: Any) -> dict[tuple[str, int], int]:
    """The error codes of AddPartitionsToTxn, by topic and partition, of a response about one transaction."""
    topics = single(response, "results_by_transaction").topic_results
    return ByKey(
        {
            (str(topic.name), int(result.partition_index)): int(result.partition_error_code)
            for topic in topics
            for result in topic.results_by_partition
        }
    )


def _coordinator(at: ProbeContext, name: str) -> tuple[str, int]:
    found: list[Any] = []

    def is_there() -> bool:
        request = {"key_type": OF_TRANSACTIONS, "coordinator_keys": [name]}
        found[:] = [single(at.call_unseen(FIND, request, at.main), "coordinators")]
        return not found[0].error_code

    until(at, is_there)
    if found[0].error_code:
        raise Unsupported(f"{PREPARING}no coordinator of transactions is found")
    return address_of(at.broker, found[0])


# What readers see


def read(at: ProbeContext, topic: Topic, isolation: int, offset: int = 0, partition: int = 0) -> PartitionData:
    """Fetch a partition with this isolation level."""
    return fetch_one(at, topic, wanted(partition, offset), isolation_level=isolation)


def latest(at: ProbeContext, topic: Topic, isolation: int, timestamp: int = LATEST, *, seen: bool = True) -> int:
    """The offset that ListOffsets returns for partition 0."""
    one = {"partition_index": 0, "timestamp": timestamp}
    request = {"replica_id": -1, "isolation_level": isolation, "topics": [{"name": topic.name, "partitions": [one]}]}
    response = at.call(LIST_OFFSETS, request) if seen else at.call_unseen(LIST_OFFSETS, request, at.main)
    result = single(response, "topics", "partitions")
    if seen:
        at.expect("error code of ListOffsets", result.error_code, ErrorCode.none)
    return int(result.offset)


def settle(at: ProbeContext, *topics: Topic, within_s: float = WITHIN_S) -> None:
    """Wait until no transaction is open in partition 0 of the topics: the markers come after the response to
    EndTxn."""
    for topic in topics:
        until(at, lambda topic=topic: _open_records(at, topic) == 0, within_s)  # type: ignore[misc]


def _open_records(at: ProbeContext, topic: Topic) -> int:
    return latest(at, topic, UNCOMMITTED, seen=False) - latest(at, topic, COMMITTED, seen=False)
