"""A client that retries each step of a transaction until it is accepted, even if the coordinator changes."""

from collections.abc import Callable

from bench.peers.raw_transactions import ADD_VERSION, END_VERSION, INIT_VERSION, TIMEOUT_US
from bench.peers.retrying_groups import RetryingCoordinator
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.transactions import requests
from reference_broker.client.transactions.requests import ProducerIdentity
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode


class RetryingTransactions(RetryingCoordinator):
    """Asks any node for the coordinator before each try, so that it follows it at once."""

    key_type = requests.TRANSACTION_KEY_TYPE

    def taken(self, own_id: str, limit_s: float) -> ProducerIdentity:
        """Takes the transactional ID. Raises PeerError."""
        body = requests.init_request(own_id, TIMEOUT_US, ProducerIdentity())

        def ask() -> ProducerIdentity | None:
            answer = self._ask_coordinator(own_id, ApiKey.INIT_PRODUCER_ID, INIT_VERSION, body)
            found = None if answer is None else requests.initialized(answer)
            if isinstance(found, ProducerIdentity):
                return found
            if found is not None:
                self._is_fine(int(found), ())
            return None

        return self._until(ask, limit_s, f"a producer ID for {own_id}")

    def begun(self, own_id: str, owner: ProducerIdentity, where: TopicPartition, limit_s: float) -> None:
        """Begins a transaction with one partition. Raises PeerError."""
        body = requests.add_partitions_request(own_id, owner, [where])
        self._step(own_id, ADD_VERSION, ApiKey.ADD_PARTITIONS_TO_TXN, body, _error_of_adding, limit_s)

    def committed(self, own_id: str, owner: ProducerIdentity, limit_s: float) -> None:
        """Commits the transaction, and returns once its end is decided. An answer that was lost does no harm: a commit
        that comes again gets the same answer. Raises PeerError."""
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
        def ask() -> bool | None:
            answer = self._ask_coordinator(own_id, api_key, version, body)
            return None if answer is None or not self._is_fine(int(error_of(answer)), (ErrorCode.none,)) else True

        self._until(ask, limit_s, f"{api_key.name} of {own_id}")

    def _ask_coordinator(self, own_id: str, api_key: ApiKey, version: int, body: object) -> object | None:
        found = self._find(own_id)
        answer: object | None = None if found is None else self._call(found.port, api_key, version, body)
        return answer


def _error_of_adding(answer: object) -> Error | int:
    (error,) = requests.added(answer).values()
    return error


def _error_of_end(answer: object) -> Error | int:
    told = requests.ended(answer)
    return ErrorCode.none if isinstance(told, ProducerIdentity) else told
