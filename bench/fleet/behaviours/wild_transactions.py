"""Requests of transactions that Kafka's producers do not send, or send in a rare race only.

All wild clients share a few transactional IDs, so they fence each other. A client may learn the present owner of an ID
(DescribeTransactions) and act as a twin of that producer. So partitions are added, and offsets are committed, while the
transaction ends. Partitions of topics are added whose leaders may not know them yet, or which are deleted meanwhile.
Those of the load are not added: its readers could not know which marker is the last one. Some requests are given up
after a few milliseconds, and the transaction is ended at once. Some producers have an ID of their own, begin one
transaction, and never come back.

The offsets are those of a group without members, to which plain commits, removals (OffsetDelete) and other transactions
come in between. No records are written. All commits have the same offset, and only the metadata text of each differs:
what the group has committed does not show who committed last.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from kio.schema.offset_delete.v0.request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32

from bench.fleet.behaviours.hanging_transactions import describe_transaction
from bench.fleet.behaviours.protocol import Chance, TopicPartition
from bench.fleet.behaviours.wild_members import COMMITTED_OFFSET, HASTY_US, WildRequest, fetch_offsets
from reference_broker.client import transaction_requests as requests
from reference_broker.client.group_requests import MemberIdentity
from reference_broker.client.offset_commits import OffsetToCommit, commit_request
from reference_broker.client.transaction_requests import ProducerIdentity
from reference_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse


IDS: Final = 3
TIMEOUTS_US: Final = (1_000_000, 2_000_000, 5_000_000)
OPERATIONS: Final = (
    *("add_partitions",) * 5,
    *("add_offsets",) * 4,
    *("commit_offsets",) * 6,
    *("commit_and_end",) * 3,
    *("whole",) * 6,
    *("end",) * 5,
    *("learn",) * 3,
    *("commit",) * 3,
    *("fetch",) * 2,
    *("init",) * 2,
    *("abandon",) * 3,
    "remove",
)
OF_GROUP: Final = frozenset({"commit", "fetch", "remove"})
CHANGED_PERCENT: Final = 8
"""Share of requests that have a false producer ID or epoch."""
FALSE_OWNER_PERCENT: Final = 30
"""The same for a producer that continues after an error."""
NEWEST: Final = 3
"""Partitions are added of this number of the newest topics."""
INIT, ADD, END, COMMIT_OFFSETS, COMMIT, REMOVE, DESCRIBE = 4, 3, 3, 3, 9, 0, 0
"""Versions. These of TxnOffsetCommit and EndTxn are of clients that add the group by themselves (KIP-890)."""
FALSE: Final = ((1, 0), (0, 1), (0, -1))
"""Differences of false producer IDs and epochs from the right ones."""


def _chained(*requests: WildRequest | None) -> WildRequest:
    """Return the first of these requests, which the others follow."""
    first, *others = [request for request in requests if request is not None]
    return replace(first, then=_chained(*others)) if others else first


class WildTransactions:
    """One client's knowledge of the shared transactional IDs, and its requests."""

    def __init__(self, base: str, loaded: Sequence[TopicPartition], random: Chance) -> None:
        self._base = base
        self._group = MemberIdentity(f"{base}-offsets")
        self._loaded = loaded
        self._random = random
        self._known: dict[str, ProducerIdentity] = {}
        self._once: list[str] = []
        """transactional IDs of producers that will begin one transaction, and never come back"""
        self.made: list[TopicPartition] = []
        """partitions of the newest topics, which may be deleted"""

    def next_request(self) -> WildRequest:
        """Return the next request, mostly as the owner of the ID."""
        random = self._random
        operation = random.choice(OPERATIONS)
        if operation in OF_GROUP:
            return self._of_group(operation)
        if operation == "abandon":
            return self._abandon()
        name = f"{self._base}-{random.randrange(IDS)}"
        owner = self._known.get(name)
        if operation == "learn" or (owner is None and random.randrange(2)):
            return WildRequest(ApiKey.DESCRIBE_TRANSACTIONS, DESCRIBE, describe_transaction(name), self._group, of=name)
        if operation == "init" or owner is None:
            return self._init(name, owner)
        if random.randrange(100) < CHANGED_PERCENT:
            owner = self._false(owner)
        return self._of_transaction(operation, name, owner)

    def _init(self, name: str, owner: ProducerIdentity | None) -> WildRequest:
        """Return the request of a new producer or, half of the time, of one that continues after an error (KIP-360). It
        raises its epoch, and mostly loses the response and sends the same again. Some have a false ID or epoch."""
        random = self._random
        if owner is None or random.randrange(2):
            current, resent = ProducerIdentity(), 0
        elif random.randrange(100) < FALSE_OWNER_PERCENT:
            current, resent = self._false(owner), 0
        else:
            current, resent = owner, random.randrange(3)
        body = requests.init_request(name, random.choice(TIMEOUTS_US), current)
        request = WildRequest(ApiKey.INIT_PRODUCER_ID, INIT, body, self._group, of=name)
        return _chained(request, *(request for _ in range(resent)))

    def _abandon(self) -> WildRequest:
        """Return a request of a producer with an ID of its own: it initializes, then begins a transaction and is gone.
        Its coordinator, or a later one, must abort."""
        if self._once and self._random.randrange(2):
            name = self._once.pop()
            owner = self._known.pop(name)
            return self._add_partitions(name, owner) if self.made else self._add_offsets(name, owner)
        name = f"{self._base}-once-{self._random.randrange(1 << 31)}"
        body = requests.init_request(name, self._random.choice(TIMEOUTS_US), ProducerIdentity())
        return WildRequest(ApiKey.INIT_PRODUCER_ID, INIT, body, self._group, of=name)

    def _false(self, owner: ProducerIdentity) -> ProducerIdentity:
        of_id, of_epoch = self._random.choice(FALSE)
        return ProducerIdentity(owner.producer_id + of_id, max(owner.epoch + of_epoch, 0))

    def _of_transaction(self, operation: str, name: str, owner: ProducerIdentity) -> WildRequest:
        if operation == "add_partitions" and self.made:
            return _chained(self._add_partitions(name, owner), self._perhaps(self._end(name, owner)))
        if operation in ("add_offsets", "add_partitions"):
            return _chained(self._add_offsets(name, owner), self._perhaps(self._commit_offsets(name, owner)))
        if operation == "commit_offsets":
            return self._commit_offsets(name, owner)
        if operation == "commit_and_end":
            hasty = replace(self._commit_offsets(name, owner), patience_us=self._random.choice(HASTY_US))
            return _chained(self._perhaps(self._add_offsets(name, owner)), hasty, self._end(name, owner))
        if operation == "whole":
            between = self._of_group(self._random.choice(("commit", "commit", "remove", "fetch")))
            return _chained(
                *(
                    self._add_offsets(name, owner),
                    self._perhaps(self._add_partitions(name, owner)) if self.made else None,
                ),
                *(self._commit_offsets(name, owner), self._perhaps(between), self._end(name, owner)),
            )
        return self._end(name, owner)

    def _perhaps(self, request: WildRequest) -> WildRequest | None:
        return request if self._random.randrange(2) else None

    def _add_partitions(self, name: str, owner: ProducerIdentity) -> WildRequest:
        random = self._random
        added = dict.fromkeys(random.choice(self.made[-NEWEST:]) for _ in range(random.choice((1, 1, 2))))
        body = requests.add_partitions_request(name, owner, added)
        return WildRequest(ApiKey.ADD_PARTITIONS_TO_TXN, ADD, body, self._group, of=name)

    def _add_offsets(self, name: str, owner: ProducerIdentity) -> WildRequest:
        body = requests.add_offsets_request(name, owner, self._group.group_id)
        return WildRequest(ApiKey.ADD_OFFSETS_TO_TXN, ADD, body, self._group, of=name)

    def _commit_offsets(self, name: str, owner: ProducerIdentity) -> WildRequest:
        body = requests.commit_offsets_request(name, owner, self._group, self._offsets())
        return WildRequest(ApiKey.TXN_OFFSET_COMMIT, COMMIT_OFFSETS, body, self._group)

    def _end(self, name: str, owner: ProducerIdentity) -> WildRequest:
        body = requests.end_request(name, owner, committed=self._random.randrange(4) > 0)
        return WildRequest(ApiKey.END_TXN, END, body, self._group, of=name)

    def _of_group(self, operation: str) -> WildRequest:
        if operation == "commit":
            body: object = commit_request(self._offsets(), self._group, COMMIT)
            return WildRequest(ApiKey.OFFSET_COMMIT, COMMIT, body, self._group)
        if operation == "fetch":
            return fetch_offsets(self._group.group_id, require_stable=self._random.randrange(2) > 0)
        topic, index = self._loaded[0]
        removed = OffsetDeleteRequestTopic(
            name=TopicName(topic), partitions=(OffsetDeleteRequestPartition(partition_index=i32(index)),)
        )
        body = OffsetDeleteRequest(group_id=GroupId(self._group.group_id), topics=(removed,))
        return WildRequest(ApiKey.OFFSET_DELETE, REMOVE, body, self._group)

    def _offsets(self) -> dict[TopicPartition, OffsetToCommit]:
        commit = OffsetToCommit(COMMITTED_OFFSET, metadata=f"wild {self._random.randrange(1000)}")
        return dict.fromkeys(self._loaded[: self._random.choice((1, 1, 2))], commit)

    def responded(self, request: WildRequest, body: object) -> None:
        """Learn the owner of an ID from a response."""
        if request.api_key is ApiKey.INIT_PRODUCER_ID:
            found = requests.initialized(body)
            if isinstance(found, ProducerIdentity):
                self._known[request.of] = found
                if not request.of.removeprefix(f"{self._base}-").isdecimal():
                    self._once.append(request.of)
        elif request.api_key is ApiKey.DESCRIBE_TRANSACTIONS:
            (state,) = cast("DescribeTransactionsResponse", body).transaction_states
            if int(state.producer_id) >= 0:
                self._known[request.of] = ProducerIdentity(int(state.producer_id), int(state.producer_epoch))
