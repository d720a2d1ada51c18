"""One node's part in the quorum of the metadata log (Kafka's KafkaRaftClient): who leads, and what is committed.

Sources: KIP-595, KIP-996.

It is a pure state machine. Each change of epoch or vote is synced to disk before the node acts on it or responds;
inputs that arrive meanwhile wait at a gate, in order. Each stay in a role is an object (``roles.RoleState``), whose
steps return the role that must follow. What one role began has no effect in the next. ``roles.py`` has the table of
changes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.ports.node_ports import NodeContext
from reference_broker.quorum.follower import Follower
from reference_broker.quorum.leader import Leader
from reference_broker.quorum.messages import fetched
from reference_broker.quorum.metadata_log import HighWatermark, LogSync, MetadataLog
from reference_broker.quorum.node_files import (
    QuorumState,
    StartRefused,
    put_in_place,
    read_quorum_state,
    write_quorum_state,
)
from reference_broker.quorum.nominee import Candidate, Prospective
from reference_broker.quorum.roles import ElectionState, QuorumTiming, Role, RoleContext, RoleState, Step, may_follow
from reference_broker.quorum.unattached import Resigned, Unattached
from reference_broker.quorum.values import (
    MAX_EPOCH,
    NO_NODE,
    UNKNOWN_OFFSET,
    Download,
    NotLeader,
    Provenance,
    QuorumDescription,
    QuorumListener,
)
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import FetchResponse


@dataclass(slots=True)
class Gate:
    """Runs inputs in the order in which they came. It is closed while a change that they depend on is synced to
    disk."""

    closed: bool = False
    draining: bool = False
    running: int = 0
    """Steps that have begun and not ended, one inside the other. A step that failed never ends."""
    waiting: deque[Callable[[], None]] = field(default_factory=deque)
    """Empty unless the gate is closed or draining."""

    def run(self, step: Callable[[], None]) -> None:
        """Run ``step`` now if the gate is open and idle. Otherwise it runs after all inputs that came before."""
        if self.closed or self.draining:
            self.waiting.append(step)
        else:
            self.run_whole(step)

    def run_whole(self, step: Callable[[], None]) -> None:
        """Run ``step`` now. If it fails, the state is half changed for good."""
        self.running += 1
        step()
        self.running -= 1

    def drain(self) -> None:
        """Run the waiting inputs until none remains or one of them closes the gate again."""
        if self.draining:
            return
        self.draining = True
        while self.waiting and not self.closed:
            self.run_whole(self.waiting.popleft())
        self.draining = False


class Quorum:
    """The state of one node in the quorum, and its entry points.

    Making one raises StartRefused if the directory belongs to another set of voters or its state is damaged.
    """

    def __init__(
        self,
        node: NodeContext,
        config: BrokerConfig,
        cluster_id: str,
        log: MetadataLog,
        listener: QuorumListener,
        download: Download,
    ) -> None:
        self.ports = node.ports
        self.node_id = node.node_id
        self.cluster_id = cluster_id
        self.log = log
        self.listener = listener
        self.voters = tuple(voter.node_id for voter in config.voters(self.node_id))
        """Node IDs in ascending order."""
        self.others = tuple(voter for voter in self.voters if voter != self.node_id)
        self.gate = Gate(closed=True)
        self.log_sync = LogSync(log.log, self.ports)
        self.leaving = False
        """The node shuts down."""
        self.stopped = False
        self._disk = node.disk
        self._download = download
        self._high_watermark = HighWatermark(log, self.ports, listener)
        self._left: Callable[[], None] | None = None
        """Called once the node has shut down."""
        self._announced = (NO_NODE, -1)
        """The leader and epoch that the listener knows."""
        self._synced = self._recovered()
        self._context = RoleContext(
            node=node,
            cluster_id=cluster_id,
            voters=self.voters,
            others=self.others,
            timing=QuorumTiming(config, node.random),
            log=log,
            log_sync=self.log_sync,
            high_watermark=self._high_watermark,
            run=self._run,
            learn_leader=self.learn_leader,
        )
        election = ElectionState(self._synced.leader_epoch, NO_NODE, self._synced.voted_id)
        self.state: RoleState = Unattached(self._context, election)
        """The object of the current role."""

    # State

    @property
    def role(self) -> Role:
        return self.state.role

    @property
    def epoch(self) -> int:
        return self.state.election.epoch

    @property
    def leader_id(self) -> int:
        """The leader of ``epoch``, or -1. It is not reported before it is synced to disk."""
        return NO_NODE if self.gate.closed else self.state.election.leader_id

    @property
    def voted_id(self) -> int:
        """The node that got this node's vote in ``epoch``, or -1."""
        return self.state.election.voted_id

    @property
    def high_watermark(self) -> int:
        return self._high_watermark.offset

    @property
    def is_leader(self) -> bool:
        return self.state.role is Role.LEADER

    @property
    def has_led(self) -> bool:
        """Whether this node has led the present epoch, perhaps before it resigned or was restarted. No other node does
        then."""
        return (self._synced.leader_epoch, self._synced.leader_id) == (self.epoch, self.node_id)

    @property
    def is_half_changed(self) -> bool:
        """Whether a step of this quorum has begun and not ended. If that is still so after an exception has left it,
        the state is undefined, and the node must end."""
        return self.gate.running > 0

    @property
    def shown_leader_id(self) -> int:
        """The leader that is reported to clients. It is also -1 while this node seeks to replace a leader that it has
        lost."""
        return NO_NODE if self.state.role is Role.PROSPECTIVE else self.leader_id

    @property
    def is_voter(self) -> bool:
        return self.node_id in self.voters

    @property
    def epoch_start_offset(self) -> int:
        """The offset of the first record of the epoch that this node leads, or -1 if it does not lead."""
        return self.state.start_offset if isinstance(self.state, Leader) else UNKNOWN_OFFSET

    def describe(self) -> QuorumDescription:
        """Raise NotLeader on any other node, because only the leader knows."""
        if not isinstance(self.state, Leader):
            raise NotLeader(f"node {self.leader_id} leads epoch {self.epoch}")
        return self.state.describe()

    def leader_check(self, cluster_id: str | None, leader_epoch: int) -> Error | None:
        """Return the error of a request that only the leader serves, or None. The checks are in Kafka's order.
        ``cluster_id`` is None if the request does not name it."""
        if cluster_id is not None and cluster_id != self.cluster_id:
            return ErrorCode.inconsistent_cluster_id
        if leader_epoch != self.epoch:
            return ErrorCode.fenced_leader_epoch if leader_epoch < self.epoch else ErrorCode.unknown_leader_epoch
        if not self.is_leader:
            return ErrorCode.not_leader_or_follower
        return ErrorCode.broker_not_available if self.leaving else None

    # Entry points

    def start(self) -> None:
        """Start the node, which begins to act when everything in its log is synced. Called once."""
        self.log_sync.request(self._begin)

    def shut_down(self, done: Callable[[], None]) -> None:
        """Stop the node and call ``done``, after which nothing is sent or appended. A leader first notifies the others
        that it resigns, and waits for their responses at most one request timeout."""
        self.gate.run(lambda: self._leave(done))

    def halt(self) -> None:
        """Stop at once, even in the middle of a change of role. It is for a node that cannot wait any longer."""
        if not self.stopped:
            self._stop()

    def append(self, values: Sequence[bytes]) -> Provenance:
        """Append one batch of records with these values, whole or not at all.

        Raise NotLeader, BatchTooLarge or DiskError. Nothing was written then.
        """
        state = self.state
        if not isinstance(state, Leader) or not state.live or state.start_offset < 0:
            raise NotLeader(f"node {self.leader_id} leads epoch {self.epoch}")
        last = self.log.append(self.ports.now(), values, self.epoch)
        self.gate.run_whole(state.appended)
        return last

    def contacted(self, replica_id: int) -> None:
        """Note that a replica is alive, because it sent a request other than a fetch of the log (FetchSnapshot)."""
        if isinstance(self.state, Leader):
            self.state.contacted(replica_id)

    # Inputs of the roles

    def _run(self, step: Step) -> None:
        """Run a step of a role in its turn, and make the change of role that it returns."""
        self.gate.run(lambda: self._change_to(step()))

    def learn_leader(self, leader_id: int, epoch: int) -> bool:
        """Act on the leader and epoch that a response names, which may change this node's role. Returns False for an
        epoch that is older than this node's, or that no node can have."""
        if not self.epoch <= epoch <= MAX_EPOCH:
            return False
        is_news = self.leader_id == NO_NODE and not self.has_led and leader_id in self.others
        if self.stopped or (epoch == self.epoch and not is_news):
            return True
        if leader_id in self.others:  # Decision quorum-leader-learned
            self.become_follower(epoch, leader_id)
        else:  # If others report that this node leads, it has lost its state. It had voted for itself in that epoch.
            self.become_unattached(epoch, voted_id=self.node_id if leader_id == self.node_id else NO_NODE)
        return True

    def _all_notified(self) -> None:
        """End a shutdown: every voter knows of the resignation, or cannot be notified in time."""
        if self.leaving and not self.stopped:
            self._stop()

    # Changes of role

    def _change_to(self, role: Role | None) -> None:
        """Make the change of role that a step of the present one returned. It keeps the epoch, its leader and the vote,
        except where the new role decides on them."""
        match role:
            case Role.UNATTACHED:
                self.become_unattached(self.epoch, voted_id=self.voted_id)
            case Role.FOLLOWER:
                self.become_follower(self.epoch, self.leader_id)
            case Role.PROSPECTIVE:
                self.become_prospective()
            case Role.CANDIDATE:
                self.become_candidate()
            case Role.LEADER:
                self.become_leader()
            case Role.RESIGNED:
                self._become_resigned()

    def become_unattached(
        self, epoch: int, *, voted_id: int, then: Callable[[], None] | None = None, starting: bool = False
    ) -> None:
        self._become(Unattached(self._context, ElectionState(epoch, NO_NODE, voted_id), starting), then)

    def become_follower(self, epoch: int, leader_id: int, then: Callable[[], None] | None = None) -> None:
        voted_id = self.voted_id if epoch == self.epoch else NO_NODE
        self._become(Follower(self._context, ElectionState(epoch, leader_id, voted_id), self._download), then)

    def become_prospective(self) -> None:
        starting = isinstance(self.state, Unattached) and self.state.starting
        self._become(Prospective(self._context, ElectionState(self.epoch, self.leader_id, self.voted_id), starting))

    def become_candidate(self) -> None:
        self._become(Candidate(self._context, ElectionState(self.epoch + 1, NO_NODE, self.node_id)))

    def become_leader(self) -> None:
        self._context.timing.note_contact()
        self._become(Leader(self._context, ElectionState(self.epoch, self.node_id, self.voted_id), self.listener))

    def resign(self, why: str) -> None:
        assert isinstance(self.state, Leader), f"a {self.role.value} resigns"
        self._change_to(self.state.resign(why))

    def _become_resigned(self) -> None:
        assert isinstance(self.state, Leader), f"a {self.role.value} resigns"
        election = ElectionState(self.epoch, NO_NODE, self.voted_id)
        self._become(Resigned(self._context, election, self.state.successors(), self.leaving, self._all_notified))

    def _become(self, state: RoleState, then: Callable[[], None] | None = None) -> None:
        """Decide on a role now and start it when that is synced to disk. ``then`` responds to the request that led to
        it."""
        before, led_epoch = self.state, self.epoch
        epoch = state.election.epoch
        assert may_follow(before.role, state.role, epoch - led_epoch, self.is_voter), (
            f"{before.role} of epoch {led_epoch} becomes {state.role} of epoch {epoch}"
        )
        assert not self.gate.closed, f"{before.role} becomes {state.role} while an earlier change is made durable"
        self.state = state
        before.stop()
        self.gate.closed = True
        if isinstance(before, Leader) and before.start_offset >= 0:
            self.listener.leadership_lost(led_epoch)
        self._persist(lambda: self._entered(state, before, then))

    def _entered(self, state: RoleState, before: RoleState, then: Callable[[], None] | None) -> None:
        self.gate.closed = False
        self._refuse_parked(before)
        if then is not None:
            then()
        now_known = (self.shown_leader_id, self.epoch)
        if self._announced != now_known:
            self._announced = now_known
            self.ports.note("epoch_changed", ("epoch", self.epoch), ("leader", self.shown_leader_id))
            self.listener.leader_changed(self.shown_leader_id, self.epoch)
        if self.leaving and state.role is not Role.RESIGNED and not self.stopped:
            self._stop()
        if state.live:
            self._change_to(state.start())
        self.gate.drain()

    def fetch_refused(self, error: Error) -> FetchResponse:
        """Return the response to a fetch of the metadata log that has an error."""
        return fetched(error, self.leader_id, self.epoch, self.high_watermark, self.log.start_offset)

    def _refuse_parked(self, state: RoleState) -> None:
        for respond in state.take_parked():
            respond(self.fetch_refused(ErrorCode.not_leader_or_follower))

    # The state on disk

    def _persist(self, done: Callable[[], None]) -> None:
        """Sync epoch, vote and leader to disk, then call ``done``. If only the leader became unknown, the file stays as
        it is, because no other node relies on the leader in it."""
        on_disk = self._synced
        epoch, leader_id, voted_id = self.state.election
        is_same_vote = (on_disk.leader_epoch, on_disk.voted_id) == (epoch, voted_id)
        if is_same_vote and leader_id in (NO_NODE, on_disk.leader_id):
            done()
            return
        state = QuorumState(leader_id, epoch, voted_id, self.voters)
        path = write_quorum_state(self._disk, state)

        def synced() -> None:
            self._synced = state
            is_new = (state.leader_epoch, state.voted_id) != (on_disk.leader_epoch, on_disk.voted_id)
            if is_new and state.voted_id != NO_NODE:
                self.ports.note("voted", ("epoch", state.leader_epoch), ("candidate", state.voted_id))
            done()

        put_in_place(self._disk, self.ports, path, synced)

    def _recovered(self) -> QuorumState:
        """Return the state from the file, or a state of the log's epoch if that is newer, which means that the file was
        lost. Raise StartRefused."""
        state = read_quorum_state(self._disk)
        if state is not None and state.voters and tuple(sorted(state.voters)) != self.voters:
            raise StartRefused(
                f"The directory belongs to a quorum of voters {_listed(state.voters)}, not {_listed(self.voters)}: "
                "give controller.quorum.voters as it was, or another directory."
            )
        log_epoch = self.log.end.epoch
        if state is None or state.leader_epoch < log_epoch:  # Decision kept-epoch-behind-log
            return QuorumState(NO_NODE, log_epoch, NO_NODE, self.voters)
        return state

    def _begin(self) -> None:
        """Return to the epoch from before the restart, and follow its leader if that was another node. This node never
        leads or seeks that epoch again, because it may have lost records that it wrote in it."""
        state = self._synced
        self.gate.closed = False
        if self.voters == (self.node_id,):
            self.become_prospective()
        elif state.leader_id in self.others:  # Decision start-follows-kept-leader
            self.become_follower(state.leader_epoch, state.leader_id)
        else:
            led = state.leader_id == self.node_id
            voted_id = self.node_id if led else state.voted_id
            self.become_unattached(state.leader_epoch, voted_id=voted_id, starting=True)

    # Shutdown

    def _leave(self, done: Callable[[], None]) -> None:
        if self.stopped:
            done()
            return
        self._left = done
        self.leaving = True
        if self.is_leader and self.others:  # Decision shutdown-resigns
            timeout_us = self._context.timing.request_timeout_ms * 1000
            self._context.node.after(timeout_us, self._all_notified)
            self.resign("it is shutting down")
        else:
            self._stop()

    def _stop(self) -> None:
        self.stopped = True
        state, left = self.state, self._left
        state.stop()
        if isinstance(state, Leader) and state.start_offset >= 0:
            self.listener.leadership_lost(self.epoch)
        self._refuse_parked(state)
        if left is not None:
            left()


def _listed(voters: Sequence[int]) -> str:
    return ",".join(str(voter) for voter in sorted(voters))
