"""``Cluster``: a Kafka cluster for the time of a ``with`` block, with what a test does to it and sees of it."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, Unpack
from uuid import uuid4

from crucible_kafka.library.carrier import START_LIMIT_S, Carrier, NodeSpec
from crucible_kafka.library.embedded import EmbeddedNode
from crucible_kafka.library.errors import CrucibleError, CrucibleTimeout, NodeDead, NotPossible
from crucible_kafka.library.folders import ReservedPort, TemporaryFolder
from crucible_kafka.library.hit_counts import HitCounts
from crucible_kafka.library.observation import Frame, GroupView, SessionView, StoredRecord, TransactionView
from crucible_kafka.library.plain_values import Plain
from crucible_kafka.library.processes import ProcessNode
from crucible_kafka.library.requests import TransportError, request, wait_for
from crucible_kafka.library.rule_spec import RuleSpec, Session
from crucible_kafka.library.rules import Counts, Matcher, MatchFields, Rule
from crucible_kafka.library.stored_records import LogReader
from reference_broker.metadata.identifiers import uuid_text
from reference_broker.wire.apis import ApiKey, api_name
from reference_broker.wire.errors import ErrorCode, error_name

LIMIT_S: Final = 10.0
"""The longest wait of a verb unless it is given another limit."""
SIZES: Final = (1, 3, 5)
VOTERS: Final = "controller.quorum.voters"
CLUSTER_ID: Final = "crucible.cluster.id"
OWN_SETTINGS: Final = (
    VOTERS,
    CLUSTER_ID,
    "listeners",
    "advertised.listeners",
    "controller.listener.names",
    "inter.broker.listener.name",
    "crucible.peers",
)
"""Settings that the cluster gives to its nodes itself."""
TEST_DEFAULTS: Final[Mapping[str, str]] = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "auto.leader.rebalance.enable": "false",
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "3000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.election.backoff.max.ms": "200",
    "controller.quorum.fetch.timeout.ms": "1000",
}
"""Settings that make tests fast: Kafka's own defaults wait for seconds, or create 50 partitions. A leader that a test
has moved stays where it is."""


class Listeners:
    """The ports of a node: one for clients, and in a cluster of several one for brokers and one for controllers."""

    def __init__(self, several: bool) -> None:
        self.clients = ReservedPort()
        self._of_nodes: Sequence[ReservedPort] = (ReservedPort(), ReservedPort()) if several else ()

    @property
    def controllers(self) -> ReservedPort:
        return self._of_nodes[1]

    def settings(self) -> dict[str, str]:
        brokers, controllers = (each.address for each in self._of_nodes)
        return {
            "listeners": f"PLAINTEXT://{self.clients.address},REPLICATION://{brokers},CONTROLLER://{controllers}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "REPLICATION",
        }

    def release(self) -> None:
        for port in (self.clients, *self._of_nodes):
            port.release()


class NodeHandle:
    """One node of a cluster (``Cluster.node``)."""

    def __init__(self, cluster: "Cluster", carrier: Carrier, listeners: Listeners, folder: Path) -> None:
        self._cluster = cluster
        self._carrier = carrier
        self._listeners = listeners
        self._folder = folder
        self._is_paused = False
        self._frames: list[dict[str, Any]] = []
        """Of earlier incarnations."""
        self._request_counts: list[tuple[str, str, int]] = []

    def __repr__(self) -> str:
        return f"<node {self.id} at {self.address}{'' if self.is_running else ', not running'}>"

    @property
    def id(self) -> int:
        """The node's ID, from 0 on."""
        return self._carrier.node_id

    @property
    def address(self) -> str:
        """HOST:PORT for clients. It stays the same when the node restarts."""
        return self._listeners.clients.address

    @property
    def is_running(self) -> bool:
        return self._carrier.is_running

    @property
    def is_serving(self) -> bool:
        """Whether it runs and is not paused."""
        return self.is_running and not self._is_paused

    @property
    def pid(self) -> int:
        """The process that the node runs in: for a node in the test's process, that one."""
        return self._carrier.pid

    def kill(self, fence: bool = True, limit_s: float = LIMIT_S) -> None:
        """End the node at once, as SIGKILL does: nothing is synced, said goodbye to or marked as clean.

        The controller then fences it at once, and other replicas in sync lead its partitions when this returns. With
        ``fence=False`` that takes ``broker.session.timeout.ms``, as it does where a machine is lost.

        >>> kafka.node(1).kill()
        """
        self._cluster.check_usable()
        self._need_running("killed")
        self._keep_frames()
        self._carrier.kill()
        self._is_paused = False
        if fence:
            self._cluster.fence_killed(self.id, limit_s)

    def stop(self) -> None:
        """End the node cleanly: others lead its partitions before it goes."""
        self._cluster.check_usable()
        self._need_running("stopped")
        if self._is_paused:
            self.resume()
        self._keep_frames()
        self._carrier.stop(LIMIT_S)

    def restart(self, in_sync: bool = True, limit_s: float = START_LIMIT_S) -> None:
        """Start the node again with the same data, address and rules. A node that still runs is stopped cleanly first.

        Return when it serves clients and, with ``in_sync``, when its replicas are in sync. Raise StartFailed and
        CrucibleTimeout.
        """
        self._cluster.check_usable()
        if self.is_running:
            self.stop()
        self.begin_start()
        self._carrier.wait_ready(limit_s)
        if in_sync:
            self._cluster.await_in_sync(self.id, limit_s)

    def pause(self) -> None:
        """Stop the node's work until ``resume``, as SIGSTOP does: connections stay open, and nothing is served.

        Others lead its partitions after ``broker.session.timeout.ms``. Its observation has to wait, too.
        """
        self.command("pause")
        self._is_paused = True

    def resume(self) -> None:
        """Let a paused node go on. A node that is not paused goes on as it is."""
        self.command("resume")
        self._is_paused = False

    def isolate(self) -> None:
        """Cut all links between this node and the others, until ``heal``. Clients reach it still."""
        self._cluster.isolate(self.id)

    def heal(self) -> None:
        """Mend the links of a node that is isolated."""
        self._cluster.heal(self.id)

    def slow_disk(self, by_ms: int) -> None:
        """Make each sync of the disk take longer, until it is called with 0 or the node restarts."""
        self.command("slow_disk", by_ms=by_ms)

    def full_disk(self, is_full: bool = True) -> None:
        """Let the disk refuse what needs space, until it is called with False or the node restarts. Requests fail with
        KAFKA_STORAGE_ERROR, and a node that cannot write its metadata ends."""
        self.command("full_disk", full=is_full)

    def clock_offset(self, milliseconds: int) -> None:
        """Set the node's wall clock ahead of the machine's, or behind it, until the node restarts."""
        self.command("clock_offset", offset_ms=milliseconds)

    def log_lines(self) -> list[str]:
        """Return the node's log, one JSON object a line, of all its incarnations."""
        return self._carrier.log_lines()

    def metrics(self) -> dict[str, int]:
        """Return the node's metrics by Kafka's MBean names; of histograms the count."""
        return dict(self.command("metrics"))

    # What the cluster uses

    @property
    def controller_address(self) -> str:
        return self._listeners.controllers.address

    def begin_start(self) -> None:
        self._carrier.start(self._cluster.spec_of(self.id, self._listeners, self._folder))

    def wait_ready(self, limit_s: float) -> None:
        self._carrier.wait_ready(limit_s)

    def end(self) -> None:
        """End the node for good, whatever its state."""
        self._carrier.kill()
        self._listeners.release()

    def command(self, name: str, /, limit_s: float = LIMIT_S, **arguments: Plain) -> Plain:
        """Carry out a command inside the node. Raise NodeDead, CrucibleTimeout, NotPossible."""
        self._cluster.check_usable()
        return self._carrier.command(name, arguments, limit_s)

    def frames(self, of_nodes: bool, api: str, client_id: str) -> list[dict[str, Any]]:
        """Return the recorded frames that fit, as plain values: those of clients of all incarnations."""
        kept = [] if of_nodes else self._frames
        if not self.is_serving:
            return list(kept)
        return [*kept, *self.command("frames", of_nodes=of_nodes, api=api, client_id=client_id)]

    def request_counts(self) -> list[tuple[str, str, int]]:
        """Return API, client ID and number of the clients' requests, of all incarnations."""
        now = self.command("request_counts") if self.is_serving else ()
        return [*self._request_counts, *((api, client_id, count) for api, client_id, count in now)]

    def _need_running(self, verb: str) -> None:
        if not self.is_running:
            raise NodeDead(f"Node {self.id} does not run, so it cannot be {verb}: call restart() first.")

    def _keep_frames(self) -> None:
        """Keep what the node has recorded, since it ends with the node. A paused node has nothing to give."""
        if self._is_paused:
            return
        with suppress(CrucibleError):
            frames, counts = self.command("frames", limit_s=1.0), self.command("request_counts", limit_s=1.0)
            self._frames += frames
            self._request_counts += [(api, client_id, count) for api, client_id, count in counts]


