"""The context of a case: topics and groups of its own, connections, versions, and the expectations that it checks.

A broker decides how long the lists of its responses are. ``sole``, ``single`` and ``ByKey`` fail a case whose broker
returned none of what the case looks up, or more.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from uuid import uuid4

from bench.probe.broker import Address, ProbedBroker, Target
from bench.probe.case import ANY, PREPARING, NotAdvertised, Observation, ProbeCase, Unexpected, Unsupported
from bench.probe.conversation import HAPPENED, Broken, Conversation, Line, Silent, in_words
from bench.targets.model import TargetError
from reference_broker.blocking.transport import EncodedRequest
from reference_broker.wire.apis import ApiKey, api_name
from reference_broker.wire.errors import ErrorCode, error_name

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


def sole(items: Sequence[T], name: str) -> T:
    """Return the only entry of a response's list of this name. Raise Unexpected if it has none or several."""
    if len(items) != 1:
        raise Unexpected(f"{name} of the response has {len(items)} entries, not one")
    return items[0]


def single(response: Any, *names: str) -> Any:
    """Return the only entry of a list, of the list in that entry, and so on: ``single(response, "topics",
    "partitions")``. Raise Unexpected if a list has none or several."""
    for name in names:
        response = sole(getattr(response, name) or (), name)
    return response


class ByKey(dict[K, V]):
    """Parts of a response by some key. A missing key raises Unexpected."""

    def __missing__(self, key: K) -> V:
        raise Unexpected(f"the response has nothing for {key}")


PREFIX = "crucible-probe"
AGAIN_AFTER_S = 0.02
SETUP_LIMIT_S = 10.0
SETUP_AGAIN_S = 1.0
"""Time for which a case waits for a response while it prepares, after the broker did not respond to such a request."""
REMOVAL_LIMIT_S = 30.0
TIMEOUT_MS = 10_000
NOT_SERVED_YET = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)
OF_REMOVAL = (ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_GROUPS, ApiKey.LEAVE_GROUP, ApiKey.DELETE_GROUPS)
BY_NAME_AND_ID = (1, 12)
"""Versions of Metadata that name topics. From version 10 on the response has their IDs, too."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of one case."""

    name: str
    id: bytes  # 16 bytes, which are zero where the broker has no topic IDs
    partitions: int


@dataclass(slots=True)
class Belongings:
    """Resources that the cases of a run have created, so that they can be removed at the end."""

    prefix: str = field(default_factory=lambda: f"{PREFIX}-{uuid4().hex[:8]}")  # of all their names
    topics: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    unresponsive: set[int] = field(default_factory=set)  # APIs without a response while a case prepared
    _count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def name(self, words: str) -> str:
        """A name that is used only once."""
        with self._lock:
            self._count += 1
            return f"{self.prefix}-{self._count}-{words}"


