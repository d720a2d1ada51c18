"""The cluster of one differential run, and a client's requests to it.

Each operation of a script begins at a fixed virtual time, so that two runs of one script remain in step, however long
their operations take. No fault is drawn.

A result contains only what a client may rely on. Producer IDs, member IDs and topic IDs are numbers that a cluster
draws or assigns in blocks of a node, so a result has the names that the script gives to their owners. Leaders, replicas
and epochs of leaders depend on the nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from bench.fleet.behaviours.protocol import Request as ClientRequest
from bench.probe.conversation import body
from chaos.seeds import number_for, random_for
from chaos.sim.agenda import START_WALL_MS, Agenda
from chaos.sim.links import Connection, Links
from chaos.sim.machine import EventWatcher, Machine, nothing
from chaos.sim.network import Network
from chaos.sim.store import SimStore
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Hooks
from reference_broker.core.node import Node
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID

CLUSTER_ID: Final = "crucible-differ"
BOOT_US: Final = 30_000_000
"""time at which the first operation begins"""
SLOT_US: Final = 2_000_000
"""time from the beginning of an operation to that of the next one: enough for markers, the cleaner and the tier"""
TIMESTAMPS_MS: Final = 25_000
"""The range of the records' timestamps. All are before the first operation; later ones are of the broker's clock."""
PAUSE_US: Final = 20_000_000
"""time of a pause, in which nodes may restart"""
CALL_US: Final = 10_000_000
"""limit of one request"""
RETRY_US: Final = 50_000
TRIES: Final = 60
LONG_MS: Final = 1_500_000
"""Session timeout of members. No script takes so long."""
MAX_BYTES: Final = 1 << 22
BY_ID_SINCE: Final = 13
"""The version of Produce and Fetch from which they name topics by their IDs."""
UNCOMMITTED, COMMITTED = 0, 1
"""Isolation levels."""
GROUP, TRANSACTION = 0, 1
"""Key types of FindCoordinator."""

Partition: TypeAlias = tuple[str, int]
Value: TypeAlias = str | int | tuple[object, ...] | None
ClientResult: TypeAlias = tuple[tuple[str, Value], ...]
"""The result of a client's operation: named values."""

RETRIABLE: Final = frozenset(
    {
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_controller,
        ErrorCode.concurrent_transactions,
        ErrorCode.not_enough_replicas,
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.unstable_offset_commit,
        ErrorCode.kafka_storage_error,
    }
)
"""Errors after which a client sends the request again. The result is that of the last try."""


class NodeEnded(Exception):  # noqa: N818 - says what was found
    """A node ended itself. The message describes why."""


class NoResponse(Exception):  # noqa: N818 - says what was found
    """A request got no response in time."""


@dataclass(frozen=True, slots=True)
class Way:
    """Settings of one of the two runs."""

    nodes: int = 1
    slice_items: int = 0
    """0: the broker's own budgets"""
    incremental: bool = True
    """whether the reader has fetch sessions"""
    restarts: bool = False
    """whether nodes restart in pauses"""
    drops_producer_snapshots: bool = False
    """whether a restarted node finds no snapshot of producers"""
    tiered: bool = False
    """whether topics without compaction have remote storage"""
    settings: tuple[tuple[str, str], ...] = ()


SETTINGS: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "false",
    "crucible.cluster.id": CLUSTER_ID,
    "group.initial.rebalance.delay.ms": "300",
    "group.max.session.timeout.ms": str(2 * LONG_MS),
    "log.cleaner.backoff.ms": "300",
    "log.cleaner.min.cleanable.ratio": "0.0",
    "log.retention.check.interval.ms": "500",
    "offsets.retention.check.interval.ms": "500",
    "offsets.topic.num.partitions": "2",
    "remote.log.manager.task.interval.ms": "300",
    "remote.log.storage.system.enable": "true",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "2",
}
TIER_CONFIGS: Final[Mapping[str, str]] = {"remote.storage.enable": "true", "local.retention.bytes": "1"}


