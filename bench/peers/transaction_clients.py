"""Clients with transactions without records: raw ones, one or many at once, and one that retries each step."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.peers.group_clients import RetryingCoordinator
from bench.peers.node import PeerError
from reference_broker.blocking.transport import Connection, EncodedRequest
from reference_broker.client import group_requests
from reference_broker.client import transaction_requests as requests
from reference_broker.client.group_requests import GroupVersions
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.transaction_requests import ProducerIdentity
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode, error_name

INIT_VERSION = 4
ADD_VERSION = 3
END_VERSION = 4
"""The newest before KIP-890. The epoch stays, so that a frame can be sent again and again."""
TIMEOUT_US = 60_000_000
NOT_YET = (
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.concurrent_transactions,
)


@dataclass(frozen=True, slots=True)
class RawTransactions:
    """One transactional ID on a connection of its own, with the frames of a transaction with one partition."""

    connection: Connection
    add: EncodedRequest
    end: EncodedRequest

    @classmethod
    def of(cls, connection: Connection, own_id: str, partition: TopicPartition, limit_s: float) -> "RawTransactions":
        """Wait until the single node has given a producer ID. Raise PeerError."""
        find = group_requests.find_coordinator(own_id, requests.TRANSACTION_KEY_TYPE)
        init = requests.init_request(own_id, TIMEOUT_US, ProducerIdentity())
        deadline = time.perf_counter() + limit_s
        while True:
            connection.call(ApiKey.FIND_COORDINATOR, GroupVersions().find_coordinator, find)
            owner = requests.initialized(connection.call(ApiKey.INIT_PRODUCER_ID, INIT_VERSION, init))
            if isinstance(owner, ProducerIdentity):
                break
            if owner not in NOT_YET or time.perf_counter() > deadline:
                raise PeerError(f"{own_id} got no producer ID: {error_name(int(owner))}")
            time.sleep(0.01)
        adds = requests.add_partitions_request(own_id, owner, [partition])
        ends = requests.end_request(own_id, owner, True)
        return cls(
            connection,
            connection.encode(ApiKey.ADD_PARTITIONS_TO_TXN, ADD_VERSION, adds),
            connection.encode(ApiKey.END_TXN, END_VERSION, ends),
        )

    def is_added(self) -> bool:
        """Read the response to ``add``. The transaction before may not be complete yet. Raise PeerError."""
        return _is_done(_error_of_adding(self.connection.receive(self.add).body))

    def is_ended(self) -> bool:
        """Read the response to ``end``. Raise PeerError."""
        return _is_done(_error_of_end(self.connection.receive(self.end).body))


def commit_all(producers: Sequence[RawTransactions]) -> None:
    """Each begins a transaction and commits it. A step that comes too early is sent again at once."""
    waiting = list(producers)
    while waiting:
        for producer in waiting:
            producer.connection.send_bytes(producer.add.frame)
        waiting = [producer for producer in waiting if not producer.is_added()]
    waiting = list(producers)
    while waiting:
        for producer in waiting:
            producer.connection.send_bytes(producer.end.frame)
        waiting = [producer for producer in waiting if not producer.is_ended()]


def _is_done(error: Error | int) -> bool:
    if error == ErrorCode.none:
        return True
    if error == ErrorCode.concurrent_transactions:
        return False
    raise PeerError(f"a transaction was refused: {error_name(int(error))}")


class RetryingTransactions(RetryingCoordinator):
    """Looks up the coordinator at any node before each attempt, so that it follows it at once."""

    key_type = requests.TRANSACTION_KEY_TYPE

    def taken(self, own_id: str, limit_s: float) -> ProducerIdentity:
        """Take the transactional ID. Raise PeerError."""
        body = requests.init_request(own_id, TIMEOUT_US, ProducerIdentity())

        def attempt() -> ProducerIdentity | None:
            response = self._call_coordinator(own_id, ApiKey.INIT_PRODUCER_ID, INIT_VERSION, body)
            found = None if response is None else requests.initialized(response)
            if isinstance(found, ProducerIdentity):
                return found
            if found is not None:
                self._is_fine(int(found), ())
            return None

        return self._until(attempt, limit_s, f"a producer ID for {own_id}")

    def begun(self, own_id: str, owner: ProducerIdentity, partition: TopicPartition, limit_s: float) -> None:
        """Begin a transaction with one partition. Raise PeerError."""
        body = requests.add_partitions_request(own_id, owner, [partition])
        self._step(own_id, ADD_VERSION, ApiKey.ADD_PARTITIONS_TO_TXN, body, _error_of_adding, limit_s)

    def committed(self, own_id: str, owner: ProducerIdentity, limit_s: float) -> None:
        """Commit the transaction, and return once its end is decided. A lost response does no harm: a commit that is
        resent gets the same response. Raise PeerError."""
        body = requests.end_request(own_id, owner, True)
        self._step(own_id, END_VERSION, ApiKey.END_TXN, body, _error_of_end, limit_s)

    def _step(
        self,
        own_id: str,
        version: int,
        api_key: ApiKey,
        body: object,
        error_of: Callable[[object], Error | int],
        limit_s: float,
    ) -> None:
        def attempt() -> bool | None:
            response = self._call_coordinator(own_id, api_key, version, body)
            return None if response is None or not self._is_fine(int(error_of(response)), (ErrorCode.none,)) else True

        self._until(attempt, limit_s, f"{api_key.name} of {own_id}")

    def _call_coordinator(self, own_id: str, api_key: ApiKey, version: int, body: object) -> object | None:
        found = self._find(own_id)
        response: object | None = None if found is None else self._call(found.port, api_key, version, body)
        return response


def _error_of_adding(response: object) -> Error | int:
    (error,) = requests.added(response).values()
    return error


def _error_of_end(response: object) -> Error | int:
    found = requests.ended(response)
    return ErrorCode.none if isinstance(found, ProducerIdentity) else found