@dataclass(slots=True)
class ProbeContext:
    """The broker as one case sees it, and what the case has seen of it."""

    case: ProbeCase
    broker: ProbedBroker
    belongings: Belongings
    target: Target | None = None
    lines: list[Line] = field(default_factory=list)  # all requests and responses
    observations: list[Observation] = field(default_factory=list)  # each field that the case has checked
    names: list[str] = field(default_factory=list)
    _opened: list[Conversation] = field(default_factory=list)
    _main: Conversation | None = None
    _deadline: float = 0.0

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.case.limit_s

    def left_s(self) -> float:
        return self._deadline - time.monotonic()

    def end(self) -> None:
        for conversation in self._opened:
            conversation.close()

    # Connections and requests

    def connect(self, address: Address | None = None, client_id: str | None = "crucible-probe") -> Conversation:
        """Open a connection to the node that leads the case's topics, or to another address."""
        opened = Conversation(address or self.broker.leader, self.lines, self.left_s, len(self._opened) + 1, client_id)
        self._opened.append(opened)
        return opened

    def restart(self) -> None:
        """Kill the broker and start it again (only in cases with ``restarts``). All older connections are closed."""
        assert self.target is not None
        assert self.target.processes is not None
        for conversation in self._opened:
            conversation.close()
        self._main = None
        self.lines.append(Line(0, HAPPENED, "the broker is killed and started again"))
        try:
            self.target.processes.restart()
        except TargetError as error:
            raise Unsupported(f"the broker does not start again: {error}") from None

    @property
    def main(self) -> Conversation:
        """The case's own connection, which is opened when it is first used."""
        if self._main is None:
            self._main = self.connect()
        return self._main

    def version(self, api_key: int) -> int:
        """The version that the case uses: the highest that both it and the broker support. Raise NotAdvertised."""
        return self.broker.version(api_key, self.case.needs.get(api_key, ANY))

    def call(
        self,
        api_key: int,
        values: object,
        version: int | None = None,
        on: Conversation | None = None,
        limit_s: float | None = None,
    ) -> Any:
        """Send a request on the case's own connection, or ``on`` another one, and return the body of its response.
        ``values`` are plain, see ``conversation.body``."""
        chosen = self.version(api_key) if version is None else version
        return (on or self.main).call(api_key, chosen, values, limit_s)

    def call_unseen(self, api_key: int, values: object, on: Conversation) -> Any:
        """Send a request to the node at the other end of ``on`` without a line in the transcript, for requests that
        are repeated until something has happened."""
        return self._of_setup(on.address, api_key, values, self.case.needs.get(api_key, ANY))

    def send(
        self, api_key: int, values: object, version: int | None = None, on: Conversation | None = None
    ) -> EncodedRequest:
        """Send a request, whose response is read with ``receive`` of the same connection."""
        return (on or self.main).send(api_key, self.version(api_key) if version is None else version, values)

    # Expectations

    def expect(self, field: str, actual: object, *expected: object) -> None:
        """Raise Unexpected unless ``field`` has one of the ``expected`` values. If one of them is an error code, all
        values are printed as error codes."""
        codes = any(isinstance(value, ErrorCode) for value in expected)
        text: Callable[[Any], str] = (lambda value: error_name(int(value))) if codes else in_words
        alternatives = " or ".join(map(text, expected))
        self._observe(field, text(actual), alternatives)
        if actual in expected:
            return
        if codes and actual == ErrorCode.unsupported_version:
            raise Unsupported(f"{field} is UNSUPPORTED_VERSION, although the version is advertised")
        raise Unexpected(f"{field} is {text(actual)}, not {alternatives}")

    def expect_error(self, result: Any, *expected: ErrorCode) -> None:
        """Raise Unexpected unless a response, or a part of one, has one of these error codes."""
        self.expect("error code", result.error_code, *expected)

    def expect_no_error(self, result: Any) -> None:
        self.expect_error(result, ErrorCode.none)

    def expect_that(self, field: str, actual: object, holds: bool, expected: str) -> None:
        """Raise Unexpected unless ``holds``. ``expected`` describes in words what ``field`` must be."""
        self._observe(field, in_words(actual), expected)
        if not holds:
            raise Unexpected(f"{field} is {in_words(actual)}, not {expected}")

    def _observe(self, field: str, actual: str, expected: str) -> None:
        self.observations.append(Observation(field, actual, expected))

    # Resources of a case

    def topic(
        self, partitions: int = 1, configs: Mapping[str, str] | None = None, followers: Sequence[int] = ()
    ) -> Topic:
        """Make a topic for this case alone, led by ``broker.leader``, and wait until it can be used. ``followers``
        are the other nodes with a replica of each partition."""
        name = self.topic_name()
        return self.create(name, partitions, configs, followers)

    def topic_name(self) -> str:
        """A name for a topic that does not exist yet. It is removed at the end all the same."""
        name = self.belongings.name("topic")
        self.belongings.topics.append(name)
        self.names.append(name)
        return name

    def create(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        followers: Sequence[int] = (),
    ) -> Topic:
        """Make a topic with this name. Raise NotAdvertised if the broker makes none, or not with these settings."""
        if len(self.broker.nodes) > 1:
            replicas = [self.broker.node_id, *followers]
            placed = [{"partition_index": number, "broker_ids": replicas} for number in range(partitions)]
            size: dict[str, object] = {"num_partitions": -1, "replication_factor": -1, "assignments": placed}
        else:
            size = {"num_partitions": partitions, "replication_factor": 1, "assignments": []}
        settings = [{"name": key, "value": value} for key, value in (configs or {}).items()]
        wanted = {"topics": [{"name": name, "configs": settings, **size}], "timeout": TIMEOUT_MS}
        response = self._of_setup(self.broker.controller, ApiKey.CREATE_TOPICS, wanted)
        code = int(single(response, "topics").error_code)
        if code == ErrorCode.invalid_config and configs:
            raise NotAdvertised(f"a topic's {', '.join(configs)} cannot be set to what the case needs")
        if code:
            raise Unsupported(f"{PREPARING}no topic can be made: {error_name(code)}")
        return self._when_led(name, partitions)

    def settle(self, name: str, partitions: int = 1) -> None:
        """Wait until a topic that the case made itself has its partitions, each with any leader."""
        self._until(
            lambda: (
                len([partition for partition in self._described(name).partitions if partition.leader_id >= 0])
                == partitions
            )
        )

    def await_leader(self, topic: Topic) -> None:
        """Wait until a topic can be used again after a restart."""
        self._when_led(topic.name, topic.partitions)

    def delete(self, topic: Topic) -> None:
        """Delete a topic and wait until the leader no longer knows it."""
        request = {"topics": [{"name": topic.name}], "timeout": TIMEOUT_MS}
        response = self._of_setup(self.broker.controller, ApiKey.DELETE_TOPICS, request)
        code = int(single(response, "responses").error_code)
        if code:
            raise Unsupported(f"{PREPARING}no topic can be deleted: {error_name(code)}")
        self._until(lambda: self._described(topic.name).error_code == ErrorCode.unknown_topic_or_partition)

    def group(self) -> str:
        """The ID of a group that does not exist yet."""
        group_id = self.belongings.name("group")
        self.belongings.groups.append(group_id)
        self.names.append(group_id)
        return group_id

    def group_beside(self, group_id: str) -> str:
        """The ID of another group that does not exist yet, with the same coordinator."""
        address, other = self._coordinator(group_id), self.group()
        while self._coordinator(other) != address:
            other = self.group()
        return other

    def coordinator(self, group_id: str) -> Conversation:
        """Open a connection to the coordinator of a group, once there is one that serves it."""
        return self.connect(self._coordinator(group_id))

    def _coordinator(self, group_id: str) -> Address:
        address = self.broker.leader

        def is_there() -> bool:
            nonlocal address
            found = self._of_setup(self.broker.leader, ApiKey.FIND_COORDINATOR, {"coordinator_keys": [group_id]})
            node = single(found, "coordinators")
            if node.error_code:
                return False
            address = address_of(self.broker, node)
            group = single(self._of_setup(address, ApiKey.DESCRIBE_GROUPS, {"groups": [group_id]}), "groups")
            return group.error_code not in NOT_SERVED_YET

        self._until(is_there)
        return address

    def _when_led(self, name: str, partitions: int) -> Topic:
        seen: list[Any] = []

        def is_led() -> bool:
            seen[:] = [self._described(name)]
            return len([partition for partition in seen[0].partitions if int(partition.leader_id) >= 0]) == partitions

        self._until(is_led)
        self._until(lambda: self._is_served(name, partitions))
        topic_id = getattr(seen[0], "topic_id", None)
        return Topic(name, topic_id.bytes if topic_id else bytes(16), partitions)

    def _described(self, name: str) -> Any:
        request = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        response = self._of_setup(self.broker.leader, ApiKey.METADATA, request, BY_NAME_AND_ID)
        return single(response, "topics")

    def _is_served(self, name: str, partitions: int) -> bool:
        """Return whether the leader serves the topic. In Apache Kafka it does so a moment after the metadata has the
        topic."""
        if ApiKey.LIST_OFFSETS not in self.broker.versions:
            return True
        wanted = [{"partition_index": number, "timestamp": -1} for number in range(partitions)]
        request = {"replica_id": -1, "topics": [{"name": name, "partitions": wanted}]}
        response = self._of_setup(self.broker.leader, ApiKey.LIST_OFFSETS, request)
        return all(int(partition.error_code) == ErrorCode.none for partition in single(response, "topics").partitions)

    def _of_setup(self, address: Address, api_key: int, values: object, versions: tuple[int, int] = ANY) -> Any:
        """Send a request for what the case needs, on a connection that its transcript does not show."""
        version = self.broker.version(api_key, versions)
        limit_s = SETUP_AGAIN_S if api_key in self.belongings.unresponsive else SETUP_LIMIT_S
        try:
            with Conversation(address, [], self.left_s) as conversation:
                return conversation.call(api_key, version, values, limit_s)
        except Broken as error:
            if isinstance(error, Silent):
                self.belongings.unresponsive.add(api_key)
            raise Unsupported(f"{PREPARING}{error}") from None

    def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            if self.left_s() <= 0:
                raise Unsupported(f"{PREPARING}what it needs was not there in time")
            time.sleep(AGAIN_AFTER_S)


