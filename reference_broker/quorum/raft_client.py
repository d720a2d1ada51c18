"""Kafka's KafkaRaftClient: one node's part in the quorum of the metadata log (KIP-595, KIP-996).

It is a pure state machine. Each change of epoch or vote is synced to ``quorum-state`` before the node acts on it or
responds; requests, responses and timers that arrive meanwhile are queued, in order. Each role of one epoch is an object
(``roles.EpochState``), whose callbacks return the role that must follow, if any. ``roles.py`` has the table of allowed
changes. Timers and requests of one role have no effect in the next.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.ports.node_ports import NodeContext
from reference_broker.quorum.follower import FollowerState
from reference_broker.quorum.leader import LeaderState
from reference_broker.quorum.messages import build_fetch_response
from reference_broker.quorum.metadata_log import HighWatermark, LogSync, MetadataLog
from reference_broker.quorum.node_files import (
    QuorumStateData,
    StartRefused,
    put_in_place,
    read_quorum_state,
    write_quorum_state,
)
from reference_broker.quorum.nominee import CandidateState, ProspectiveState
from reference_broker.quorum.roles import (
    ElectionState,
    EpochState,
    QuorumTiming,
    Role,
    RoleAction,
    RoleContext,
    may_follow,
)
from reference_broker.quorum.unattached import ResignedState, UnattachedState
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
class RaftEventQueue:
    """Runs requests, responses and timers in the order in which they came. It is blocked while ``quorum-state`` is
    synced, because events depend on the change."""

    is_blocked: bool = False
    is_draining: bool = False
    running: int = 0
    """Number of events that have started and not ended, one inside the other. An event that failed never ends."""
    pending: deque[Callable[[], None]] = field(default_factory=deque)
    """Empty unless the queue is blocked or draining."""

    def append(self, event: Callable[[], None]) -> None:
        """Run ``event`` now if the queue is neither blocked nor draining, otherwise after all earlier events."""
        if self.is_blocked or self.is_draining:
            self.pending.append(event)
        else:
            self.run_event(event)

    def run_event(self, event: Callable[[], None]) -> None:
        """Run ``event`` now. If it fails, the state is half changed for good."""
        self.running += 1
        event()
        self.running -= 1

    def drain(self) -> None:
        """Run pending events until none remains or one of them blocks the queue again."""
        if self.is_draining:
            return
        self.is_draining = True
        while self.pending and not self.is_blocked:
            self.run_event(self.pending.popleft())
        self.is_draining = False


class KafkaRaftClient:
    """The state of one node in the quorum, and its entry points.

    The constructor raises StartRefused if the directory belongs to another set of voters or ``quorum-state`` is
    damaged.
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
        self.event_queue = RaftEventQueue(is_blocked=True)
        self.log_sync = LogSync(log.log, self.ports)
        self.is_shutting_down = False
        self.stopped = False
        self._disk = node.disk
        self._download = download
        self._high_watermark = HighWatermark(log, self.ports, listener)
        self._shutdown_completed: Callable[[], None] | None = None
        """Set by ``shut_down``. Called once the node has shut down."""
        self._last_notified = (NO_NODE, -1)
        """The leader and epoch of the listener's last ``leader_changed``."""
        self._synced = self._read_quorum_state()
        """The content of ``quorum-state`` that is known to be durable."""
        self._context = RoleContext(
            node=node,
            cluster_id=cluster_id,
            voters=self.voters,
            others=self.others,
            timing=QuorumTiming(config, node.random),
            log=log,
            log_sync=self.log_sync,
            high_watermark=self._high_watermark,
            run=self._run_action,
            maybe_transition=self.maybe_transition,
        )
        election = ElectionState(self._synced.leader_epoch, NO_NODE, self._synced.voted_id)
        self.state: EpochState = UnattachedState(self._context, election)
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
        """The leader of ``epoch``, or -1 if it is unknown or not synced to ``quorum-state`` yet."""
        return NO_NODE if self.event_queue.is_blocked else self.state.election.leader_id

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
        """Whether this node has led the present epoch, perhaps before it resigned or restarted. Then no other node can
        lead that epoch."""
        return (self._synced.leader_epoch, self._synced.leader_id) == (self.epoch, self.node_id)

    @property
    def is_half_changed(self) -> bool:
        """Whether an event has started and not ended. If that is still so after an exception has left it, the state is
        undefined, and the node must end."""
        return self.event_queue.running > 0

    @property
    def reported_leader_id(self) -> int:
        """The leader that clients and the listener get. Unlike ``leader_id`` it is -1 in the role PROSPECTIVE, which
        keeps the leader whose fetch timeout has passed."""
        return NO_NODE if self.state.role is Role.PROSPECTIVE else self.leader_id

    @property
    def is_voter(self) -> bool:
        return self.node_id in self.voters

    @property
    def epoch_start_offset(self) -> int:
        """The offset of the first record of the epoch that this node leads, or -1 if it does not lead."""
        return self.state.start_offset if isinstance(self.state, LeaderState) else UNKNOWN_OFFSET

    def describe(self) -> QuorumDescription:
        """Return the content of a DescribeQuorum response. Raise NotLeader on a node that does not lead."""
        if not isinstance(self.state, LeaderState):
            raise NotLeader(f"node {self.leader_id} leads epoch {self.epoch}")
        return self.state.describe()

    def validate_leader_only_request(self, cluster_id: str | None, leader_epoch: int) -> Error | None:
        """Return the error of a request that only the leader serves, or None, with Kafka's checks in Kafka's order.
        ``cluster_id`` is None if the request does not name it."""
        if cluster_id is not None and cluster_id != self.cluster_id:
            return ErrorCode.inconsistent_cluster_id
        if leader_epoch != self.epoch:
            return ErrorCode.fenced_leader_epoch if leader_epoch < self.epoch else ErrorCode.unknown_leader_epoch
        if not self.is_leader:
            return ErrorCode.not_leader_or_follower
        return ErrorCode.broker_not_available if self.is_shutting_down else None

    # Entry points

    def start(self) -> None:
        """Sync the log, then take the first role. Called once."""
        self.log_sync.request(self._initialize)

    def shut_down(self, done: Callable[[], None]) -> None:
        """Stop the node and call ``done``, after which nothing is sent or appended. A leader first resigns, and waits
        for the responses to its EndQuorumEpoch requests at most one request timeout."""
        self.event_queue.append(lambda: self._begin_shutdown(done))

    def halt(self) -> None:
        """Stop at once, even while a change of role is being synced."""
        if not self.stopped:
            self._stop()

    def append(self, values: Sequence[bytes]) -> Provenance:
        """Append one batch of records with these values, whole or not at all.

        Raise NotLeader, BatchTooLarge or DiskError. Nothing was written then.
        """
        state = self.state
        if not isinstance(state, LeaderState) or not state.live or state.start_offset < 0:
            raise NotLeader(f"node {self.leader_id} leads epoch {self.epoch}")
        last = self.log.append(self.ports.now(), values, self.epoch)
        self.event_queue.run_event(state.appended)
        return last

    def note_contact(self, replica_id: int) -> None:
        """Note that a replica is alive, because it sent a FetchSnapshot (updateCheckQuorumForFollowingVoter)."""
        if isinstance(self.state, LeaderState):
            self.state.note_contact(replica_id)

    # Callbacks of the roles

    def _run_action(self, action: RoleAction) -> None:
        """Run a role's action in its turn, and make the change of role that it returns."""
        self.event_queue.append(lambda: self._transition_within_epoch(action()))

    def maybe_transition(self, leader_id: int, epoch: int) -> bool:
        """Change the role if a response names a newer epoch, or the unknown leader of this one. Return False for an
        epoch that is older than this node's, or above MAX_EPOCH."""
        if not self.epoch <= epoch <= MAX_EPOCH:
            return False
        is_news = self.leader_id == NO_NODE and not self.has_led and leader_id in self.others
        if self.stopped or (epoch == self.epoch and not is_news):
            return True
        if leader_id in self.others:  # Decision quorum-leader-learned
            self.transition_to_follower(epoch, leader_id)
        else:  # If others report that this node leads, it has lost its state. It had voted for itself in that epoch.
            self.transition_to_unattached(epoch, voted_id=self.node_id if leader_id == self.node_id else NO_NODE)
        return True

    def _complete_shutdown(self) -> None:
        """Stop if a shutdown waits for the EndQuorumEpoch requests: they have responses, or the timeout has passed."""
        if self.is_shutting_down and not self.stopped:
            self._stop()

    # Changes of role

    def _transition_within_epoch(self, role: Role | None) -> None:
        """Make the change of role that an action returned. Epoch, leader and vote stay, except that a candidate raises
        the epoch and votes for itself, and that an elected or resigned leader changes ``leader_id``."""
        match role:
            case Role.UNATTACHED:
                self.transition_to_unattached(self.epoch, voted_id=self.voted_id)
            case Role.FOLLOWER:
                self.transition_to_follower(self.epoch, self.leader_id)
            case Role.PROSPECTIVE:
                self.transition_to_prospective()
            case Role.CANDIDATE:
                self.transition_to_candidate()
            case Role.LEADER:
                self.transition_to_leader()
            case Role.RESIGNED:
                self._transition_to_resigned()

    def transition_to_unattached(
        self, epoch: int, *, voted_id: int, then: Callable[[], None] | None = None, starting: bool = False
    ) -> None:
        self._transition_to(UnattachedState(self._context, ElectionState(epoch, NO_NODE, voted_id), starting), then)

    def transition_to_follower(self, epoch: int, leader_id: int, then: Callable[[], None] | None = None) -> None:
        voted_id = self.voted_id if epoch == self.epoch else NO_NODE
        self._transition_to(
            FollowerState(self._context, ElectionState(epoch, leader_id, voted_id), self._download), then
        )

    def transition_to_prospective(self) -> None:
        starting = isinstance(self.state, UnattachedState) and self.state.starting
        self._transition_to(
            ProspectiveState(self._context, ElectionState(self.epoch, self.leader_id, self.voted_id), starting)
        )

    def transition_to_candidate(self) -> None:
        self._transition_to(CandidateState(self._context, ElectionState(self.epoch + 1, NO_NODE, self.node_id)))

    def transition_to_leader(self) -> None:
        self._context.timing.leader_found()
        self._transition_to(
            LeaderState(self._context, ElectionState(self.epoch, self.node_id, self.voted_id), self.listener)
        )

    def resign(self, why: str) -> None:
        assert isinstance(self.state, LeaderState), f"a {self.role.value} resigns"
        self._transition_within_epoch(self.state.resign(why))

    def _transition_to_resigned(self) -> None:
        assert isinstance(self.state, LeaderState), f"a {self.role.value} resigns"
        election = ElectionState(self.epoch, NO_NODE, self.voted_id)
        self._transition_to(
            ResignedState(
                self._context,
                election,
                self.state.preferred_successors(),
                self.is_shutting_down,
                self._complete_shutdown,
            )
        )

    def _transition_to(self, state: EpochState, then: Callable[[], None] | None = None) -> None:
        """End the present role, write the epoch, leader and vote of ``state``, and start ``state`` when they are
        synced. ``then`` responds to the request that led to the change.

        Every change of role goes through here. A change that the table does not allow is an assertion.
        """
        before, led_epoch = self.state, self.epoch
        epoch = state.election.epoch
        assert may_follow(before.role, state.role, epoch - led_epoch, self.is_voter), (
            f"{before.role} of epoch {led_epoch} becomes {state.role} of epoch {epoch}"
        )
        assert not self.event_queue.is_blocked, (
            f"{before.role} becomes {state.role} while an earlier change is made durable"
        )
        self.state = state
        before.stop()
        self.event_queue.is_blocked = True
        if isinstance(before, LeaderState) and before.start_offset >= 0:
            self.listener.leadership_lost(led_epoch)
        self._write_quorum_state(lambda: self._start_role(state, before, then))

    def _start_role(self, state: EpochState, before: EpochState, then: Callable[[], None] | None) -> None:
        self.event_queue.is_blocked = False
        self._fail_parked_fetches(before)
        if then is not None:
            then()
        leader_and_epoch = (self.reported_leader_id, self.epoch)
        if self._last_notified != leader_and_epoch:
            self._last_notified = leader_and_epoch
            self.ports.note("epoch_changed", ("epoch", self.epoch), ("leader", self.reported_leader_id))
            self.listener.leader_changed(self.reported_leader_id, self.epoch)
        if self.is_shutting_down and state.role is not Role.RESIGNED and not self.stopped:
            self._stop()
        if state.live:
            self._transition_within_epoch(state.start())
        self.event_queue.drain()

    def fetch_error_response(self, error: Error) -> FetchResponse:
        """Return the response to a fetch of the metadata log with this error of the partition."""
        return build_fetch_response(error, self.leader_id, self.epoch, self.high_watermark, self.log.start_offset)

    def _fail_parked_fetches(self, state: EpochState) -> None:
        for respond in state.take_parked_fetches():
            respond(self.fetch_error_response(ErrorCode.not_leader_or_follower))

    # The state on disk

    def _write_quorum_state(self, done: Callable[[], None]) -> None:
        """Write epoch, vote and leader to ``quorum-state``, and call ``done`` when they are synced. If only the leader
        became unknown, the file stays as it is, because no other node relies on the leader in it."""
        on_disk = self._synced
        epoch, leader_id, voted_id = self.state.election
        is_same_vote = (on_disk.leader_epoch, on_disk.voted_id) == (epoch, voted_id)
        if is_same_vote and leader_id in (NO_NODE, on_disk.leader_id):
            done()
            return
        state = QuorumStateData(leader_id, epoch, voted_id, self.voters)
        path = write_quorum_state(self._disk, state)

        def synced() -> None:
            self._synced = state
            is_new = (state.leader_epoch, state.voted_id) != (on_disk.leader_epoch, on_disk.voted_id)
            if is_new and state.voted_id != NO_NODE:
                self.ports.note("voted", ("epoch", state.leader_epoch), ("candidate", state.voted_id))
            done()

        put_in_place(self._disk, self.ports, path, synced)

    def _read_quorum_state(self) -> QuorumStateData:
        """Return the content of ``quorum-state``, or the log's epoch without leader and vote if that epoch is newer,
        which means that the file was lost. Raise StartRefused."""
        state = read_quorum_state(self._disk)
        if state is not None and state.voters and tuple(sorted(state.voters)) != self.voters:
            raise StartRefused(
                f"The directory belongs to a quorum of voters {_listed(state.voters)}, not {_listed(self.voters)}: "
                "give controller.quorum.voters as it was, or another directory."
            )
        log_epoch = self.log.end.epoch
        if state is None or state.leader_epoch < log_epoch:  # Decision kept-epoch-behind-log
            return QuorumStateData(NO_NODE, log_epoch, NO_NODE, self.voters)
        return state

    def _initialize(self) -> None:
        """Take the first role, in the epoch from before the restart: FOLLOWER if another node led it, otherwise
        UNATTACHED. The only voter is PROSPECTIVE at once. A node that led the epoch never leads it again, because it
        may have lost records that it wrote in it."""
        state = self._synced
        self.event_queue.is_blocked = False
        if self.voters == (self.node_id,):
            self.transition_to_prospective()
        elif state.leader_id in self.others:  # Decision start-follows-kept-leader
            self.transition_to_follower(state.leader_epoch, state.leader_id)
        else:
            led = state.leader_id == self.node_id
            voted_id = self.node_id if led else state.voted_id
            self.transition_to_unattached(state.leader_epoch, voted_id=voted_id, starting=True)

    # Shutdown

    def _begin_shutdown(self, done: Callable[[], None]) -> None:
        if self.stopped:
            done()
            return
        self._shutdown_completed = done
        self.is_shutting_down = True
        if self.is_leader and self.others:  # Decision shutdown-resigns
            timeout_us = self._context.timing.request_timeout_ms * 1000
            self._context.node.after(timeout_us, self._complete_shutdown)
            self.resign("it is shutting down")
        else:
            self._stop()

    def _stop(self) -> None:
        self.stopped = True
        state = self.state
        state.stop()
        if isinstance(state, LeaderState) and state.start_offset >= 0:
            self.listener.leadership_lost(self.epoch)
        self._fail_parked_fetches(state)
        if self._shutdown_completed is not None:
            self._shutdown_completed()


def _listed(voters: Sequence[int]) -> str:
    return ",".join(str(voter) for voter in sorted(voters))
