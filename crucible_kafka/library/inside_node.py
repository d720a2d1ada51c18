"""The library's part inside a node: the recorder of its frames, the rules, and the verbs that need its state.

Both carriers use it: a node on a thread of the test's process (``embedded.py``), and one in a process of its own
(``node_process.py``). A command is a name with plain values as arguments, and its result is a plain value, so that it
fits into a line of JSON.
"""

import asyncio
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from crucible_kafka.library.fillable_disk import FillableDisk
from crucible_kafka.library.frame_recorder import FrameRecorder
from crucible_kafka.library.imitation import Imitation
from crucible_kafka.library.partition_state_change import PartitionStateChange
from crucible_kafka.library.plain_values import Plain
from crucible_kafka.library.rule_engine import RuleEngine
from crucible_kafka.library.rule_spec import RuleSpec
from reference_broker.core.events import Close, Closed, Effect, Event, Opened, Reply, Request, TimerFired
from reference_broker.metadata.identifiers import claimed_node
from reference_broker.metadata.image import NO_LEADER
from reference_broker.ports.disk import Disk
from reference_broker.ports.node_ports import Now
from reference_broker.serve.server import Attached, Wrapper
from reference_broker.wire.apis import api_name
from reference_broker.wire.errors import error_name

if TYPE_CHECKING:
    from reference_broker.controller.controller import QuorumController
    from reference_broker.controller.write_operations import ApiError, ControllerWriteOperation
    from reference_broker.core.node import Node
    from reference_broker.log.unified_log import UnifiedLog
    from reference_broker.replication.partitions import Partition
    from reference_broker.serve.driver import DriverFaultActions

LIBRARY_CLIENT_ID: Final = "crucible-library"
"""The client ID of the library's own requests. They are not recorded, and no rule acts on them."""
WHILE_PAUSED: Final = ("set_rules", "limit_versions", "advertise", "cut")
"""Commands that a paused node obeys too, so that they hold for what it handles first when it goes on."""

Result: TypeAlias = "Plain | Future[Plain]"


class CommandFailed(Exception):  # noqa: N818 - says what happened
    """A command was not carried out. The message is one sentence for the test's author."""


