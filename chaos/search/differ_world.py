"""The cluster of one differential run, and its sequential client.

Each operation of a script begins at its own virtual time, so that two runs of one script are at the same place at the
same time, however long their operations take. No fault is drawn.

A result has only what a client may rely on. Producer IDs, member IDs and topic IDs are numbers that a cluster draws or
hands out in blocks of a node, so a result has the names that the script gives to their owners. Leaders, replicas and
epochs of leaders depend on the nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, TypeAlias

from bench.fleet.behaviours.protocol import Request as ClientRequest
from bench.probe.conversation import body
from chaos.seeds import number_for, random_for
from chaos.sim.agenda import START_WALL_MS, Agenda
from chaos.sim.links import Connection, Links
from chaos.sim.machine import Machine, Watcher, nothing
from chaos.sim.network import Network
from chaos.sim.store import SimStore
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Hooks
from reference_broker.core.node import Node
from reference_broker.records.batch import read_header
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build, read_all
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import (
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from reference_broker.wire.produce import ProducePartition, ProducePartitionResponse, ProduceRequest, ProduceTopic

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
IDLE_ROUNDS: Final = 40
"""Number of fetches without anything new after which a reader gives up. The tier may need some of them."""
LONG_MS: Final = 1_500_000
"""Session timeout of members. No script takes so long."""
TRANSACTION_MS: Final = 800_000
MAX_BYTES: Final = 1 << 22
BY_ID_SINCE: Final = 13
UNCOMMITTED, COMMITTED = 0, 1

Partition: TypeAlias = tuple[str, int]
Value: TypeAlias = str | int | tuple[object, ...] | None
ClientResult: TypeAlias = tuple[tuple[str, Value], ...]
"""What a client got from an operation: named values."""

AGAIN: Final = frozenset(
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
    """A node ended itself. The message is the story."""


class NoResponse(Exception):  # noqa: N818 - says what was found
    """A request got no response in time."""


@dataclass(frozen=True, slots=True)
class Way:
    """How one of the two runs is played."""

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

    def _boot(self, machine: Machine) -> tuple[Node, Sequence[Hooks], Watcher]:
        number = machine.node_id
        host, port = self.network.address(number)
        random_seed = number_for(self._seed, f"node-{number}-{machine.incarnation}")
        return Node(number, self._config, machine.disk, random_seed, host, port), (), nothing

    def _node_failed(self, machine: Machine, story: str) -> None:
        raise NodeEnded(f"node {machine.node_id} ended itself: {story}")

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


@dataclass(slots=True)
class Producer:
    """A producer of the script. ``transactional_id`` is empty for an idempotent one."""

    name: str
    transactional_id: str
    is_new: bool
    """whether it has the protocol of transaction.version 2, with which each transaction has an epoch of its own"""
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[Partition, int] = field(default_factory=dict)
    sent: dict[Partition, list[bytes]] = field(default_factory=dict)
    """the batches of this epoch, in order"""
    added: set[Partition] = field(default_factory=set)
    """partitions of the open transaction"""


@dataclass(slots=True)
class Followed:
    """A partition of the reader."""

    position: int
    sent: tuple[int, int] | None = None
    """the position and the size that the session has of it"""
    last: PartitionData | None = None
    """its part of the last response that had it"""


@dataclass(slots=True)
class Session:
    session_id: int = 0
    epoch: int = 0
    partitions: dict[Partition, tuple[str, bytes]] = field(default_factory=dict)
    """what it has, with the name or ID by which it was named"""


@dataclass(slots=True)
class ScriptClient:
    """The script's operations. Each public method from ``create_topic`` on is one, and returns its result."""

    world: ComparedRun
    by_id: bool = False
    """whether Produce and Fetch name topics by their IDs"""
    producers: dict[str, Producer] = field(default_factory=dict)
    members: dict[str, dict[str, str]] = field(default_factory=dict)
    """the member IDs of each group, by the script's names of its members"""
    generations: dict[str, int] = field(default_factory=dict)
    leaders: dict[str, str] = field(default_factory=dict)
    """of the groups"""
    followed: dict[Partition, Followed] = field(default_factory=dict)
    left: dict[Partition, Followed] = field(default_factory=dict)
    """partitions that are not followed any more, and that sessions still have"""
    compacted: set[str] = field(default_factory=set)
    _leaders: dict[str, dict[int, int]] = field(default_factory=dict)
    _ids: dict[str, bytes] = field(default_factory=dict)
    _coordinators: dict[tuple[int, str], int] = field(default_factory=dict)
    _sessions: dict[int, Session] = field(default_factory=dict)
    _members_named: dict[str, str] = field(default_factory=dict)
    _producers_named: dict[int, str] = field(default_factory=dict)

    # Requests

    def _send(self, node: int, key: ApiKey, values: object, version: int = -1) -> _Call:
        low, high, _ = VERSIONS[key]
        chosen = high if version < 0 else max(low, min(version, high))
        return _Call(self.world, node, ClientRequest(key, chosen, "differ", body(key, values), CALL_US))

    def _wait(self, call: _Call, what: str) -> Any:
        self.world.until(lambda: call.is_over, CALL_US, what)
        return call.response

    def _call(self, node: int, key: ApiKey, values: object, version: int = -1) -> Any:
        """Return the response, None if the connection is lost."""
        return self._wait(self._send(node, key, values, version), f"{key.name} of node {node}")

    def _pass(self, time_us: int = RETRY_US) -> None:
        self.world.agenda.run_until(self.world.agenda.now_us + time_us)

    def _until_settled(
        self, node: Callable[[], int], send: Callable[[int], Any], error: Callable[[Any], int]
    ) -> tuple[int, Any]:
        """Send until the error is none of AGAIN, and return the last error and response."""
        code, response = -1, None
        for _ in range(TRIES):
            target = node()
            response = send(target) if target >= 0 else None
            code = int(error(response)) if response is not None else -1
            if response is not None and code not in AGAIN:
                return code, response
            self._leaders.clear()
            self._coordinators.clear()
            self._pass()
        return code, response

    def _leader(self, topic: str, partition: int) -> int:
        """Return the partition's leader, node 0 if there is none or no such partition."""
        if topic not in self._leaders:
            self._look_up(topic)
        return self._leaders.get(topic, {}).get(partition, 0)

    def _look_up(self, topic: str) -> Any:
        for node in range(len(self.world.machines)):
            response = self._call(node, ApiKey.METADATA, {"topics": [{"name": topic}]})
            if response is not None:
                (topic_metadata,) = response.topics
                self._leaders[topic] = {
                    int(each.partition_index): int(each.leader_id) for each in topic_metadata.partitions
                }
                if any(each.leader_id < 0 for each in topic_metadata.partitions):
                    del self._leaders[topic]
                if topic_metadata.topic_id is not None:
                    raw = topic_metadata.topic_id
                    self._ids[topic] = raw if isinstance(raw, bytes) else raw.bytes
                return topic_metadata
        return None

    def _coordinator(self, kind: int, name: str) -> int:
        if (kind, name) not in self._coordinators:
            response = self._call(0, ApiKey.FIND_COORDINATOR, {"key_type": kind, "coordinator_keys": [name]})
            coordinator = response.coordinators[0] if response is not None else None
            if coordinator is None or coordinator.error_code:
                return -1
            self._coordinators[kind, name] = int(coordinator.node_id)
        return self._coordinators[kind, name]

    def _of_group(self, group: str, key: ApiKey, values: object, error: Callable[[Any], int]) -> tuple[int, Any]:
        return self._until_settled(
            lambda: self._coordinator(0, group), lambda node: self._call(node, key, values), error
        )

    def _of_producer(
        self, who: Producer, key: ApiKey, values: Mapping[str, object], error: Callable[[Any], int], version: int = -1
    ) -> tuple[int, Any]:
        return self._until_settled(
            lambda: self._coordinator(1, who.transactional_id),
            lambda node: self._call(node, key, values, version),
            error,
        )

    def _of_controller(self, key: ApiKey, values: object, error: Callable[[Any], int]) -> int:
        return self._until_settled(lambda: 0, lambda node: self._call(node, key, values), error)[0]

    def _of_leader(
        self, topic: str, partition: int, key: ApiKey, values: Mapping[str, object], version: int = -1
    ) -> Any:
        """Send a request about one partition, and return its part of the response."""

        def own(response: Any) -> Any:
            return response.topics[0].partitions[0]

        _, response = self._until_settled(
            lambda: self._leader(topic, partition),
            lambda node: self._call(node, key, values, version),
            lambda response: int(own(response).error_code),
        )
        return None if response is None else own(response)

    def _named(self, topic: str) -> tuple[str, bytes]:
        if self.by_id:
            if topic not in self._ids:
                self._look_up(topic)
            return "", self._ids.get(topic, NO_TOPIC_ID)
        return topic, NO_TOPIC_ID

    # Topics

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> ClientResult:
        if configs.get("cleanup.policy") == "compact":
            self.compacted.add(name)
        elif self.world.way.tiered:
            configs = {**configs, **TIER_CONFIGS}
        rows = [{"name": key, "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": -1, "configs": rows}
        code = self._of_controller(ApiKey.CREATE_TOPICS, {"topics": [topic], "timeout": 5000}, _first_of("topics"))
        self._forget(name)
        return (("error", _name(code)),)

    def delete_topic(self, name: str) -> ClientResult:
        values = {"topics": [{"name": name}], "timeout": 5000}
        code = self._of_controller(ApiKey.DELETE_TOPICS, values, _first_of("responses"))
        self._leaders.pop(name, None)  # Its ID stays: a fetch by ID shows that the topic is gone.
        return (("error", _name(code)),)

    def _forget(self, topic: str) -> None:
        self._leaders.pop(topic, None)
        self._ids.pop(topic, None)

    def add_partitions(self, name: str, count: int) -> ClientResult:
        values = {"topics": [{"name": name, "count": count, "assignments": None}], "timeout": 5000}
        code = self._of_controller(ApiKey.CREATE_PARTITIONS, values, _first_of("results"))
        self._leaders.pop(name, None)
        return (("error", _name(code)),)

    def alter_config(self, name: str, key: str, value: str | None) -> ClientResult:
        row = {"name": key, "config_operation": 1 if value is None else 0, "value": value}
        values = {"resources": [{"resource_type": 2, "resource_name": name, "configs": [row]}]}
        code = self._of_controller(ApiKey.INCREMENTAL_ALTER_CONFIGS, values, _first_of("responses"))
        return (("error", _name(code)),)

    def describe_configs(self, name: str) -> ClientResult:
        values = {
            "resources": [{"resource_type": 2, "resource_name": name, "configuration_keys": None}],
            "include_synonyms": True,
        }
        response = self._call(0, ApiKey.DESCRIBE_CONFIGS, values)
        if response is None:
            return (("error", "no response"),)
        (resource,) = response.results
        rows = [
            (str(each.name), (each.value, int(each.config_source), tuple((s.name, s.value) for s in each.synonyms)))
            for each in resource.configs
            if each.name not in TIER_CONFIGS
        ]
        return (("error", _name(resource.error_code)), *sorted(rows))

    def describe_topic(self, name: str) -> ClientResult:
        topic_metadata = self._look_up(name)
        if topic_metadata is None:
            return (("error", "no response"),)
        partitions = sorted((int(each.partition_index), _name(each.error_code)) for each in topic_metadata.partitions)
        return (
            ("error", _name(topic_metadata.error_code)),
            ("internal", bool(topic_metadata.is_internal)),
            ("of", tuple(partitions)),
        )

    # Producers

    def init_producer(self, name: str, transactional_id: str, is_new: bool) -> ClientResult:
        """Make a producer, or another one that takes the transactional ID of an earlier one."""
        who = self.producers[name] = Producer(name, transactional_id, is_new)
        values = {"transactional_id": transactional_id or None, "transaction_timeout": TRANSACTION_MS}
        if transactional_id:
            code, response = self._of_producer(who, ApiKey.INIT_PRODUCER_ID, values, _own_error)
        else:
            code, response = self._until_settled(
                lambda: 0, lambda node: self._call(node, ApiKey.INIT_PRODUCER_ID, values), _own_error
            )
        if response is not None and not code:
            who.producer_id, who.epoch = int(response.producer_id), int(response.producer_epoch)
            owner = transactional_id or name
            self._producers_named.setdefault(who.producer_id, owner)
        return (("error", _name(code)), ("owner", self._owner(who.producer_id)), ("epoch", who.epoch))

    def _owner(self, producer_id: int) -> str:
        if producer_id < 0:
            return "none"
        return self._producers_named.get(producer_id, "unknown")

    def produce(self, name: str, topic: str, partition: int, count: int, seed: int, gap: int = 0) -> ClientResult:
        """Send one batch. A ``gap`` is added to its sequence. Without a name it has no producer."""
        who, random = self.producers.get(name), Random(seed)
        records = _records(random, count)
        compression = random.choice([*Compression])
        where = topic, partition
        if who is None:
            return self._produced(topic, partition, build(records, compression=compression), None)
        first = who.sequences.get(where, 0)
        data = build(
            records,
            compression=compression,
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            base_sequence=first + gap,
            is_transactional=bool(who.transactional_id),
        )
        result = self._produced(topic, partition, data, who)
        if result[0][1] == ErrorCode.none.name:
            who.sequences[where] = first + gap + count
            who.sent.setdefault(where, []).append(data)
        return result

    def retry(self, name: str, topic: str, partition: int, back: int) -> ClientResult:
        """Send a batch of this epoch again: the last one, or one that is ``back`` before it."""
        who = self.producers[name]
        sent = who.sent.get((topic, partition), [])
        if len(sent) <= back:
            return (("error", "nothing to retry"),)
        return self._produced(topic, partition, sent[-1 - back], who)

    def _produced(self, topic: str, partition: int, data: bytes, who: Producer | None) -> ClientResult:
        transactional_id = who.transactional_id or None if who is not None else None
        version = BY_ID_SINCE if self.by_id else BY_ID_SINCE - 1
        if transactional_id is not None and who is not None and not who.is_new:
            version = 11  # The protocol before transaction.version 2, in which the client has added the partition.

        def own(response: Any) -> ProducePartitionResponse:
            of_partition: ProducePartitionResponse = response.responses[0].partitions[0]
            return of_partition

        def send(node: int) -> Any:
            named = self._named(topic) if version >= BY_ID_SINCE else (topic, NO_TOPIC_ID)
            request = ProduceRequest(
                -1, 5000, [ProduceTopic(*named, [ProducePartition(partition, data)])], transactional_id
            )
            return self._call(node, ApiKey.PRODUCE, request, version)

        _, response = self._until_settled(
            lambda: self._leader(topic, partition), send, lambda response: int(own(response).error_code)
        )
        if response is None:
            return (("error", "no response"),)
        of_partition = own(response)
        return (
            ("error", _name(of_partition.error_code)),
            ("base offset", of_partition.base_offset),
            ("log start", of_partition.log_start_offset),
            ("append time", of_partition.log_append_time_ms),
            ("wrong records", tuple(each.batch_index for each in of_partition.record_errors)),
        )

    def add_to_transaction(self, name: str, topic: str, partition: int) -> ClientResult:
        """Add a partition, unless the producer's protocol leaves that to the partition's leader."""
        who = self.producers[name]
        if who.is_new:
            return (("error", "not needed"),)
        values = {"transactions": [{**_identity(who), "topics": [{"name": topic, "partitions": [partition]}]}]}

        def error(response: Any) -> int:
            (result,) = response.results_by_transaction
            return int(result.topic_results[0].results_by_partition[0].partition_error_code)

        code, _ = self._of_producer(who, ApiKey.ADD_PARTITIONS_TO_TXN, values, error, 3)
        return (("error", _name(code)),)

    def commit_in_transaction(self, name: str, group: str, topic: str, partition: int, offset: int) -> ClientResult:
        who = self.producers[name]
        added = 0
        if not who.is_new:
            values = {**_identity(who), "group_id": group}
            added, _ = self._of_producer(who, ApiKey.ADD_OFFSETS_TO_TXN, values, _own_error, 3)
        rows = [{"partition_index": partition, "committed_offset": offset, "committed_metadata": f"by {name}"}]
        request = {**_identity(who), "group_id": group, "topics": [{"name": topic, "partitions": rows}]}
        version = 5 if who.is_new else 3
        code, _ = self._until_settled(
            lambda: self._coordinator(0, group),
            lambda node: self._call(node, ApiKey.TXN_OFFSET_COMMIT, request, version),
            _first_partition,
        )
        return (("error of AddOffsetsToTxn", _name(added)), ("error", _name(code)))

    def end_transaction(self, name: str, commits: bool) -> ClientResult:
        who = self.producers[name]
        version = 5 if who.is_new else 3
        values = {**_identity(who), "committed": commits}
        code, response = self._of_producer(who, ApiKey.END_TXN, values, _own_error, version)
        if who.is_new and response is not None and not code:
            who.producer_id, who.epoch = int(response.producer_id), int(response.producer_epoch)
            self._producers_named.setdefault(who.producer_id, who.transactional_id)
            who.sequences.clear()
            who.sent.clear()
        return (("error", _name(code)), ("owner", self._owner(who.producer_id)), ("epoch", who.epoch))

    def describe_producers(self, topic: str, partition: int) -> ClientResult:
        values = {"topics": [{"name": topic, "partition_indexes": [partition]}]}
        of_partition = self._of_leader(topic, partition, ApiKey.DESCRIBE_PRODUCERS, values)
        if of_partition is None:
            return (("error", "no response"),)
        # What the cleaner leaves of a batch has the largest timestamp of the records that are left, and a restart reads
        # that one. So compacted topics show none.
        rows = sorted(
            (
                self._owner(int(each.producer_id)),
                f"epoch {each.producer_epoch}",
                f"last sequence {each.last_sequence}",
                "" if topic in self.compacted else f"last timestamp {_rounded(int(each.last_timestamp))}",
                f"transaction from {each.current_txn_start_offset}",
            )
            for each in of_partition.active_producers
        )
        return (("error", _name(of_partition.error_code)), ("producers", tuple(rows)))

    def describe_transaction(self, transactional_id: str) -> ClientResult:
        def error(response: Any) -> int:
            return int(response.transaction_states[0].error_code)

        code, response = self._until_settled(
            lambda: self._coordinator(1, transactional_id),
            lambda node: self._call(node, ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [transactional_id]}),
            error,
        )
        if response is None:
            return (("error", "no response"),)
        described = response.transaction_states[0]
        if code:
            return (("error", _name(code)),)
        topics = sorted((str(each.topic), tuple(sorted(map(int, each.partitions)))) for each in described.topics)
        return (
            ("error", _name(code)),
            ("state", str(described.transaction_state)),
            ("owner", self._owner(int(described.producer_id))),
            ("epoch", int(described.producer_epoch)),
            ("timeout", str(described.transaction_timeout)),
            ("partitions", tuple(topics)),
        )

    def list_transactions(self) -> ClientResult:
        rows = []
        for node in range(len(self.world.machines)):
            response = self._call(node, ApiKey.LIST_TRANSACTIONS, {})
            rows += [
                (str(each.transactional_id), self._owner(int(each.producer_id)), str(each.transaction_state))
                for each in response.transaction_states
            ]
        return (("transactions", tuple(sorted(rows))),)

    # Records

    def delete_records(self, topic: str, partition: int, share: float) -> ClientResult:
        """Delete the records below that share of the partition."""
        end = self._offset(topic, partition, -1, UNCOMMITTED)
        if end is None or end.error_code:
            return (("error", "no end"),)
        offset = int(int(end.offset) * share)
        values = {
            "topics": [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}],
            "timeout": 5000,
        }
        of_partition = self._of_leader(topic, partition, ApiKey.DELETE_RECORDS, values)
        if of_partition is None:
            return (("error", "no response"),)
        return (
            ("up to", offset),
            ("error", _name(of_partition.error_code)),
            ("low watermark", int(of_partition.low_watermark)),
        )

    def _offset(self, topic: str, partition: int, timestamp: int, isolation: int) -> Any:
        values = {
            "replica_id": -1,
            "isolation_level": isolation,
            "topics": [{"name": topic, "partitions": [{"partition_index": partition, "timestamp": timestamp}]}],
            "timeout": 5000,
        }
        return self._of_leader(topic, partition, ApiKey.LIST_OFFSETS, values)

    def list_offsets(self, topic: str, partition: int, timestamp: int, isolation: int) -> ClientResult:
        of_partition = self._offset(topic, partition, timestamp, isolation)
        if of_partition is None:
            return (("error", "no response"),)
        return (
            ("error", _name(of_partition.error_code)),
            ("offset", int(of_partition.offset)),
            ("timestamp", _rounded(int(of_partition.timestamp))),
        )

    def read(self, topic: str, partition: int, share: float, isolation: int) -> ClientResult:
        """Read from that share of the partition to its end, with full fetches."""
        start, end = (self._offset(topic, partition, which, UNCOMMITTED) for which in (-2, -1))
        if start is None or end is None or start.error_code or end.error_code:
            return (("error", "no bounds"),)
        position = int(start.offset) + int((int(end.offset) - int(start.offset)) * share)
        seen = _Seen(position)
        for _ in range(IDLE_ROUNDS):
            before = seen.position
            data = self._fetch_one(topic, partition, seen.position, isolation)
            if data is None:
                return (("error", "no response"),)
            seen.take(data, isolation)
            if data.error_code or seen.is_at_end(isolation):
                break
            if seen.position == before:
                self._pass()
        return seen.result(isolation)

    def _fetch_one(self, topic: str, partition: int, offset: int, isolation: int) -> PartitionData | None:
        def own(response: FetchResponse) -> PartitionData | None:
            return next((each for named in response.responses for each in named.partitions), None)

        def error(response: FetchResponse) -> int:
            data = own(response)
            return response.error_code or (data.error_code if data is not None else ErrorCode.request_timed_out)

        def send(node: int) -> Any:
            rows = [FetchTopic(*self._named(topic), [FetchPartition(partition, offset, MAX_BYTES)])]
            return self._call(node, ApiKey.FETCH, _fetch_request(rows, isolation), self._fetch_version)

        _, response = self._until_settled(lambda: self._leader(topic, partition), send, error)
        return None if response is None else own(response)

    @property
    def _fetch_version(self) -> int:
        return BY_ID_SINCE + 3 if self.by_id else BY_ID_SINCE - 1

    # The reader

    def follow(self, topic: str, partition: int, offset: int) -> ClientResult:
        """Add a partition, or go to that offset of it. What a session has sent of it still counts."""
        where = topic, partition
        self.followed[where] = self.followed.get(where) or self.left.pop(where, None) or Followed(offset)
        self.followed[where].position = offset
        return ()

    def unfollow(self, topic: str, partition: int) -> ClientResult:
        gone = self.followed.pop((topic, partition), None)
        if gone is not None:
            self.left[topic, partition] = gone
        return ()

    def poll(self, isolation: int, max_bytes: int) -> ClientResult:
        """Fetch what is followed until nothing new comes. ``max_bytes`` is the size for each partition."""
        seen = {where: _Seen(each.position) for where, each in self.followed.items()}
        idle = 0
        while idle < IDLE_ROUNDS:
            idle += 1
            if not self._poll_once(isolation, max_bytes):
                self._leaders.clear()
                self._pass()
                continue
            waits = False
            for where, each in self.followed.items():
                if each.last is None:
                    waits = True
                    continue
                if each.last.error_code in AGAIN:
                    self._leaders.clear()
                    waits = True
                    continue
                before = seen[where].position
                seen[where].take(each.last, isolation)
                each.last = replace(each.last, records=b"")
                each.position = seen[where].position
                if each.position != before:
                    idle = 0
                waits |= not (each.last.error_code or seen[where].is_at_end(isolation))
            if not waits:
                break
            if idle:
                self._pass()
        for (topic, partition), each in self.followed.items():
            if each.last is not None and each.last.error_code == ErrorCode.offset_out_of_range:
                start = self._offset(topic, partition, -2, UNCOMMITTED)
                each.position = int(start.offset) if start is not None and not start.error_code else 0
        return tuple(
            (f"{topic}-{partition}", each.result(isolation)) for (topic, partition), each in sorted(seen.items())
        )

    def _poll_once(self, isolation: int, max_bytes: int) -> bool:
        """Send one fetch to each leader. Return False if one must be sent again."""
        nodes: dict[int, dict[Partition, Followed]] = {}
        for (topic, partition), each in self.followed.items():
            nodes.setdefault(self._leader(topic, partition), {})[topic, partition] = each
        incremental = self.world.way.incremental
        for node in sorted({*nodes, *(self._sessions if incremental else ())}):
            wanted = nodes.get(node, {})
            session = self._sessions.setdefault(node, Session()) if incremental else None
            rows: dict[str, list[FetchPartition]] = {}
            cached = {} if session is None else session.partitions
            naming = {where: self._named(where[0]) for where in wanted}
            gone = {where: named for where, named in cached.items() if naming.get(where) != named}
            for where, each in wanted.items():
                if where not in cached or where in gone or each.sent != (each.position, max_bytes):
                    rows.setdefault(where[0], []).append(FetchPartition(where[1], each.position, max_bytes))
                    each.sent = each.position, max_bytes
            if not wanted and not gone:
                continue
            request = _fetch_request(
                [FetchTopic(*naming[topic, row[0].partition], row) for topic, row in rows.items()],
                isolation,
                0 if session is None else session.session_id,
                -1 if session is None else session.epoch,
                [ForgottenTopic(*named, [partition]) for (_, partition), named in gone.items()],
            )
            response: FetchResponse | None = self._call(node, ApiKey.FETCH, request, self._fetch_version)
            if response is None or response.error_code:
                self._sessions.pop(node, None)
                return False
            if session is not None:
                session.session_id, session.epoch = response.session_id, session.epoch + 1
                session.partitions = naming
                for where in gone:
                    self.left.pop(where, None)
            names = {named: topic for (topic, _), named in naming.items()}
            for named in response.responses:
                topic = names.get(("", named.topic_id) if self.by_id else (named.topic, NO_TOPIC_ID), "")
                for data in named.partitions:
                    followed = wanted.get((topic, data.partition))
                    if followed is not None:
                        followed.last = data
        return True

    # Groups

    def join(self, group: str, members: Sequence[str], static: bool) -> ClientResult:
        """Let all these members join, the present ones and new ones, and give each an assignment."""
        known = self.members.setdefault(group, {})
        # A follower that joins a stable group again gets its generation at once, so newcomers and the leader are first.
        members = sorted(members, key=lambda name: (name in known, name != self.leaders.get(group), name))
        for name in members:
            if not static and name not in known:
                _, response = self._of_group(
                    group, ApiKey.JOIN_GROUP, self._join_request(group, name, static), _own_error
                )
                if response is None or response.error_code != ErrorCode.member_id_required:
                    return (("error of the first join", "no ID"),)
                known[name] = str(response.member_id)
        for _ in range(TRIES):  # The first one that is looked for creates the topic of the offsets.
            if self._coordinator(0, group) >= 0:
                break
            self._pass()
        node = self._coordinator(0, group)
        calls = {}
        for name in members:
            calls[name] = self._send(node, ApiKey.JOIN_GROUP, self._join_request(group, name, static))
            self._pass(20_000)
        joined = {name: self._wait(call, f"JoinGroup of {name}") for name, call in calls.items()}
        rows: list[tuple[str, Value]] = []
        leader, generation = "", -1
        for name, response in joined.items():
            if response is None:
                return (("error of a join", "no response"),)
            if not response.error_code:
                known[name] = str(response.member_id)
                self._members_named[known[name]] = name
        for name, response in joined.items():
            own = tuple(sorted(self._member(str(each.member_id)) for each in response.members))
            rows.append((name, (_name(response.error_code), int(response.generation_id), response.protocol_name, own)))
            if str(response.leader) == known.get(name) and not response.error_code:
                leader, generation = name, int(response.generation_id)
        self.generations[group] = generation
        self.leaders[group] = leader
        syncs = {}
        assignments = [
            {"member_id": known.get(name, ""), "assignment": f"{group} {generation} {name}".encode()}
            for name in members
        ]
        for name in members:
            values = {
                **self._membership(group, name, static),
                "protocol_type": "differ",
                "protocol_name": "range",
                "assignments": assignments if name == leader else [],
            }
            syncs[name] = self._send(node, ApiKey.SYNC_GROUP, values)
            self._pass(20_000)
        for name, call in syncs.items():
            response = self._wait(call, f"SyncGroup of {name}")
            if response is None:
                return (("error of a sync", "no response"),)
            rows.append((f"{name} syncs", (_name(response.error_code), bytes(response.assignment))))
        return tuple(rows)

    def _join_request(self, group: str, name: str, static: bool) -> dict[str, object]:
        return {
            "group_id": group,
            "session_timeout": LONG_MS,
            "rebalance_timeout": 5_000,
            "member_id": self.members[group].get(name, ""),
            "group_instance_id": name if static else None,
            "protocol_type": "differ",
            "protocols": [{"name": "range", "metadata": name.encode()}],
        }

    def _membership(self, group: str, name: str, static: bool) -> dict[str, object]:
        return {
            "group_id": group,
            "generation_id": self.generations.get(group, -1),
            "member_id": self.members.get(group, {}).get(name, ""),
            "group_instance_id": name if static else None,
        }

    def _member(self, member_id: str) -> str:
        return self._members_named.get(member_id, "unknown" if member_id else "")

    def heartbeat(self, group: str, name: str, static: bool) -> ClientResult:
        code, _ = self._of_group(group, ApiKey.HEARTBEAT, self._membership(group, name, static), _own_error)
        return (("error", _name(code)),)

    def leave(self, group: str, name: str, static: bool) -> ClientResult:
        member_id = self.members.get(group, {}).pop(name, "")
        leaving = {"member_id": member_id, "group_instance_id": name if static else None}

        def error(response: Any) -> int:
            return int(response.error_code or next((each.error_code for each in response.members), 0))

        code, _ = self._of_group(group, ApiKey.LEAVE_GROUP, {"group_id": group, "members": [leaving]}, error)
        return (("error", _name(code)),)

    def commit(self, group: str, name: str, static: bool, topic: str, partition: int, offset: int) -> ClientResult:
        """Commit as that member, or without a member if there is no name."""
        rows = [{"partition_index": partition, "committed_offset": offset, "committed_metadata": f"of {name}"}]
        membership = self._membership(group, name, static)
        generation = membership.pop("generation_id") if name else -1
        values = {
            "group_id": group,
            "generation_id_or_member_epoch": generation,
            "member_id": membership["member_id"] if name else "",
            "group_instance_id": membership["group_instance_id"] if name else None,
            "topics": [{"name": topic, "partitions": rows}],
        }
        code, _ = self._until_settled(
            lambda: self._coordinator(0, group),
            lambda node: self._call(node, ApiKey.OFFSET_COMMIT, values, 9),
            _first_partition,
        )
        return (("error", _name(code)),)

    def committed(self, group: str, stable: bool) -> ClientResult:
        """Fetch all offsets of the group."""
        values = {"groups": [{"group_id": group, "topics": None}], "require_stable": stable}

        def send(node: int) -> Any:
            return self._call(node, ApiKey.OFFSET_FETCH, values)

        def error(response: Any) -> int:
            return int(response.groups[0].error_code)

        code, response = self._until_settled(lambda: self._coordinator(0, group), send, error)
        if response is None:
            return (("error", "no response"),)
        rows = sorted(
            (
                f"{topic.name}-{of_partition.partition_index}",
                (int(of_partition.committed_offset), of_partition.metadata, _name(of_partition.error_code)),
            )
            for topic in response.groups[0].topics
            for of_partition in topic.partitions
        )
        return (("error", _name(code)), *rows)

    def describe_group(self, group: str) -> ClientResult:
        def error(response: Any) -> int:
            return int(response.groups[0].error_code)

        code, response = self._of_group(group, ApiKey.DESCRIBE_GROUPS, {"groups": [group]}, error)
        if response is None:
            return (("error", "no response"),)
        described = response.groups[0]
        members = sorted(
            (
                self._member(str(each.member_id)),
                each.group_instance_id,
                bytes(each.member_metadata),
                bytes(each.member_assignment),
            )
            for each in described.members
        )
        return (
            ("error", _name(code)),
            ("state", str(described.group_state)),
            ("protocol", f"{described.protocol_type} {described.protocol_data}"),
            ("members", tuple(members)),
        )

    def list_groups(self) -> ClientResult:
        rows = []
        for node in range(len(self.world.machines)):
            response = self._call(node, ApiKey.LIST_GROUPS, {})
            rows += [(str(each.group_id), str(each.protocol_type), str(each.group_state)) for each in response.groups]
        return (("groups", tuple(sorted(rows))),)

    def delete_group(self, group: str) -> ClientResult:
        code, _ = self._of_group(group, ApiKey.DELETE_GROUPS, {"groups_names": [group]}, _first_of("results"))
        return (("error", _name(code)),)

    def delete_offset(self, group: str, topic: str, partition: int) -> ClientResult:
        values = {"group_id": group, "topics": [{"name": topic, "partitions": [{"partition_index": partition}]}]}
        code, response = self._of_group(group, ApiKey.OFFSET_DELETE, values, _own_error)
        own = _first_partition(response) if response is not None and not code and response.topics else -1
        return (("error", _name(code)), ("error of the partition", _name(own) if own >= 0 else ""))

    # Time

    def pause(self, node: int, clean: bool) -> ClientResult:
        """Do nothing for a while, in which a node may restart."""
        if self.world.way.restarts:
            self.world.restart(node, clean)
            self._leaders.clear()
            self._coordinators.clear()
        return ()