def remove(broker: ProbedBroker, belongings: Belongings) -> Sequence[str]:
    """Delete the topics and groups of a run as far as the broker allows it. Remaining members are removed from their
    groups. Return what the broker refused."""
    failed: list[str] = []
    deadline = time.monotonic() + REMOVAL_LIMIT_S

    def connected(address: Address) -> Conversation:
        return Conversation(address, [], lambda: deadline - time.monotonic())

    for api_key, removed in ((ApiKey.DELETE_TOPICS, _remove_topics), (ApiKey.DELETE_GROUPS, _remove_groups)):
        try:
            failed += removed(broker, belongings, connected)
        except (Broken, NotAdvertised) as error:
            failed.append(f"{api_name(api_key)}: {error}")
    return failed


Connected: TypeAlias = Callable[[Address], Conversation]


def _remove_topics(broker: ProbedBroker, belongings: Belongings, connected: Connected) -> Sequence[str]:
    """Delete the topics. Of many cases only the name was reserved, and the topic was never created."""
    version = broker.version(ApiKey.DELETE_TOPICS, ANY)
    doomed = [{"name": topic} for topic in belongings.topics]
    with connected(broker.controller) as conversation:
        response = conversation.call(ApiKey.DELETE_TOPICS, version, {"topics": doomed, "timeout": TIMEOUT_MS})
    gone = (ErrorCode.none, ErrorCode.unknown_topic_or_partition)
    return [f"{each.name}: {error_name(each.error_code)}" for each in response.responses if each.error_code not in gone]