class Cluster:
    """A Kafka cluster that lives as long as its ``with`` block.

    One node runs on a thread of this process, and is ready in a fraction of a second. Several nodes, or
    ``processes=True``, run in processes of their own, which end with this one however it ends::

        with Cluster() as kafka:
            kafka.create_topic("orders", partitions=3)
            run_my_application(kafka.bootstrap_servers)
            assert [record.value for record in kafka.records("orders")] == [b"one", b"two"]

    Without ``with``, call ``start()`` and ``close()``. Several clusters may live side by side. A forked process cannot
    use the cluster of its parent, and should be started with ``spawn``: the broker's threads are missing in it.
    """

    def __init__(
        self,
        nodes: int = 1,
        processes: bool | None = None,
        config: Mapping[str, object] | None = None,
        start_limit_s: float = START_LIMIT_S,
    ) -> None:
        """``config`` has broker settings under Kafka's names. Raise ValueError for an argument that cannot be."""
        if nodes not in SIZES:
            raise ValueError(f"nodes is {nodes!r}: give 1, 3 or 5, so that a majority is left when a minority dies.")
        given = {key: _setting(value) for key, value in (config or {}).items()}
        for key in OWN_SETTINGS:
            if key in given:
                raise ValueError(f"config has {key}, which the cluster sets itself: leave it out.")
        self.nodes = nodes
        self.has_processes = nodes > 1 if processes is None else processes
        self._config = {**TEST_DEFAULTS, **_replication(min(nodes, 3)), **given}
        self._cluster_id = _new_id()
        self._isolated: set[int] = set()
        self._start_limit_s = start_limit_s
        self._members: list[NodeHandle] = []
        self._folder: TemporaryFolder | None = None
        self._owner = os.getpid()
        self._is_closed = False
        self._rules: dict[int, Rule] = {}
        self._last_rule = 0
        _check_settings(self._config)

    # Life

    def start(self) -> Self:
        """Start all nodes, and return the cluster when they serve clients. Raise StartFailed."""
        if self._members:
            raise CrucibleError("The cluster is started already: make another Cluster for a second one.")
        if self._is_closed:
            raise CrucibleError("The cluster was closed, and its data is gone: make another Cluster.")
        self._folder = TemporaryFolder()
        try:
            for number in range(self.nodes):
                folder = self._folder.path / f"node-{number}"
                self._members.append(NodeHandle(self, self._carrier(number), Listeners(self.nodes > 1), folder))
            for member in self._members:
                member.begin_start()
            for member in self._members:
                member.wait_ready(self._start_limit_s)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End all nodes, and delete their data. A second call does nothing."""
        if self._is_closed or os.getpid() != self._owner:
            return
        self._is_closed = True
        for member in self._members:
            member.end()
        if self._folder is not None:
            self._folder.remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.check_rules()
        finally:
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{self.bootstrap_servers}" if self._members else "not started"
        return f"<Cluster of {self.nodes}: {state}>"

    def check_usable(self) -> None:
        """Raise CrucibleError unless the cluster runs, and this is the process that started it."""
        if os.getpid() != self._owner:
            raise CrucibleError("The cluster belongs to the process that started it: start one after the fork instead.")
        if self._is_closed:
            raise CrucibleError("The cluster is closed: use it inside of its with block.")
        if not self._members:
            raise CrucibleError("The cluster is not started: use it in a with block, or call start() first.")

    def _carrier(self, node: int) -> Carrier:
        assert self._folder is not None, "the cluster was not started"
        return ProcessNode(node, self._folder.path / f"node-{node}.log") if self.has_processes else EmbeddedNode(node)

    def spec_of(self, node: int, listeners: Listeners, folder: Path) -> NodeSpec:
        """Return what a node is started with now."""
        standing: list[tuple[str, Mapping[str, Plain]]] = [
            ("add_rule", self._rule_arguments(rule.spec)) for rule in self._rules.values()
        ]
        if self._isolated:
            standing.append(("cut", {"peers": self._cut_from(node)}))
        if self.nodes == 1:
            return NodeSpec(node, folder, self._config, listeners.clients.address, tuple(standing))
        voters = ",".join(f"{each.id}@{each.controller_address}" for each in self._members)
        config = {**self._config, **listeners.settings(), VOTERS: voters, CLUSTER_ID: self._cluster_id}
        return NodeSpec(node, folder, config, None, tuple(standing))

    # Nodes

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes, as clients take them: ``HOST:PORT,HOST:PORT``."""
        return ",".join(member.address for member in self._members)

    def node(self, number: int) -> NodeHandle:
        """Return a node by its ID, from 0 on."""
        self.check_usable()
        if not 0 <= number < self.nodes:
            raise ValueError(f"There is no node {number}: the cluster has 0 to {self.nodes - 1}.")
        return self._members[number]

    def _serving(self) -> list[NodeHandle]:
        self.check_usable()
        found = [member for member in self._members if member.is_serving]
        if not found:
            paused = any(member.is_running for member in self._members)
            raise NodeDead(f"No node {'serves: call resume()' if paused else 'runs: call restart()'} of one first.")
        return found

    @property
    def has_majority(self) -> bool:
        """Whether enough nodes serve, and reach each other, for a controller."""
        return len([each for each in self._serving() if each.id not in self._isolated]) * 2 > self.nodes

    def active_controller(self, limit_s: float = LIMIT_S) -> NodeHandle:
        """Return the node that is the active controller, and wait until there is one."""

        def found() -> NodeHandle | None:
            views = {each: each.command("controller") for each in self._serving() if each.id not in self._isolated}
            active = [(view["epoch"], each.id, each) for each, view in views.items() if view["is_active"]]
            return max(active)[2] if active else None

        return wait_for(found, lambda: "no node is the active controller.", limit_s)

    def controller_command(self, name: str, limit_s: float, **arguments: Plain) -> Plain:
        """Carry out a command at the active controller, also if that changes meanwhile."""

        def carried_out() -> tuple[Plain] | None:
            try:
                return (self.active_controller(limit_s).command(name, limit_s, **arguments),)
            except NotPossible as refusal:
                if "not the active controller" in str(refusal):
                    return None
                raise

        return wait_for(carried_out, lambda: f"no active controller has carried out {name}.", limit_s)[0]

    def fence_killed(self, node: int, limit_s: float) -> None:
        """Let the controller fence a node that was killed, unless nobody can: no majority is left."""
        if self.nodes == 1 or not any(member.is_serving for member in self._members) or not self.has_majority:
            return

        def is_fenced() -> bool | None:
            self.controller_command("fence", limit_s, broker_id=node)
            views = [
                each.command("broker", broker_id=node) for each in self._serving() if each.id not in self._isolated
            ]
            return True if all(view["fenced"] and not view["leads"] for view in views) else None

        wait_for(is_fenced, lambda: f"node {node} still leads partitions that others could lead.", limit_s)

    def await_in_sync(self, node: int, limit_s: float) -> None:
        """Wait until the replicas of a node are in sync, if the cluster can get there."""
        if self.nodes == 1 or not self.has_majority or node in self._isolated:
            return

        def behind() -> list[str]:
            return list(self.active_controller(limit_s).command("broker", broker_id=node)["not_in_sync"])

        wait_for(
            lambda: True if not behind() else None,
            lambda: f"the replicas of node {node} are not in sync: {', '.join(behind()[:5])}.",
            limit_s,
        )

    def isolate(self, node: int) -> None:
        """As ``NodeHandle.isolate``."""
        self._need_others("isolated")
        self._isolated.add(node)
        self._apply_cuts()

    def heal(self, node: int) -> None:
        """As ``NodeHandle.heal``."""
        self._isolated.discard(node)
        self._apply_cuts()

    def _apply_cuts(self) -> None:
        for member in self._serving():
            member.command("cut", peers=self._cut_from(member.id))

    def _cut_from(self, node: int) -> list[int]:
        """Return the nodes whose requests a node does not take."""
        others = [each for each in range(self.nodes) if each != node]
        return others if node in self._isolated else [each for each in others if each in self._isolated]

    def _need_others(self, verb: str) -> None:
        if self.nodes == 1:
            raise NotPossible(f"The only node cannot be {verb}: give nodes=3.")

    # Rules

    def on(
        self,
        api: str | Sequence[str] = "*",
        *,
        client_id: str | None = None,
        versions: int | tuple[int, int] | None = None,
        group: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        transactional_id: str | None = None,
        transaction: str | None = None,
        node: int | None = None,
        connection: int | None = None,
        session: Session = None,
        sender: str = "client",
        **counts: Unpack[Counts],
    ) -> Matcher:
        """Match requests, and return what can be done to them (``Matcher``). Names may be patterns (``app-*``).

        ``api`` is Kafka's name, whatever its case, or several. ``session=True`` matches a Fetch in a fetch session,
        False one without, a number that session; ``"new"``, ``"incremental"`` and ``"closing"`` match by its epoch.
        ``transaction="Ongoing"`` matches by the state of the transactional ID at its coordinator. ``sender`` is
        ``"client"``, ``"node"`` for requests between nodes, or ``"any"``. ``counts`` are those of each act.

        Raise ValueError for a rule that can never match.

        >>> lost = kafka.on("OffsetCommit", client_id="app-*").drop_response(times=1)
        >>> run_my_application(kafka.bootstrap_servers)
        >>> lost.assert_fired()
        """
        self.check_usable()
        if node is not None:
            self.node(node)
        match = MatchFields(
            versions=(versions, versions) if isinstance(versions, int) else versions,
            client_id=client_id,
            group=group,
            topic=topic,
            partition=partition,
            transactional_id=transactional_id,
            transaction=transaction,
            node=node,
            connection=connection,
            session=session,
            sender=sender,
        )
        return Matcher(self._add_rule, api, match, counts)

    def _add_rule(self, wanted: RuleSpec, text: str, optional: bool) -> Rule:
        self.check_usable()
        self._last_rule += 1
        spec = replace(wanted, id=self._last_rule)
        counts = HitCounts(self._rule_folder(spec.id))
        counts.create()
        rule = Rule(spec, text, optional, counts, self._what_came, self._remove_rule)
        self._rules[spec.id] = rule
        for member in self._members:
            if member.is_serving:
                member.command("add_rule", **self._rule_arguments(spec))
        return rule

    def _rule_folder(self, rule_id: int) -> Path:
        assert self._folder is not None, "the cluster was not started"
        return self._folder.path / "rules" / str(rule_id)

    def _rule_arguments(self, spec: RuleSpec) -> dict[str, Plain]:
        return {"spec": spec.plain(), "folder": str(self._rule_folder(spec.id))}

    def _remove_rule(self, rule_id: int) -> None:
        if self._rules.pop(rule_id, None) is not None and not self._is_closed:
            for member in self._members:
                if member.is_serving:
                    member.command("remove_rule", rule_id=rule_id)

    @property
    def rules(self) -> list[Rule]:
        """The rules that hold now, in order of creation."""
        return list(self._rules.values())

    def clear_rules(self) -> None:
        """Remove all rules, whether they acted or not."""
        for rule in self.rules:
            rule.remove()

    def check_rules(self) -> None:
        """Raise RuleNeverFired if a rule that is not ``optional`` has never acted."""
        for rule in self.rules:
            if not rule.optional:
                rule.assert_fired()

    def _what_came(self, apis: tuple[int, ...] | None) -> str:
        """Return a sentence about the clients' requests of these APIs so far."""
        names = None if apis is None else {api_name(each) for each in apis}
        counts: Counter[tuple[str, str]] = Counter()
        with suppress(CrucibleError):  # A node that is paused, or has just died, is left out.
            for member in self._members:
                for api, client_id, count in member.request_counts():
                    if names is None or api in names:
                        counts[api, client_id] += count
        if not counts:
            which = "of any client" if names is None else f"{' or '.join(sorted(names))} request of a client"
            return f"no {which} came at all"
        return "what came: " + ", ".join(f"{count} {api} of {who or '(no ID)'}" for (api, who), count in counts.items())

    # Topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replicas: int | None = None,
        config: Mapping[str, object] | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        """Create a topic, and return when every running node knows the leader of each partition, and it leads.

        Without ``replicas`` each node has one, at most 3. Raise CrucibleError if the topic exists.

        >>> kafka.create_topic("orders", partitions=3, config={"cleanup.policy": "compact"})
        """
        from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

        count = min(3, self.nodes) if replicas is None else replicas
        settings = tuple(CreatableTopicConfig(name=key, value=_setting(value)) for key, value in (config or {}).items())
        body = CreateTopicsRequest(
            topics=(
                CreatableTopic(
                    name=name,  # type: ignore[arg-type]
                    num_partitions=partitions,  # type: ignore[arg-type]
                    replication_factor=count,  # type: ignore[arg-type]
                    assignments=(),
                    configs=settings,
                ),
            ),
            validate_only=False,
        )
        (created,) = self._request(ApiKey.CREATE_TOPICS, body, f"create {name}", limit_s).topics
        if created.error_code is not ErrorCode.none:
            raise _refused(f"create the topic {name}", created.error_code, created.error_message)
        self._await_leaders(name, partitions, limit_s)

    def _await_leaders(self, topic: str, partitions: int, limit_s: float) -> None:
        def are_led() -> bool | None:
            found = [(member, member.command("topic", name=topic)) for member in self._serving()]
            led = {(member.id, index) for member, view in found for index in view["led"]}
            for _, view in found:
                leaders = view["leaders"]
                if len(leaders) != partitions or any(
                    (leader, index) not in led for index, leader in enumerate(leaders)
                ):
                    return None
            return True

        wait_for(are_led, lambda: f"some partition of {topic} has no leader yet on some node.", limit_s)

    def _request(self, api_key: int, body: object, purpose: str, limit_s: float) -> Any:
        """Send a request to the first node that responds. Raise CrucibleTimeout."""
        failure: TransportError | None = None
        for member in self._serving():
            try:
                return request(member.address, api_key, body, limit_s)
            except TransportError as error:
                failure = error
        raise CrucibleTimeout(f"No node responded to the request to {purpose}: {failure}") from failure

    # Observation

    def frames(
        self,
        api: str = "*",
        client_id: str = "*",
        node: int | None = None,
        direction: str | None = None,
        of_nodes: bool = False,
    ) -> list[Frame]:
        """Return the newest requests and responses, decoded, by time. Names may be patterns (``app-*``).

        With ``of_nodes`` these are the frames that nodes sent to each other. A node keeps 10,000 of each.

        >>> print(*kafka.frames(api="JoinGroup", client_id="app-*"), sep="\\n")
        """
        self.check_usable()
        found = [Frame(**plain) for member in self._members for plain in member.frames(of_nodes, api, client_id)]
        wanted = [
            frame
            for frame in found
            if fnmatchcase(frame.api.lower(), api.lower())
            and fnmatchcase(frame.client_id, client_id)
            and node in (None, frame.node)
            and direction in (None, frame.direction)
        ]
        return sorted(wanted, key=lambda frame: frame.at_s)

    def records(self, topic: str, partition: int | None = None, limit_s: float = LIMIT_S) -> list[StoredRecord]:
        """Return the records in the log of a topic, as its leaders have them below the high watermark.

        They come by partition and offset. Records of open and aborted transactions are among them, not ``committed``.

        >>> [record.value for record in kafka.records("orders") if record.committed]
        """
        views = [member.command("topic", name=topic) for member in self._serving()]
        leaders = max((view["leaders"] for view in views), key=len)
        if not leaders:
            raise CrucibleError(f"The topic {topic} does not exist: create it first.")
        if partition is not None and not 0 <= partition < len(leaders):
            raise ValueError(f"{topic} has no partition {partition}: it has 0 to {len(leaders) - 1}.")
        wanted = range(len(leaders)) if partition is None else (partition,)
        return [record for index in wanted for record in self._read(topic, index, limit_s)]

    def _read(self, topic: str, partition: int, limit_s: float) -> Iterator[StoredRecord]:
        member = self._replica_to_read(topic, partition)
        reader = LogReader(topic, partition)
        while True:
            piece = member.command(
                "read_log", limit_s, topic=topic, partition=partition, from_offset=reader.next_offset
            )
            start = reader.next_offset
            yield from reader.read(piece)
            if reader.next_offset == start:
                return

    def _replica_to_read(self, topic: str, partition: int) -> NodeHandle:
        """Return the leader, or without one the node whose replica is the longest."""
        best: tuple[int, NodeHandle] | None = None
        for member in self._serving():
            if partition in member.command("topic", name=topic)["led"]:
                return member
            with suppress(NotPossible):
                end = member.command("read_log", topic=topic, partition=partition, max_bytes=0)["log_end_offset"]
                if best is None or end > best[0]:
                    best = (end, member)
        if best is None:
            raise NodeDead(f"No running node has a replica of {topic}-{partition}: restart one of its nodes.")
        return best[1]

    def groups(self) -> list[GroupView]:
        """Return the consumer groups, as their coordinators have them."""
        return [
            GroupView(
                **{
                    **plain,
                    "members": tuple(plain["members"]),
                    "client_ids": tuple(plain["client_ids"]),
                    "committed": {(topic, index): offset for topic, index, offset in plain["committed"]},
                }
            )
            for plain in self._from_all("groups")
        ]

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets of a group by topic and partition. A group that is unknown has none."""
        return next((each.committed for each in self.groups() if each.group_id == group), {})

    def transactions(self) -> list[TransactionView]:
        """Return the transactional IDs, as their coordinators have them."""
        return [
            TransactionView(**{**plain, "partitions": tuple((topic, index) for topic, index in plain["partitions"])})
            for plain in self._from_all("transactions")
        ]

    def sessions(self) -> list[SessionView]:
        """Return the incremental fetch sessions of consumers on all nodes."""
        return [SessionView(**plain) for plain in self._from_all("sessions")]

    def log_lines(self) -> list[str]:
        """Return the logs of all nodes, one JSON object a line."""
        self.check_usable()
        return [line for member in self._members for line in member.log_lines()]

    def metrics(self) -> dict[int, dict[str, int]]:
        """Return the metrics of each running node, by node ID and Kafka's MBean name."""
        return {member.id: member.metrics() for member in self._serving()}

    def _from_all(self, command: str) -> Iterator[Any]:
        for member in self._serving():
            yield from member.command(command)


def _replication(count: int) -> dict[str, str]:
    """Return the settings by which each node has a replica of the internal topics, as far as 3 of them go."""
    factors = ("default", "offsets.topic", "transaction.state.log")
    return {
        **{f"{each}.replication.factor": str(count) for each in factors},
        "transaction.state.log.min.isr": str(1 if count == 1 else 2),
    }


def _new_id() -> str:
    """Return a random cluster ID. It never begins with a dash, because tools would take it for an option."""
    return next(text for text in iter(lambda: uuid_text(uuid4().bytes), "") if not text.startswith("-"))


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_settings(config: Mapping[str, str]) -> None:
    from reference_broker.configuration.broker_config import BrokerConfig, ConfigError

    try:
        BrokerConfig.parse(dict(config))
    except ConfigError as wrong:
        raise ValueError(str(wrong)) from wrong


def _refused(purpose: str, error: int, message: str | None) -> CrucibleError:
    said = f": {message}" if message else "."
    return CrucibleError(f"The cluster refused to {purpose} with {error_name(error)}{said}")