@dataclass(slots=True)
class _Seen:
    """What a reader has of one partition."""

    position: int
    records: list[tuple[object, ...]] = field(default_factory=list)
    last: PartitionData | None = None

    def take(self, data: PartitionData, isolation: int) -> None:
        """Add what the response has from the position on, without markers and aborted records."""
        self.last = data
        aborted = sorted((each.first_offset, each.producer_id) for each in data.aborted_transactions or ())
        open_of: set[int] = set()
        last_header = None
        for header, record in read_all(bytes(data.records or b"")):
            if header is not last_header:
                last_header = header
                while aborted and aborted[0][0] <= header.last_offset:
                    open_of.add(aborted.pop(0)[1])
            if header.is_control:
                if isolation == COMMITTED and int.from_bytes((record.key or b"")[2:4]) == 0:
                    open_of.discard(header.producer_id)
                continue
            if isolation == COMMITTED and header.is_transactional and header.producer_id in open_of:
                continue
            if record.offset >= self.position:
                self.records.append((record.offset, record.timestamp_ms, record.key, record.value, record.headers))
        self.position = max(self.position, _end_of(bytes(data.records or b"")))

    def is_at_end(self, isolation: int) -> bool:
        data = self.last
        if data is None:
            return False
        return self.position >= (data.last_stable_offset if isolation == COMMITTED else data.high_watermark)

    def result(self, isolation: int) -> ClientResult:
        data = self.last
        if data is None:
            return (("error", "no data"),)
        end = "is reached" if data.error_code or self.is_at_end(isolation) else f"is not reached at {self.position}"
        return (
            ("error", _name(data.error_code)),
            ("high watermark", data.high_watermark),
            ("last stable offset", data.last_stable_offset),
            ("log start", data.log_start_offset),
            ("end", end),
            ("records", tuple(self.records)),
        )