class InsideNode:
    """The hooks of one node, and its commands: each method ``do_NAME`` carries out the command NAME.

    ``command`` may be called in any thread but the node's. Everything else runs in the node's thread, or in the
    caller's while the node is paused.
    """

    def __init__(
        self,
        node_id: int,
        standing: Sequence[tuple[str, Mapping[str, Plain]]] = (),
    ) -> None:
        """``standing`` are commands that are carried out before the node starts."""
        self.node_id = node_id
        self.recorder = FrameRecorder()
        self.wrapper = Wrapper(self._attach, self._built)
        self._standing = standing
        self._loop: asyncio.AbstractEventLoop | None = None
        self._actions: DriverFaultActions
        """From the moment on at which there is a loop."""
        self._node: Node
        self.rules: RuleEngine
        self.imitation = Imitation()
        self._cut: frozenset[int] = frozenset()
        """The nodes whose requests are not taken."""
        self._disk_is_full = False
        self._waiting: set[Future[Plain]] = set()
        """Commands whose results other threads wait for."""
        self._has_ended = False
        self._resumed: threading.Event | None = None
        """Set when a paused node is to go on, None if the node is not paused."""

    # The wrapper and the hooks of the driver

    def _attach(self, actions: "DriverFaultActions", disk: Disk) -> Attached:
        self._actions = actions
        self._loop = asyncio.get_running_loop()
        self.rules = RuleEngine(
            self.node_id, actions, self.recorder, self._topic_name, self._transaction_state, self._session_partitions
        )
        return Attached([self], FillableDisk(disk, lambda: self._disk_is_full))

    def _built(self, node: "Node") -> None:
        self._node = node
        for name, arguments in self._standing:
            getattr(self, f"do_{name}")(**arguments)

    def before(self, now: Now, event: Event) -> Sequence[Event]:  # noqa: ARG002
        if isinstance(event, Request):
            if event.client_id == LIBRARY_CLIENT_ID:
                return (event,)
            if self._cut and claimed_node(event.client_id) in self._cut:
                self._actions.discard_connection(event.connection)
                return ()
            if self.rules.is_late(event):
                return self.rules.arrived_late(event)
            frame = self.recorder.request(event)
            admitted = self.imitation.admitted(event)
            if admitted is None:
                frame.fault = "the version is above max_versions, connection closed"
                self.rules.close_soon(event.connection)
                return ()
            return self.rules.arrived(admitted, frame)
        if isinstance(event, Opened):
            self.recorder.opened(event.connection, event.peer)
        elif isinstance(event, Closed):
            self.recorder.closed(event.connection)
            self.rules.closed(event.connection)
        return (event,)

    def after(self, now: Now, event: Event, effects: Sequence[Effect]) -> Sequence[Effect]:  # noqa: ARG002
        if not any(isinstance(effect, Reply | Close) for effect in effects):
            return effects
        found: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Reply) and effect.tag.client_id != LIBRARY_CLIENT_ID:
                found += self._replied(effect)
            elif isinstance(effect, Close):
                found += self.rules.close_wanted(effect)
            else:
                found.append(effect)
        return found

    def _replied(self, reply: Reply) -> Sequence[Effect]:
        if self.rules.is_phantom(reply.connection):
            return self.rules.replied(reply)[0]
        effects, fault = self.rules.replied(self.imitation.changed(reply))
        sent = next((effect for effect in effects if isinstance(effect, Reply)), reply)
        if sent.body is not None:
            self.recorder.response(sent, sent.tag.client_id, fault)
        return effects

    def _topic_name(self, topic_id: bytes) -> str | None:
        return self._node.broker.loader.image.topic_names.get(topic_id)

    def _session_partitions(self, session_id: int) -> Iterator[tuple[str, int]]:
        session = self._node.broker.fetch_sessions.sessions.get(session_id)
        for partition in () if session is None else session.partitions.values():
            yield partition.topic or self._topic_name(partition.topic_id) or "", partition.index

    def _transaction_state(self, transactional_id: str) -> str | None:
        metadata = self._node.broker.transactions.find_metadata(transactional_id)
        return None if isinstance(metadata, int) else metadata.current.state.value

    # Commands, in any other thread

    def command(self, name: str, arguments: Mapping[str, Plain], limit_s: float) -> Plain:
        """Carry out a command and return its result. Raise CommandFailed, and TimeoutError after ``limit_s``."""
        if name == "pause":
            return self._pause(limit_s)
        if name == "resume":
            return self._resume()
        if self._resumed is not None and name in WHILE_PAUSED:
            return getattr(self, f"do_{name}")(**arguments)  # The node's thread does nothing meanwhile.
        done: Future[Plain] = Future()
        loop = self._loop
        if loop is None:
            raise CommandFailed(f"Node {self.node_id} has not started yet.")

        def run() -> None:
            try:
                result = getattr(self, f"do_{name}")(**arguments)
            except Exception as failure:
                done.set_exception(failure)
                return
            if isinstance(result, Future):
                result.add_done_callback(lambda ended: _pass_on(ended, done))
            else:
                done.set_result(result)

        try:
            loop.call_soon_threadsafe(run)
        except RuntimeError:
            raise CommandFailed(f"Node {self.node_id} has ended.") from None
        self._waiting.add(done)
        try:
            if self._has_ended:
                raise CommandFailed(f"Node {self.node_id} has ended.")
            return done.result(limit_s)
        finally:
            self._waiting.discard(done)

    def ended(self) -> None:
        """Fail the commands that wait: the node's loop will never carry them out."""
        self._has_ended = True
        for each in list(self._waiting):
            with suppress(InvalidStateError):
                each.set_exception(CommandFailed(f"Node {self.node_id} has ended."))

    def halt(self) -> None:
        """Let the node handle no further event, whatever waits for it. Its server must be ended next."""
        driver = None if self._loop is None else self._actions.driver
        if driver is not None:
            driver.has_ended = True

    def _pause(self, limit_s: float) -> None:
        """Hold the node's thread. The system still accepts connections meanwhile, as it does for a stopped process."""
        if self._resumed is not None:
            return
        assert self._loop is not None
        held, resumed = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            resumed.wait()

        self._loop.call_soon_threadsafe(hold)
        if not held.wait(limit_s):
            resumed.set()
            raise TimeoutError
        self._resumed = resumed

    def _resume(self) -> None:
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            resumed.set()

    # Work on the node's state

    def _inside(self, work: Callable[[], None], result: Plain = None) -> "Future[Plain]":
        """Do the work in an event of the node, so that its effects are carried out."""
        done: Future[Plain] = Future()

        def step() -> None:
            try:
                work()
            except Exception as failure:
                done.set_exception(failure)
            else:
                done.set_result(result)

        self._in_event(step)
        return done

    def _in_event(self, step: Callable[[], None]) -> None:
        """Call ``step`` in an event of the node. It must not raise."""
        driver = self._actions.driver
        assert driver is not None, "a command came before its node was built"
        timer = self._node.broker.ports.set_timer(driver.clock.now().mono_us, step)
        driver.handle_event(TimerFired(timer))

    def _led(self, topic: str, partition: int) -> "Partition":
        found = self._node.broker.partitions.by_name.get((topic, partition))
        if found is None:
            raise CommandFailed(f"Node {self.node_id} does not lead {topic}-{partition}.")
        return found

    def _log(self, topic: str, partition: int) -> "UnifiedLog":
        """Return the log of the replica here, also of a follower."""
        broker = self._node.broker
        led = broker.partitions.by_name.get((topic, partition))
        image = broker.loader.image.topics.get(topic)
        if led is None and image is not None:
            led = broker.partitions.followed.get((image.topic_id, partition))
        if led is None:
            raise CommandFailed(f"Node {self.node_id} has no replica of {topic}-{partition}.")
        return led.log

    # Rules

    def do_set_rules(self, rules: list[Any]) -> None:
        """Let these rules hold and no others: pairs of a rule's fields and the folder of its counts."""
        self.rules.set([(RuleSpec.of(spec), Path(folder)) for spec, folder in rules])

    def do_limit_versions(self, highest: Mapping[str, int]) -> None:
        """Limit the versions of APIs, by API key as text. An empty mapping ends all limits."""
        self.imitation.highest = {int(key): version for key, version in highest.items()}

    def do_advertise(self, addresses: Mapping[str, Sequence[Any]]) -> None:
        """Put other addresses of nodes, by ID as text, into responses."""
        self.imitation.addresses = {int(node): (str(host), int(port)) for node, (host, port) in addresses.items()}

    # Faults of the node

    def do_cut(self, peers: list[int]) -> None:
        """Take no requests of these nodes from now on; their connections break."""
        self._cut = frozenset(peers)

    def do_slow_disk(self, by_ms: int) -> None:
        self._actions.slow_syncs(by_ms)

    def do_full_disk(self, full: bool) -> None:
        self._disk_is_full = full

    def do_clock_offset(self, offset_ms: int) -> None:
        driver = self._actions.driver
        assert driver is not None, "a command came before its node was built"
        self._actions.step_clock(offset_ms - driver.clock.wall_offset_ms)

    def do_clear_faults(self) -> None:
        """End the faults of the three commands above."""
        self.do_full_disk(False)
        self.do_slow_disk(0)
        self.do_clock_offset(0)

    # Of the active controller

    def do_fence(self, broker_id: int) -> Result:
        """Fence a broker now, as when its session ends. Its next incarnation may register at once."""
        from reference_broker.controller.planning.brokers import BrokerStateChange, handle_broker_fenced

        controller = self._active_controller()
        broker = controller.latest.brokers.get(broker_id)
        controller.heartbeats.forget(broker_id)
        if broker is None or broker.fenced:
            return None
        change = BrokerStateChange(
            "fence a broker that was killed", broker_id, broker.broker_epoch, handle_broker_fenced, None
        )
        return self._propose(change)

    def do_change_partition(
        self, topic: str, partition: int, leader: int | None = None, isr: list[int] | None = None
    ) -> Result:
        """Let another replica in sync lead, or shorten the in-sync replicas."""
        controller = self._active_controller()
        known = controller.latest.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            raise CommandFailed(f"There is no partition {topic}-{partition}.")
        return self._propose(PartitionStateChange(topic, partition, leader, None if isr is None else tuple(isr)))

    def do_resign(self) -> Result:
        """Give up the leadership of the metadata quorum, so that another node becomes the active controller."""
        quorum = self._node.broker.quorum
        if not quorum.is_leader:
            raise CommandFailed(f"Node {self.node_id} is not the active controller.")
        return self._inside(lambda: quorum.event_queue.append(lambda: quorum.resign("a test moves the controller")))

    def _active_controller(self) -> "QuorumController":
        controller = self._node.broker.controller
        if not controller.is_active:
            raise CommandFailed(f"Node {self.node_id} is not the active controller.")
        return controller

    def _propose(self, change: "ControllerWriteOperation[Any]") -> "Future[Plain]":
        """Let the active controller make a change. The result is None once it is committed and published here."""
        done: Future[Plain] = Future()

        def completed(refusal: "ApiError | None") -> None:
            if refusal is None:
                done.set_result(None)
            else:
                done.set_exception(CommandFailed(f"The controller refused to {change.name}: {refusal.message}"))

        def step() -> None:
            try:
                self._active_controller().append_write_event(change, completed)
            except CommandFailed as failure:
                done.set_exception(failure)

        self._in_event(step)
        return done

    # Sessions, logs and snapshots

    def do_evict_sessions(self, client_id: str) -> Result:
        """Close the fetch sessions of clients that fit, and return their number."""
        sessions = self._node.broker.fetch_sessions
        chosen = [
            session.session_id
            for session in sessions.sessions.values()
            if not session.privileged and fnmatchcase(session.client_id, client_id)
        ]

        def close() -> None:
            for session_id in chosen:
                sessions.close(session_id, "evicted by a test")

        return self._inside(close, len(chosen))

    def do_roll(self, topic: str, partition: int) -> Result:
        """Begin a new segment of the replica here, unless the newest one is empty."""
        log = self._log(topic, partition)
        is_empty = not log.bases or log.bases[-1] == log.log_end_offset
        return None if is_empty else self._inside(lambda: log.roll(self._node.broker.now))

    def do_truncate(self, topic: str, partition: int, offset: int) -> Result:
        """Cut the log of the replica here, as a power failure cuts what was not synced, and return where it ends then.
        Return None while the replica leads or follows."""
        broker = self._node.broker
        known = broker.loader.image.topics.get(topic)
        replica = None if known is None else broker.partitions.followed.get((known.topic_id, partition))
        if replica is None or replica.followed_leader != NO_LEADER:
            return None
        log, done = replica.log, Future[Plain]()

        def cut() -> None:
            try:
                end = log.truncate_to(offset)
                broker.replication.leaders.high_watermarks.moved(log)
            except Exception as failure:
                done.set_exception(failure)
            else:
                done.set_result(end)

        self._in_event(cut)
        return done

    def do_compact(self, topic: str, partition: int, stable_offset: int) -> Result:
        """Clean the log of the replica here, once it knows the leader's last stable offset. Return why not, or an empty
        string."""
        log = self._log(topic, partition)
        topic_id = self._node.broker.loader.image.topics[topic].topic_id
        if not log.config.is_compacted:
            raise CommandFailed(f'{topic} is not compacted: create it with config={{"cleanup.policy": "compact"}}.')
        if log.last_stable_offset < stable_offset:
            return f"its last stable offset is {log.last_stable_offset}, and the leader's {stable_offset}"
        done: Future[Plain] = Future()
        self._in_event(lambda: self._node.clean_now(topic_id, partition, done.set_result))
        return done

    def do_snapshot(self) -> Result:
        """Begin a snapshot of the metadata, unless there is one of its end."""
        return self._inside(self._node.broker.quorum_node.generator.make_now)

    def do_newest_snapshot(self) -> Plain:
        """Return the end offset of the newest snapshot, or -1, and the offset up to which metadata is published."""
        latest = self._node.broker.snapshots.latest
        published = self._node.broker.loader.image.provenance.offset
        return [-1 if latest is None else latest.offset, published]

    # Producers and transactions

    def do_expire_producer(self, topic: str, producer_id: int | None) -> Plain:
        """Forget a producer, or all, in the logs of a topic here. Return the number that led partitions forgot."""
        forgotten = 0
        broker = self._node.broker
        image = broker.loader.image.topics.get(topic)
        for index in range(0 if image is None else len(image.partitions)):
            with suppress(CommandFailed):
                producers = self._log(topic, index).producers
                chosen = list(producers.by_id) if producer_id is None else [producer_id]
                count = sum(producers.forget(each) for each in chosen)
                forgotten += count if (topic, index) in broker.partitions.by_name else 0
        return forgotten

    def do_expire_transactional_id(self, transactional_id: str) -> Result:
        """Let an idle transactional ID expire. Its producer gets INVALID_PRODUCER_ID_MAPPING from then on."""
        from reference_broker.transactions.transaction_metadata import EXPIRATION_ALLOWED, prepare_dead

        transactions = self._node.broker.transactions
        shard, metadata = transactions.find(transactional_id), transactions.find_metadata(transactional_id)
        if isinstance(shard, int) or isinstance(metadata, int):
            raise CommandFailed(f"Node {self.node_id} does not know the transactional ID {transactional_id}.")
        if metadata.pending_transition_in_progress or metadata.current.state not in EXPIRATION_ALLOWED:
            state = metadata.current.state.value
            raise CommandFailed(f"{transactional_id} is {state}, so it cannot expire: end its transaction first.")
        done: Future[Plain] = Future()

        def written(error: int) -> None:
            if error:
                done.set_exception(CommandFailed(f"{transactional_id} did not expire: {error_name(error)}."))
            else:
                done.set_result(None)

        def expire() -> None:
            tombstone = prepare_dead(metadata.current, self._node.broker.now.wall_ms)
            shard.append_transaction_to_log(metadata, tombstone).error.add_done_callback(written)

        self._in_event(expire)
        return done

    def do_coordinates(self, group: str | None, transactional_id: str | None) -> Plain:
        """Return whether this node coordinates the group or the transactional ID, with all of its past loaded."""
        broker = self._node.broker
        if group is not None:
            shard = broker.groups.find(group)
            if isinstance(shard, int):
                return False
            high_watermark = shard.led.log.high_watermark
            return high_watermark >= shard.loaded_end and not shard.offsets.is_behind(high_watermark)
        return transactional_id is not None and not isinstance(broker.transactions.find(transactional_id), int)

    # Observation

    def do_frames(
        self, of_nodes: bool = False, api: str = "*", client_id: str = "*", newest: int | None = None
    ) -> Plain:
        """Return the recorded frames whose API and client ID fit the patterns, or the newest of them."""
        found = [
            frame
            for frame in self.recorder.frames(of_nodes)
            if fnmatchcase(api_name(frame.api_key).lower(), api.lower()) and fnmatchcase(frame.client_id, client_id)
        ]
        return [frame.plain(self.node_id) for frame in found[-newest if newest else 0 :]]

    def do_forget_frames(self) -> None:
        """Forget the frames and counts of requests so far."""
        self.recorder.forget()

    def do_request_counts(self) -> Plain:
        return [[api, client_id, count] for (api, client_id), count in self.recorder.requests.items()]

    def do_metrics(self) -> Plain:
        from reference_broker.metrics.metrics import Histogram

        found: dict[str, Any] = {}
        for row in self._node.metrics.rows():
            metric = row.metric
            found[row.mbean] = metric.count if isinstance(metric, Histogram) else metric.value
        return found

    def do_controller(self) -> Plain:
        broker = self._node.broker
        return {
            "is_active": broker.controller.is_active,
            "epoch": broker.quorum.epoch,
            "leader": broker.quorum.leader_id,
        }

    def do_broker(self, broker_id: int) -> Plain:
        """Return what the metadata here says of a broker: whether it is fenced, and its partitions that others could
        lead, or that are not in sync."""
        image = self._node.broker.loader.image
        known = image.brokers.get(broker_id)
        leads, not_in_sync = [], []
        for name, topic in image.topics.items():
            for index, state in enumerate(topic.partitions):
                if state.leader == broker_id and len(state.isr) > 1:
                    leads.append(f"{name}-{index}")
                if broker_id in state.replicas and broker_id not in state.isr:
                    not_in_sync.append(f"{name}-{index}")
        return {"fenced": known is None or known.fenced, "leads": leads, "not_in_sync": not_in_sync}

    def do_state(self) -> Plain:
        """Return the node's view of the cluster."""
        broker = self._node.broker
        image = broker.loader.image
        topics = {
            name: [
                {
                    "leader": state.leader,
                    "leader_epoch": state.leader_epoch,
                    "replicas": list(state.replicas),
                    "isr": list(state.isr),
                }
                for state in topic.partitions
            ]
            for name, topic in image.topics.items()
        }
        brokers = {
            str(number): {"fenced": each.fenced, "host": each.host, "port": each.port}
            for number, each in image.brokers.items()
        }
        return {
            "ready": self._node.ready,
            "controller": broker.quorum.leader_id,
            "is_active_controller": broker.controller.is_active,
            "quorum_epoch": broker.quorum.epoch,
            "metadata_offset": image.provenance.offset,
            "topics": topics,
            "brokers": brokers,
            "features": dict(image.features),
            "led": [[topic, index] for topic, index in broker.partitions.by_name],
        }

    def do_names(self) -> Plain:
        """Return the IDs of all topics by name, and the groups that this node coordinates."""
        broker = self._node.broker
        return {
            "topics": {name: topic.topic_id.hex() for name, topic in broker.loader.image.topics.items()},
            "groups": [group_id for shard in broker.groups.active() for group_id in shard.groups],
        }

    def do_topic(self, name: str) -> Plain:
        """Return the leaders of a topic's partitions by the metadata here, and the partitions that this node leads."""
        broker = self._node.broker
        image = broker.loader.image.topics.get(name)
        return {
            "leaders": [] if image is None else [state.leader for state in image.partitions],
            "isr": [] if image is None else [list(state.isr) for state in image.partitions],
            "replicas": [] if image is None else [list(state.replicas) for state in image.partitions],
            "led": [index for topic, index in broker.partitions.by_name if topic == name],
        }

    def do_read_log(self, topic: str, partition: int, from_offset: int = 0, max_bytes: int = 4 << 20) -> Plain:
        """Return the batches of the replica here from an offset on, in base64, up to the high watermark."""
        log = self._log(topic, partition)
        start = max(from_offset, log.local_log_start_offset)
        records = log.read(start, max_bytes) if start < log.high_watermark else b""
        return {
            "batches": b64encode(records).decode(),
            "high_watermark": log.high_watermark,
            "last_stable_offset": log.last_stable_offset,
            "log_start_offset": log.log_start_offset,
            "local_log_start_offset": log.local_log_start_offset,
            "log_end_offset": log.log_end_offset,
            "aborted": [
                [transaction.producer_id, transaction.first_offset]
                for transaction in log.aborted_transactions(start, log.high_watermark)
            ],
        }

    def do_groups(self) -> Plain:
        found = []
        for shard in self._node.broker.groups.active():
            for group_id, group in shard.groups.items():
                commits = [shard.offsets.find(key) for key in shard.offsets.keys_of(group_id)]
                members = list(group.members.values())
                found.append(
                    {
                        "group_id": group_id,
                        "state": group.state.value,
                        "generation": group.generation,
                        "protocol": group.protocol,
                        "leader": group.leader,
                        "members": [member.member_id for member in members],
                        "client_ids": [member.client_id for member in members],
                        "committed": [
                            [commit.topic, commit.partition, commit.offset] for commit in commits if commit is not None
                        ],
                        "coordinator": self.node_id,
                    }
                )
        return found

    def do_transactions(self) -> Plain:
        return [
            {
                "transactional_id": transactional_id,
                "state": entry.current.state.value,
                "producer_id": entry.current.producer_id,
                "producer_epoch": entry.current.producer_epoch,
                "partitions": [[str(partition[0]), int(partition[1])] for partition in entry.current.partitions],
                "coordinator": self.node_id,
            }
            for shard in self._node.broker.transactions.active()
            for transactional_id, entry in shard.entries.items()
        ]

    def do_sessions(self) -> Plain:
        return [
            {
                "session_id": session.session_id,
                "node": self.node_id,
                "client_id": session.client_id,
                "next_epoch": session.epoch,
                "partitions": len(session.partitions),
            }
            for session in self._node.broker.fetch_sessions.sessions.values()
            if not session.privileged
        ]


def _pass_on(ended: "Future[Plain]", done: "Future[Plain]") -> None:
    failure = ended.exception()
    with suppress(Exception):  # The caller has given up waiting.
        if failure is None:
            done.set_result(ended.result())
        else:
            done.set_exception(failure)
