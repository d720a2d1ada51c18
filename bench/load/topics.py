"""Creates and deletes the topics of a load."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, Final

from bench.fleet.behaviours.bodies import (
    create_topics_request,
    delete_topics_request,
    metadata_request,
    new_topic,
)
from bench.load.producer import METADATA_VERSION
from reference_broker.blocking.transport import Connection, TransportError
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode, error_name

CREATE_VERSION: Final = 5
DELETE_VERSION: Final = 4
"""Versions that each broker since Kafka 2.4 knows."""
CALL_MS: Final = 30_000
REACH_MS: Final = 5_000
REACH_S: Final = 10.0
"""Limit of the first response of an address, and of the time for which addresses are tried."""
LIMIT_S: Final = 60.0
DELETE_LIMIT_S: Final = 10.0
"""Time for which the deletion of topics is tried after an error or a signal: the brokers may have ended."""
PARTITIONS_PER_S: Final = 100
"""A broker that makes topics at this rate may take longer than the limit."""
AGAIN: Final = frozenset({ErrorCode.not_controller, ErrorCode.request_timed_out, ErrorCode.coordinator_not_available})
"""Another attempt may succeed, with another controller."""
_PAUSE_S: Final = 0.1


class TopicError(Exception):
    """The brokers refuse the topics or cannot be reached. The message is one sentence."""


@contextmanager
def topics_for(
    bootstrap: Sequence[tuple[str, int]],
    topics: Sequence[str],
    partitions: int,
    replication: int,
    config: Mapping[str, str] = MappingProxyType({}),
    outlive_failures: bool = True,
) -> Iterator[None]:
    """Make topics whose partitions all have leaders, and delete them at the end of the block.

    ``config`` has settings by Kafka's names. Brokers that do not outlive a failure are left as they are after one.

    :raises TopicError: no broker responds, or they refuse the topics, or no leaders were elected in time.
    """
    admin = _Admin(bootstrap, len(topics) * partitions)
    admin.reach()
    try:
        admin.create(topics, partitions, replication, config)
        admin.await_leaders(topics, partitions)
        yield
    except BaseException:
        if outlive_failures:
            with suppress(TopicError):
                admin.delete(topics, DELETE_LIMIT_S)
        raise
    with suppress(TopicError):
        admin.delete(topics)


def leader_of(bootstrap: Sequence[tuple[str, int]], topic: str) -> int:
    """Return the ID of the node that leads partition 0 of a topic; -1 if no node says so."""
    for address in bootstrap:
        try:
            response = _Admin._call(address, ApiKey.METADATA, METADATA_VERSION, metadata_request([topic]))
        except TransportError:
            continue
        for each in (partition for found in response.topics for partition in found.partitions):
            if each.partition_index == 0 and int(each.leader_id) >= 0:
                return int(each.leader_id)
    return -1


class _Admin:
    def __init__(self, bootstrap: Sequence[tuple[str, int]], partitions: int) -> None:
        self._nodes = list(bootstrap)
        self._limit_s = LIMIT_S + partitions / PARTITIONS_PER_S
        self._last = "no node responded"

    def reach(self) -> None:
        """Wait until any node responds to Metadata."""
        deadline_s = time.monotonic() + REACH_S
        tried = ", ".join(f"{host}:{port}" for host, port in self._nodes)
        for node in itertools.cycle(list(self._nodes)):
            try:
                self._call(node, ApiKey.METADATA, METADATA_VERSION, metadata_request(()), REACH_MS)
            except TransportError as error:
                self._last = str(error)
            else:
                return
            if time.monotonic() > deadline_s:
                raise TopicError(f"no Kafka broker responds at {tried} ({self._last})")
            time.sleep(_PAUSE_S)

    def create(self, topics: Sequence[str], partitions: int, replication: int, config: Mapping[str, str]) -> None:
        body = create_topics_request([new_topic(topic, partitions, replication, config) for topic in topics], CALL_MS)
        fine = {ErrorCode.none, ErrorCode.topic_already_exists}

        def attempt() -> bool:
            response = self._at_controller(ApiKey.CREATE_TOPICS, CREATE_VERSION, body)
            return response is not None and self._all_fine(
                [topic.error_code for topic in response.topics],
                fine,
                [topic.error_message for topic in response.topics],
            )

        self._until(attempt, f"topics with {partitions:,} partitions and {replication} replicas each")

    def await_leaders(self, topics: Sequence[str], partitions: int) -> None:
        def attempt() -> bool:
            response = self._call(self._nodes[0], ApiKey.METADATA, METADATA_VERSION, metadata_request(topics))
            led = sum(int(partition.leader_id) >= 0 for topic in response.topics for partition in topic.partitions)
            return led == len(topics) * partitions

        self._until(attempt, "leaders of all partitions")

    def delete(self, topics: Sequence[str], limit_s: float | None = None) -> None:
        body = delete_topics_request(topics, CALL_MS)
        fine = {ErrorCode.none, ErrorCode.unknown_topic_or_partition}

        def attempt() -> bool:
            response = self._at_controller(ApiKey.DELETE_TOPICS, DELETE_VERSION, body)
            return response is not None and self._all_fine([each.error_code for each in response.responses], fine)

        self._until(attempt, "deletion of the topics", limit_s)

    def _until(self, attempt: Callable[[], bool], what: str, limit_s: float | None = None) -> None:
        """Try until it succeeds. An address that does not respond takes the last place."""
        limit_s = self._limit_s if limit_s is None else limit_s
        deadline_s = time.monotonic() + limit_s
        while True:
            try:
                if attempt():
                    return
            except TransportError as error:
                self._last = str(error)
                self._nodes.append(self._nodes.pop(0))
            if time.monotonic() > deadline_s:
                raise TopicError(f"{what} could not be had within {limit_s:g} s: {self._last}")
            time.sleep(_PAUSE_S)

    def _at_controller(self, api_key: int, version: int, body: object) -> Any:
        """Return the response of the controller that metadata names; None if it names none."""
        metadata = self._call(self._nodes[0], ApiKey.METADATA, METADATA_VERSION, metadata_request(()))
        addresses = {int(broker.node_id): (broker.host, int(broker.port)) for broker in metadata.brokers}
        controller = addresses.get(int(metadata.controller_id))
        if controller is None:
            self._last = "no controller is known"
            return None
        return self._call(controller, api_key, version, body)

    def _all_fine(
        self, codes: Sequence[int], fine: set[ErrorCode], messages: Sequence[str | None] | None = None
    ) -> bool:
        wrong = [number for number, code in enumerate(codes) if int(code) not in fine]
        if not wrong:
            return True
        code, message = ErrorCode(int(codes[wrong[0]])), messages[wrong[0]] if messages else None
        self._last = error_name(int(code)) or str(code)
        if code not in AGAIN:
            why = f" ({message.rstrip('.')})" if message else ""
            raise TopicError(f"the brokers refuse topics with {self._last}{why}")
        return False

    @staticmethod
    def _call(address: tuple[str, int], api_key: int, version: int, body: object, within_ms: int = CALL_MS) -> Any:
        with Connection.open(*address, within_ms * 1000, "crucible-bench") as connection:
            return connection.call(api_key, version, body, within_ms * 1000)