def _remove_groups(broker: ProbedBroker, belongings: Belongings, connected: Connected) -> Sequence[str]:
    """Delete the groups and first their members, because cases end without LeaveGroup."""
    version = {each: broker.version(each, ANY) for each in OF_REMOVAL}
    groups: dict[Address, list[str]] = {}
    with connected(broker.leader) as conversation:
        for group_id in belongings.groups:
            request = {"coordinator_keys": [group_id]}
            found = conversation.call(ApiKey.FIND_COORDINATOR, version[ApiKey.FIND_COORDINATOR], request)
            groups.setdefault(address_of(broker, found.coordinators[0]), []).append(group_id)
    for address, here in groups.items():
        with connected(address) as conversation:
            described = conversation.call(ApiKey.DESCRIBE_GROUPS, version[ApiKey.DESCRIBE_GROUPS], {"groups": here})
            for group in described.groups:
                for member in group.members:
                    leaving = [{"member_id": str(member.member_id), "group_instance_id": member.group_instance_id}]
                    members = {"group_id": group.group_id, "members": leaving}
                    conversation.call(ApiKey.LEAVE_GROUP, version[ApiKey.LEAVE_GROUP], members)
            conversation.call(ApiKey.DELETE_GROUPS, version[ApiKey.DELETE_GROUPS], {"groups_names": here})
    return ()


def address_of(broker: ProbedBroker, coordinator: Any) -> Address:
    """Return the address of a coordinator. A single node keeps the address at which it was found, which may differ."""
    if len(broker.nodes) == 1 or coordinator.error_code:
        return broker.leader
    return str(coordinator.host), int(coordinator.port)