class ComparedRun:
    """The nodes of one run, in virtual time."""

    def __init__(self, way: Way, seed: int) -> None:
        self.way = way
        self.agenda = Agenda()
        self._seed = seed
        voters = ",".join(f"{number}@node-{number}:9092" for number in range(way.nodes))
        own = {"controller.quorum.voters": voters} if way.nodes > 1 else {}
        self._config = BrokerConfig.parse(
            {**SETTINGS, **own, "default.replication.factor": str(way.nodes), **dict(way.settings)}
        )
        self.machines = [
            Machine(number, self.agenda, seed, self._boot, on_failure=self._node_failed) for number in range(way.nodes)
        ]
        store = SimStore(self.agenda, random_for(seed, "store"))
        for machine in self.machines:
            machine.store = store
        self.network = Network(self.machines, Links(self.agenda, seed), random_for(seed, "codec"))
        self.restarts = 0

    def _boot(self, machine: Machine) -> tuple[Node, Sequence[Hooks], EventWatcher]:
        number = machine.node_id
        host, port = self.network.address(number)
        random_seed = number_for(self._seed, f"node-{number}-{machine.incarnation}")
        return Node(number, self._config, machine.disk, random_seed, host, port), (), nothing

    def _node_failed(self, machine: Machine, explanation: str) -> None:
        raise NodeEnded(f"node {machine.node_id} ended itself: {explanation}")

    def start(self) -> None:
        for machine in self.machines:
            machine.start()
        self.agenda.run_until(BOOT_US)
        if not all(machine.ready for machine in self.machines):
            raise NoResponse("the nodes are not ready")

    def until(self, is_over: Callable[[], bool], within_us: int, what: str) -> None:
        end_us = self.agenda.now_us + within_us
        while not is_over():
            if not self.agenda.step(end_us):
                raise NoResponse(f"{what}: nothing within {within_us // 1_000_000} s")

    def restart(self, number: int, clean: bool) -> None:
        """Restart one node, after SIGTERM or a kill."""
        machine = self.machines[number % len(self.machines)]
        if clean:
            machine.terminate()
            self.until(lambda: not machine.alive, CALL_US, f"the stop of node {machine.node_id}")
        else:
            machine.kill_now(power_loss=False)
        if self.way.drops_producer_snapshots:
            for path in [path for path, _ in machine.disk.all_files() if path.endswith(".snapshot")]:
                machine.disk.delete(path)
                machine.disk.make_durable(path)
        machine.start()
        self.restarts += 1
        self.until(lambda: machine.ready, CALL_US, f"the start of node {machine.node_id}")


class _Call:
    """Implements chaos.sim.links.Caller for one request on a connection of its own."""

    name = "differ"

    def __init__(self, world: ComparedRun, node: int, request: ClientRequest) -> None:
        self.response: Any = None
        self.is_over = False
        self._world = world
        self._request = request
        self._connection = world.network.connect(self, world.network.address(node))

    def accepted(self, connection: Connection) -> None:
        self._world.network.request(connection, self._request, 1)

    def refused(self, connection: Connection) -> None:  # noqa: ARG002
        self.is_over = True

    def lost(self, connection: Connection, reason: str) -> None:  # noqa: ARG002
        connection.client_open = False
        self.is_over = True

    def responded(self, connection: Connection, correlation: int, body: object) -> None:  # noqa: ARG002
        self.response, self.is_over = body, True
        connection.client_open = False
        self._world.network.client_closed(connection)


