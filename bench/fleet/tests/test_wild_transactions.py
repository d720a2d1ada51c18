"""Wild transactions: twins of a producer, hasty ends, and commits of one group from all sides."""

from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any

from bench.fleet.behaviours.protocol import TopicPartition
from bench.fleet.behaviours.wild_members import COMMITTED_OFFSET, WildRequest
from bench.fleet.behaviours.wild_transactions import WildTransactions
from reference_broker.wire.apis import ApiKey

LOADED = [TopicPartition("hot", index) for index in range(3)]
MADE = TopicPartition("made", 0)


def chain(request: WildRequest | None) -> list[WildRequest]:
    return [] if request is None else [request, *chain(request.then)]


def played(count: int) -> list[list[WildRequest]]:
    """Return the requests of one client, which owns each ID once it has initialised it."""
    wild, chains = WildTransactions("g", LOADED, Random(1)), []
    wild.made = [MADE]
    for number in range(count):
        requests = chain(wild.next_request())
        chains.append(requests)
        for request in requests:
            if request.api_key is ApiKey.INIT_PRODUCER_ID:
                wild.responded(request, SimpleNamespace(error_code=0, producer_id=number, producer_epoch=2))
    return chains


def test_each_request_of_a_transaction_is_sent_to_its_coordinator() -> None:
    requests = [request for requests in played(1000) for request in requests]
    keys = Counter(request.api_key for request in requests)
    of_ids = {
        *(ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID),
        ApiKey.DESCRIBE_TRANSACTIONS,
    }
    of_group = {ApiKey.TXN_OFFSET_COMMIT, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE}
    assert keys.keys() == of_ids | of_group
    assert min(keys.values()) > 15
    assert all(bool(request.of) is (request.api_key in of_ids) for request in requests)
    assert {request.of for request in requests if request.of and "once" not in request.of} == {"g-0", "g-1", "g-2"}


def test_producer_that_continues_repeats_its_request_as_if_the_response_was_lost() -> None:
    chains = [requests for requests in played(2000) if requests[0].api_key is ApiKey.INIT_PRODUCER_ID]
    bodies: list[Any] = [requests[0].body for requests in chains]
    assert {int(body.producer_id) >= 0 for body in bodies} == {False, True}
    assert {len(requests) for requests in chains} == {1, 2, 3}
    assert all(request.body is requests[0].body for requests in chains for request in requests)
    assert all(int(requests[0].body.producer_id) >= 0 for requests in chains if len(requests) > 1)  # type: ignore[attr-defined]


def test_abandoned_transaction_begins_once_and_is_not_heard_of_again() -> None:
    named: dict[str, list[ApiKey]] = {}
    for requests in played(2000):
        for request in requests:
            if "once" in request.of:
                named.setdefault(request.of, []).append(request.api_key)
    assert len(named) > 20
    started = [keys for keys in named.values() if len(keys) > 1]
    assert started
    assert all(keys == [ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN] for keys in started)


def test_commits_are_sent_during_and_at_end_of_transaction() -> None:
    chains = [[request.api_key for request in requests] for requests in played(1000)]
    of_transaction, end = ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN
    for plain in (ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_DELETE):
        assert any(keys[-3:] == [of_transaction, plain, end] for keys in chains)
    hasty = [request for requests in played(1000) for request in requests if request.patience_us]
    assert hasty
    assert all(request.api_key is of_transaction and request.then is not None for request in hasty)


def test_all_commits_have_one_offset_and_different_texts() -> None:
    bodies: list[Any] = [
        request.body
        for requests in played(300)
        for request in requests
        if request.api_key in (ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT)
    ]
    parts = [partition for body in bodies for topic in body.topics for partition in topic.partitions]
    assert {part.committed_offset for part in parts} == {COMMITTED_OFFSET}
    assert len({part.committed_metadata for part in parts}) > len(bodies) // 2


def test_partitions_of_new_topics_are_added() -> None:
    bodies: list[Any] = [
        request.body
        for requests in played(300)
        for request in requests
        if request.api_key is ApiKey.ADD_PARTITIONS_TO_TXN
    ]
    named = {str(topic.name) for body in bodies for transaction in body.transactions for topic in transaction.topics}
    assert named == {"made"}


def test_client_acts_as_the_owner_that_a_coordinator_has_described() -> None:
    wild = WildTransactions("g", LOADED, Random(1))
    state = SimpleNamespace(producer_id=40, producer_epoch=3)
    for name in ("g-0", "g-1", "g-2"):
        request = WildRequest(ApiKey.DESCRIBE_TRANSACTIONS, 0, None, wild._group, of=name)
        wild.responded(request, SimpleNamespace(transaction_states=[state]))
    requests = [each for _ in range(300) for each in chain(wild.next_request())]
    ends: list[Any] = [each.body for each in requests if each.api_key is ApiKey.END_TXN]
    owners = Counter((end.producer_id, end.producer_epoch) for end in ends)
    assert owners[40, 3] > len(ends) // 2
    assert len(owners) > 1  # Some requests have a false owner.