def _end_of(data: bytes) -> int:
    """Return the offset after the last whole batch, 0 if there is none."""
    end, at = 0, 0
    while at + 61 <= len(data):
        header = read_header(data, at)
        if at + header.size_bytes > len(data):
            break
        end, at = header.last_offset + 1, at + header.size_bytes
    return end


def _fetch_request(
    topics: Sequence[FetchTopic],
    isolation: int,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Sequence[ForgottenTopic] = (),
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=50,
        min_bytes=1,
        max_bytes=MAX_BYTES,
        isolation_level=isolation,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=list(topics),
        forgotten=list(forgotten),
    )


def _records(random: Random, count: int) -> list[Record]:
    """Draw records: few keys, tombstones, headers, and timestamps that are not in order."""
    records = []
    for _ in range(count):
        key = random.choice((b"a", b"b", b"c", b"d"))
        value = None if random.random() < 0.1 else bytes(random.choices(b"xyz", k=random.choice((0, 3, 40, 120))))
        headers = (("h", b"1"), ("n", None)) if random.random() < 0.2 else ()
        records.append(
            Record(timestamp_ms=START_WALL_MS + random.randrange(TIMESTAMPS_MS), key=key, value=value, headers=headers)
        )
    return records


def _identity(who: Producer) -> dict[str, object]:
    return {
        "transactional_id": who.transactional_id,
        "producer_id": who.producer_id,
        "producer_epoch": who.epoch,
    }


def _rounded(timestamp_ms: int) -> int:
    """Return the beginning of the operation in which a broker took the time, or the timestamp of a record."""
    since_ms = timestamp_ms - START_WALL_MS
    return timestamp_ms if since_ms < TIMESTAMPS_MS else timestamp_ms - since_ms % (SLOT_US // 1000)


def _own_error(response: Any) -> int:
    return int(response.error_code)


def _first_partition(response: Any) -> int:
    return int(response.topics[0].partitions[0].error_code)


def _first_of(rows: str) -> Callable[[Any], int]:
    return lambda response: int(getattr(response, rows)[0].error_code)


def _name(code: int) -> str:
    try:
        return ErrorCode(int(code)).name
    except ValueError:
        return str(int(code))