@dataclass
class ClientRequests:
    """Requests of one sequential client: to the leader of a partition, to a coordinator, or to any node."""

    world: ComparedRun
    by_id: bool = False
    """whether Produce and Fetch name topics by their IDs"""
    topic_leaders: dict[str, dict[int, int]] = field(default_factory=dict)
    """the leader of each partition, by topic"""
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    coordinators: dict[tuple[int, str], int] = field(default_factory=dict)
    """the node that coordinates each key of FindCoordinator, by key type and key"""

    def send_request(self, node: int, key: ApiKey, values: object, version: int = -1) -> _Call:
        """Send a request without waiting for its response. Version -1 means the newest one."""
        low, high, _ = VERSIONS[key]
        chosen = high if version < 0 else max(low, min(version, high))
        return _Call(self.world, node, ClientRequest(key, chosen, "differ", body(key, values), CALL_US))

    def wait(self, call: _Call, what: str) -> Any:
        self.world.until(lambda: call.is_over, CALL_US, what)
        return call.response

    def call(self, node: int, key: ApiKey, values: object, version: int = -1) -> Any:
        """Send a request. Return the response, or None if the connection is lost."""
        return self.wait(self.send_request(node, key, values, version), f"{key.name} of node {node}")

    def pass_time(self, time_us: int = RETRY_US) -> None:
        self.world.agenda.run_until(self.world.agenda.now_us + time_us)

    def until_settled(
        self, node: Callable[[], int], send: Callable[[int], Any], error: Callable[[Any], int]
    ) -> tuple[int, Any]:
        """Send a request until its error is none of RETRIABLE, and return the last error and response. ``node`` returns
        where to send it (-1 if that is unknown for now), and ``error`` the error in a response."""
        code, response = -1, None
        for _ in range(TRIES):
            target = node()
            response = send(target) if target >= 0 else None
            code = int(error(response)) if response is not None else -1
            if response is not None and code not in RETRIABLE:
                return code, response
            self.topic_leaders.clear()
            self.coordinators.clear()
            self.pass_time()
        return code, response

    def leader_of(self, topic: str, partition: int) -> int:
        """Return the partition's leader, node 0 if there is none or no such partition."""
        if topic not in self.topic_leaders:
            self.look_up(topic)
        return self.topic_leaders.get(topic, {}).get(partition, 0)

    def look_up(self, topic: str) -> Any:
        """Fetch the metadata of the topic. Return its part of the response, or None if no node responds."""
        for node in range(len(self.world.machines)):
            response = self.call(node, ApiKey.METADATA, {"topics": [{"name": topic}]})
            if response is not None:
                (topic_metadata,) = response.topics
                self.topic_leaders[topic] = {
                    int(partition.partition_index): int(partition.leader_id) for partition in topic_metadata.partitions
                }
                if any(partition.leader_id < 0 for partition in topic_metadata.partitions):
                    del self.topic_leaders[topic]
                if topic_metadata.topic_id is not None:
                    raw = topic_metadata.topic_id
                    self.topic_ids[topic] = raw if isinstance(raw, bytes) else raw.bytes
                return topic_metadata
        return None

    def coordinator_of(self, kind: int, name: str) -> int:
        """Return the node that coordinates the group or the transactional ID, -1 if there is none for now."""
        if (kind, name) not in self.coordinators:
            response = self.call(0, ApiKey.FIND_COORDINATOR, {"key_type": kind, "coordinator_keys": [name]})
            coordinator = response.coordinators[0] if response is not None else None
            if coordinator is None or coordinator.error_code:
                return -1
            self.coordinators[kind, name] = int(coordinator.node_id)
        return self.coordinators[kind, name]

    def group_request(self, group: str, key: ApiKey, values: object, error: Callable[[Any], int]) -> tuple[int, Any]:
        """Send a request to the coordinator of the group, as ``until_settled``."""
        return self.until_settled(
            lambda: self.coordinator_of(GROUP, group), lambda node: self.call(node, key, values), error
        )

    def transaction_request(
        self,
        transactional_id: str,
        key: ApiKey,
        values: Mapping[str, object],
        error: Callable[[Any], int],
        version: int = -1,
    ) -> tuple[int, Any]:
        """Send a request to the coordinator of the transactional ID, as ``until_settled``."""
        return self.until_settled(
            lambda: self.coordinator_of(TRANSACTION, transactional_id),
            lambda node: self.call(node, key, values, version),
            error,
        )

    def controller_request(self, key: ApiKey, values: object, error: Callable[[Any], int]) -> int:
        """Send a request that node 0 forwards to the controller, and return the last error."""
        return self.until_settled(lambda: 0, lambda node: self.call(node, key, values), error)[0]

    def leader_request(
        self, topic: str, partition: int, key: ApiKey, values: Mapping[str, object], version: int = -1
    ) -> Any:
        """Send a request about one partition to its leader. Return the partition's part of the response, or None."""

        def own(response: Any) -> Any:
            return response.topics[0].partitions[0]

        _, response = self.until_settled(
            lambda: self.leader_of(topic, partition),
            lambda node: self.call(node, key, values, version),
            lambda response: int(own(response).error_code),
        )
        return None if response is None else own(response)

    def topic_name(self, topic: str) -> tuple[str, bytes]:
        """Return the name and the ID by which Produce and Fetch name the topic. One of them is empty."""
        if self.by_id:
            if topic not in self.topic_ids:
                self.look_up(topic)
            return "", self.topic_ids.get(topic, NO_TOPIC_ID)
        return topic, NO_TOPIC_ID


def rounded(timestamp_ms: int) -> int:
    """Return the beginning of the operation in which a broker took the time, or the timestamp of a record."""
    since_ms = timestamp_ms - START_WALL_MS
    return timestamp_ms if since_ms < TIMESTAMPS_MS else timestamp_ms - since_ms % (SLOT_US // 1000)


# Where a response has its error, for ``until_settled``


def own_error(response: Any) -> int:
    return int(response.error_code)


def first_partition(response: Any) -> int:
    return int(response.topics[0].partitions[0].error_code)


def first_of(rows: str) -> Callable[[Any], int]:
    return lambda response: int(getattr(response, rows)[0].error_code)


def code_name(code: int) -> str:
    """Return the name of an error code, or its number if it has none."""
    try:
        return ErrorCode(int(code)).name
    except ValueError:
        return str(int(code))
