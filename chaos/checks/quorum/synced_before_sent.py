"""What a voter must sync before it sends (KIP-595): an epoch, a vote, or the end of its log.

The checks read the bytes that a power loss would leave, not what the node believes to be durable.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.checks.check import Check, CheckContext, QuorumCheck
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.quorum.quorum_view import Member, Seen
from chaos.sim.disk import SimDisk
from reference_broker.core.events import Closed, Effect, Event, Note, PeerReply, Reply, Request, Send

if TYPE_CHECKING:
    from reference_broker.core.node import Node

FETCH, VOTE, BEGIN_EPOCH, END_EPOCH, FETCH_SNAPSHOT = 1, 52, 53, 54, 59
SENT = frozenset((FETCH, VOTE, BEGIN_EPOCH, END_EPOCH, FETCH_SNAPSHOT))
"""Requests that name the epoch of their sender."""
REPLIED = frozenset((FETCH, VOTE, BEGIN_EPOCH, END_EPOCH))
"""Requests whose responses name the epoch of their sender."""
METADATA_ID = (1).to_bytes(16, "big")
"""Topic ID of the metadata log."""
RAFT_CHANNEL = 0
"""The channel of requests of the quorum to another node."""
QUORUM_STATE = "__cluster_metadata-0/quorum-state"


class DurableState(NamedTuple):
    """The content of quorum-state after a power loss."""

    epoch: int
    voted_id: int
    leader_id: int


def durable_bytes(node: "Node", path: str) -> bytes | None:
    """Return the bytes that a power loss leaves of a node's file, or None without a simulated disk or the file."""
    disk = getattr(node.broker.disk, "inner", node.broker.disk)
    return disk.durable(path) if isinstance(disk, SimDisk) else None


def _durable_state(node: "Node") -> DurableState:
    data = durable_bytes(node, QUORUM_STATE)
    if data is None:
        return DurableState(-1, -1, -1)
    try:
        state = json.loads(data)
        return DurableState(int(state["leaderEpoch"]), int(state["votedId"]), int(state["leaderId"]))
    except (ValueError, KeyError):  # The name of a file is durable, and its content is not.
        return DurableState(-1, -1, -1)


def _metadata(body: Any) -> Any:
    """Return the only partition of a message between voters, or None if there is none or it is of another topic."""
    topics = body.responses if hasattr(body, "responses") else body.topics
    if len(topics) != 1 or getattr(topics[0], "topic_id", METADATA_ID) != METADATA_ID:
        return None
    return topics[0].partitions[0] if len(topics[0].partitions) == 1 else None


def _epoch_of_send(effect: Send) -> int:
    """Return the epoch that the request names as that of its sender, -1 if it names none."""
    if effect.api_key == FETCH and not is_fetch_of_metadata(effect.body):
        return -1
    partition = _metadata(effect.body)
    if partition is None:
        return -1
    if effect.api_key == VOTE:
        return int(partition.replica_epoch)
    return int(partition.current_leader_epoch if effect.api_key in (FETCH, FETCH_SNAPSHOT) else partition.leader_epoch)


def is_fetch_of_metadata(body: Any) -> bool:
    """Return whether a Fetch request is for the metadata log alone."""
    topics: Any = getattr(body, "topics", ())
    return len(topics) == 1 and getattr(topics[0], "topic_id", None) == METADATA_ID


def _epoch_of_reply(effect: Reply) -> int:
    """Return the epoch that the response names as that of its sender, -1 if it names none."""
    body: Any = effect.body
    if body is None or body.error_code:
        return -1
    if effect.api_key != FETCH:
        partition = _metadata(body)
        return -1 if partition is None else int(partition.leader_epoch)
    if len(body.responses) != 1 or body.responses[0].topic_id != METADATA_ID:
        return -1
    leader = body.responses[0].partitions[0].current_leader
    return -1 if leader is None else int(leader.leader_epoch)


class EpochDurableBeforeUse(Check):
    """monotonic-epoch: a node names an epoch in a message only once the epoch is durable there.

    KIP-595: the state of the quorum is persisted before a node acts in an epoch. So a candidate requests votes, a voter
    responds, a leader announces itself, and a follower fetches only in an epoch that no power loss takes away.
    """

    guarantee = "monotonic-epoch"
    acts_on = (*((Send, key) for key in sorted(SENT)), *sorted(REPLIED), type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._durable: dict[int, int] = {}
        """by node: the newest epoch that was seen to be durable in this process"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if event is None:
            self._durable.pop(node_id, None)
        for effect in effects:
            kind = type(effect)
            if kind is Send and effect.api_key in SENT:  # type: ignore[union-attr]
                epoch = _epoch_of_send(effect)  # type: ignore[arg-type]
            elif kind is Reply and effect.api_key in REPLIED:  # type: ignore[union-attr]
                epoch = _epoch_of_reply(effect)  # type: ignore[arg-type]
            else:
                continue
            if epoch > self._durable.get(node_id, 0):
                self._judge(at_us, node, effect, epoch)

    def _judge(self, at_us: int, node: "Node", effect: Any, epoch: int) -> None:
        self.evidence += 1
        state = _durable_state(node)
        self._durable[node.broker.node_id] = epoch
        if state.epoch < epoch:
            what = f"a request to node {effect.peer}" if type(effect) is Send else "a response"
            self.violated(
                at_us,
                f"node {node.broker.node_id} names epoch {epoch} in {what} (API key {effect.api_key}), and a power "
                f"loss would leave it in epoch {state.epoch} (KIP-595)",
            )


class FetchFromDurableEnd(QuorumCheck):
    """log-matching: a voter fetches from the end of its log, all of which is durable, and names the epoch there.

    KIP-595: the offset of a voter's fetch acknowledges everything before it, so the voter has synced that. Offset and
    epoch together show the leader whether the logs agree. A fetch from offset 0 with epoch 0 only looks up the leader's
    snapshot (S-10).
    """

    guarantee = "log-matching"
    acts_on = ((Send, FETCH),)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._durable: dict[int, tuple[int, int, int]] = {}
        """by node: its incarnation, and the end that was seen to be durable with the epoch there"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        for effect in effects:
            if type(effect) is Send and effect.api_key == FETCH and is_fetch_of_metadata(effect.body):
                member = self.quorum.nodes[node.broker.node_id]
                if member.is_voter:
                    self._judge(at_us, node, member, _metadata(effect.body))

    def _judge(self, at_us: int, node: "Node", member: Member, partition: Any) -> None:
        offset, epoch = int(partition.fetch_offset), int(partition.last_fetched_epoch)
        named = (member.seen.incarnation, offset, epoch)
        if (offset, epoch) == (0, 0) or self._durable.get(member.node_id) == named:
            return
        self.evidence += 1
        self._durable[member.node_id] = named
        who, log = f"node {member.node_id} fetches from {offset} in epoch {epoch}", node.broker.quorum_node.log.log
        if offset != log.log_end_offset:
            self.violated(at_us, f"{who}, and its log ends at {log.log_end_offset} (KIP-595)")
            return
        if offset == log.log_start_offset:  # S-9: a snapshot has replaced the log, which ends where the snapshot does.
            ids = [(int(each.offset), int(each.epoch)) for each in node.broker.quorum_node.store.ids]
            if (offset, epoch) not in ids:
                self.violated(at_us, f"{who}, and its log is empty after one of the snapshots {ids} (S-9)")
            return
        last = next(reversed(member.batches.values()), None)
        if last is not None and last.last_offset + 1 == offset and last.epoch != epoch:
            self.violated(at_us, f"{who}, and its log ends with {last.named} (KIP-595)")
        path = f"__cluster_metadata-0/{log.bases[-1]:020d}.log"
        disk = getattr(node.broker.disk, "inner", node.broker.disk)
        durable = durable_bytes(node, path)
        if durable is not None and len(durable) < disk.size(path):
            self.violated(
                at_us, f"{who}, and {len(durable)} of {disk.size(path)} bytes of {path} are durable (KIP-595)"
            )


class _Fetched(NamedTuple):
    """A fetch of the metadata log."""

    offset: int
    epoch: int
    """epoch of the last record that the fetcher has"""
    replica_id: int


class MetadataFetchResponses(QuorumCheck):
    """log-matching: a leader sends records only to a replica whose log is a prefix of its own.

    KIP-595: to any other replica it names the largest epoch of its own log that is not above the replica's, and where
    that epoch ends. S-10: it names its newest snapshot to a fetch at offset 0 if it has any, below its log's start, at
    its log's start with another epoch than the oldest snapshot's, or with an older epoch than that one.

    Only the offset of a fetch that agrees with the leader's log shows how much of that log a voter has, and counts
    towards the high watermark (KafkaRaftClient.tryCompleteFetchRequest).
    """

    guarantee = "log-matching"
    acts_on = (FETCH, Closed, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._pending = PendingRequests[_Fetched]()
        self._agreed: dict[tuple[int, int, int], set[_Fetched]] = {}
        """by leader, epoch and voter: its fetches, without those of which the leader said that they diverge"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if event is None:
            self._pending.restarted(node_id)
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        elif type(event) is Request and event.api_key == FETCH and is_fetch_of_metadata(event.body):
            partition = _metadata(event.body)
            if partition is not None:
                replica_id: Any = getattr(event.body, "replica_id", -1)
                named = _Fetched(int(partition.fetch_offset), int(partition.last_fetched_epoch), int(replica_id))
                self._pending.add(node_id, event, named)
                of_term = node_id, self.quorum.nodes[node_id].seen.epoch, named.replica_id
                self._agreed.setdefault(of_term, set()).add(named)
        if not self._pending:
            return
        for effect in effects:
            if type(effect) is Reply and effect.api_key == FETCH:
                fetch = self._pending.pop(node_id, effect)
                if fetch is not None:
                    self._responded(at_us, node, fetch, effect.body)

    def _responded(self, at_us: int, node: "Node", fetch: _Fetched, body: Any) -> None:
        if body is None or body.error_code or len(body.responses) != 1 or body.responses[0].partitions[0].error_code:
            return
        member, data = self.quorum.nodes[node.broker.node_id], body.responses[0].partitions[0]
        if not member.seen.leads:  # It was elected, or sends its first response, in this event.
            return
        self.evidence += 1
        if data.diverging_epoch is not None:
            self._judge_end(at_us, node, member, fetch)
        replica = node.broker.quorum_node
        start, end = replica.log.start_offset, replica.log.log.log_end_offset
        records, wrong = data.records or b"", ""
        is_of_epoch = fetch.epoch == member.seen.epoch and start < fetch.offset <= end
        if not is_of_epoch or data.snapshot_id is not None or data.diverging_epoch is not None:
            wrong = _wrong_validity(member, replica, start, end, fetch, data)
        if not wrong and len(records) and int.from_bytes(records[:8]) > fetch.offset:
            wrong = f"its records begin at {int.from_bytes(records[:8])} (KIP-595)"
        if wrong:
            self.violated(
                at_us,
                f"node {member.node_id}, whose log has offsets {start} to {end}, responds to a fetch from "
                f"{fetch.offset} in epoch {fetch.epoch}: {wrong}",
            )

    def _judge_end(self, at_us: int, node: "Node", member: Member, fetch: _Fetched) -> None:
        agreed = self._agreed.setdefault((member.node_id, member.seen.epoch, fetch.replica_id), set())
        agreed.discard(fetch)
        voter: Any = getattr(node.broker.quorum_node.quorum.state, "voters", {}).get(fetch.replica_id)
        is_counted = voter is not None and voter.end_offset == fetch.offset
        if is_counted and all(each.offset != fetch.offset for each in agreed):
            self.violated(
                at_us,
                f"leader {member.node_id} of epoch {member.seen.epoch} counts {fetch.offset} as the end of voter "
                f"{fetch.replica_id}, whose log diverges there (KIP-595)",
            )


def _wrong_validity(member: Member, replica: Any, start: int, end: int, fetch: _Fetched, data: Any) -> str:
    """Return what is wrong with the snapshot or the diverging epoch that the response names, or lacks."""
    ids = [(int(each.offset), int(each.epoch)) for each in replica.store.ids]
    named = data.snapshot_id and (int(data.snapshot_id.end_offset), int(data.snapshot_id.epoch))
    diverging = data.diverging_epoch and (int(data.diverging_epoch.end_offset), int(data.diverging_epoch.epoch))
    needed = _needed_snapshot(ids, start, fetch)
    if named != needed:
        return f"it names snapshot {named}, not {needed} (S-10)"
    if needed is None:
        agreed = _agreed(member, ids, start, end, fetch)
        is_prefix = agreed[1] == fetch.epoch and fetch.offset <= agreed[0]
        if diverging != (None if is_prefix else agreed):
            return f"it names the diverging epoch {diverging}, and epoch {agreed[1]} ends at {agreed[0]} (KIP-595)"
    if len(data.records or b"") and (needed or diverging):
        return "it has records, too (KIP-595)"
    return ""


def _needed_snapshot(ids: Sequence[tuple[int, int]], start: int, fetch: _Fetched) -> tuple[int, int] | None:
    """Return the newest snapshot if the fetcher needs it (S-10)."""
    if not ids:
        return None
    offset, epoch = ids[0]
    at_start = fetch.offset == start == offset and fetch.epoch != epoch
    return ids[-1] if fetch.offset == 0 or fetch.offset < start or at_start or fetch.epoch < epoch else None


def _agreed(member: Member, ids: Sequence[tuple[int, int]], start: int, end: int, fetch: _Fetched) -> tuple[int, int]:
    """Return where the largest epoch of the log ends that is not above the fetcher's, and that epoch. Batches of this
    event are not known yet, but they are of the leader's own epoch."""
    if fetch.offset == 0 == start:
        return 0, fetch.epoch  # An empty log is a prefix of each one.
    ends_at = end if fetch.epoch >= member.seen.epoch else min(end, member.seen.end_offset)
    for batch in reversed(member.batches.values()):
        if batch.epoch <= fetch.epoch or batch.base_offset < start:
            return (
                (ends_at, batch.epoch)
                if batch.base_offset >= start
                else (start, _epoch_before(ids, start, fetch.epoch))
            )
        ends_at = batch.base_offset
    return ends_at, _epoch_before(ids, start, fetch.epoch)


def _epoch_before(ids: Sequence[tuple[int, int]], start: int, epoch_of_fetch: int) -> int:
    """Return the epoch of the snapshot that ends at the log's start. Kafka: without one, an epoch below all known ones
    is named as it was requested, and ends where the first known one begins (LeaderEpochFileCache.endOffsetFor)."""
    return next((epoch for offset, epoch in ids if offset == start), epoch_of_fetch)


class DivergenceCut(QuorumCheck):
    """log-matching: a follower cuts its log where it diverges from the leader's, no further, and gets past that.

    KIP-595: a leader responds to a fetch that diverges with the largest epoch that its log has up to the fetcher's, and
    where that epoch ends. The follower keeps the records of its own largest epoch that is not above that one, and no
    more of them than the leader has. So the next fetch agrees with the leader's log, or names an older epoch. The first
    response by which it would cut committed records may be damaged, so it may be ignored.
    """

    guarantee = "log-matching"
    acts_on = (PeerReply, "truncated", type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._repeated: dict[int, tuple[tuple[int, int, int], int]] = {}
        """by node: epoch and end of its log at the last divergence, and how often in a row they were the same"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if type(event) is not PeerReply:
            if event is None:
                self._repeated.pop(node_id, None)
            return
        diverging = _diverging(event)
        if diverging is None or min(diverging) < 0:
            if _has_records(event):
                self._repeated.pop(node_id, None)
            return
        member = self.quorum.nodes[node_id]
        if member.replica is None:
            return
        self.evidence += 1
        if any(_is_cut(effect) for effect in effects):
            self._judge(at_us, node, member, diverging)
        seen = member.seen
        state = (seen.epoch, seen.leader_id, seen.end_offset)
        known, times = self._repeated.get(node_id, (state, 0))
        self._repeated[node_id] = state, times + 1 if known == state else 1
        if known == state and times + 1 == MAX_REPEATED:
            self.violated(
                at_us,
                f"node {node_id} has got a diverging epoch {MAX_REPEATED} times in a row with its log's end at "
                f"{seen.end_offset}, in epoch {seen.epoch} (KIP-595)",
            )

    def _judge(self, at_us: int, node: "Node", member: Member, diverging: tuple[int, int]) -> None:
        """Judge a log that was cut in this event, by its batches before the event."""
        end, epoch = diverging
        start, now = member.seen.start_offset, node.broker.quorum_node.log.log.log_end_offset
        own_end = next((batch.base_offset for batch in member.batches.values() if batch.epoch > epoch), None)
        own_end = max(start, member.seen.end_offset if own_end is None else own_end)
        has_epoch = any(batch.epoch == epoch for batch in member.batches.values() if batch.base_offset >= start)
        kept = own_end if not has_epoch else min(own_end, end)
        inside = next(
            (batch for batch in member.batches.values() if batch.base_offset < kept <= batch.last_offset), None
        )
        kept = kept if inside is None else inside.base_offset  # A batch is kept or cut as a whole.
        if not min(kept, end) <= now <= kept:
            self.violated(
                at_us,
                f"node {member.node_id} cuts its log from {member.seen.end_offset} to {now}: the leader has epoch "
                f"{epoch} up to {end}, and this log has that epoch or older ones up to {own_end} (KIP-595)",
            )


MAX_REPEATED = 4
"""A follower that makes progress gets another diverging epoch each time. One response may be ignored as damaged."""


def _is_cut(effect: Effect) -> bool:
    return type(effect) is Note and effect.what == "truncated" and effect.fields[0][0] == "offset"


def _diverging(event: PeerReply) -> tuple[int, int] | None:
    """Return the end offset and the diverging epoch that a response to a fetch of the metadata log names."""
    partition = fetched_metadata(event)
    named = None if partition is None else partition.diverging_epoch
    return None if named is None else (int(named.end_offset), int(named.epoch))


def _has_records(event: PeerReply) -> bool:
    partition = fetched_metadata(event)
    return partition is not None and len(partition.records or b"") > 0


def fetched_metadata(event: PeerReply) -> Any:
    """Return the partition of a response to a fetch of the metadata log, or None for any other or with an error."""
    topics: Any = getattr(event.body, "responses", ())
    if event.channel != RAFT_CHANNEL or len(topics) != 1 or getattr(topics[0], "topic_id", None) != METADATA_ID:
        return None
    partition = topics[0].partitions[0] if len(topics[0].partitions) == 1 else None
    return None if partition is None or partition.error_code else partition


class _RequestedVote(NamedTuple):
    """A request for a vote."""

    candidate: int
    epoch: int
    end: tuple[int, int]
    """epoch of the last record, and end offset"""
    is_binding: bool


def _requested_vote(body: Any) -> _RequestedVote | None:
    partition = _metadata(body)
    if partition is None:
        return None
    end = int(partition.last_offset_epoch), int(partition.last_offset)
    return _RequestedVote(int(partition.replica_id), int(partition.replica_epoch), end, not partition.pre_vote)


class OneVotePerEpoch(QuorumCheck):
    """one-leader-per-epoch: a directory gives its vote of an epoch to one candidate, durably, and over restarts.

    KIP-595: a voter votes once in an epoch, and persists the vote before it responds. A candidate votes for itself
    before it requests the votes of others. A vote goes to a candidate whose log is at least as new as the voter's:
    a later last epoch, or the same one and no smaller end. A voter that has not voted in the epoch, and knows no leader
    of it, grants such a candidate its vote. Pre-votes (KIP-996) are bound only to the rule about logs.
    """

    guarantee = "one-leader-per-epoch"
    acts_on = (VOTE, (Send, VOTE), Closed, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_changed.append(self.changed)
        self._pending = PendingRequests[_RequestedVote]()
        self._votes: dict[tuple[int, int], dict[int, int]] = {}
        """by node and number of its directory: the candidate of each epoch. Physical: a node with another directory
        cannot remember its votes."""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if event is None:
            self._pending.restarted(node_id)
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        elif type(event) is Request and event.api_key == VOTE:
            requested = _requested_vote(event.body)
            if requested is not None:
                self._pending.add(node_id, event, requested)
        for effect in effects:
            if type(effect) is Reply and effect.api_key == VOTE:
                self._responded(at_us, node, effect)
            elif type(effect) is Send and effect.api_key == VOTE:
                own = _requested_vote(effect.body)
                if own is not None and own.is_binding:
                    self._voted(at_us, node, own.epoch, own.candidate)

    def _responded(self, at_us: int, node: "Node", reply: Reply) -> None:
        requested = self._pending.pop(node.broker.node_id, reply)
        body: Any = reply.body
        partition = None if requested is None or body is None or body.error_code else _metadata(body)
        if requested is None or partition is None or int(partition.error_code):
            return
        self.evidence += 1
        end = node.broker.quorum_node.log.end
        if not partition.vote_granted:
            if requested.is_binding and requested.end >= (end.epoch, end.offset):
                self._refused(at_us, node, requested, partition)
            return
        if requested.end < (end.epoch, end.offset):
            self.violated(
                at_us,
                f"node {node.broker.node_id} grants {'its vote' if requested.is_binding else 'a pre-vote'} of epoch "
                f"{requested.epoch} to node {requested.candidate}, whose log ends at {requested.end[1]} in epoch "
                f"{requested.end[0]}; "
                f"its own ends at {end.offset} in epoch {end.epoch} (KIP-595)",
            )
        if requested.is_binding:
            self._voted(at_us, node, requested.epoch, requested.candidate)

    def _refused(self, at_us: int, node: "Node", requested: _RequestedVote, response: Any) -> None:
        """Judge a vote that a candidate with a new enough log did not get."""
        state, epoch = _durable_state(node), requested.epoch
        is_free = state.epoch == epoch == int(response.leader_epoch) and state.voted_id < 0
        if is_free and int(response.leader_id) < 0 and state.leader_id < 0:
            self.violated(
                at_us,
                f"node {node.broker.node_id} refuses node {requested.candidate} its vote of epoch {epoch}, although it "
                f"is free to vote, and that log is new enough (KIP-595)",
            )

    def _voted(self, at_us: int, node: "Node", epoch: int, candidate: int) -> None:
        """Judge a vote that leaves the node in this event."""
        node_id = node.broker.node_id
        votes = self._votes.setdefault((node_id, self.quorum.fault_times.directories.get(node_id, 0)), {})
        known = votes.setdefault(epoch, candidate)
        if known != candidate:
            self.violated(at_us, f"node {node_id} votes for nodes {known} and {candidate} in epoch {epoch} (KIP-595)")
        state = _durable_state(node)
        if state.epoch < epoch or (state.epoch == epoch and state.voted_id != candidate):
            self.violated(
                at_us,
                f"node {node_id} votes for node {candidate} in epoch {epoch}, and a power loss would leave it in epoch "
                f"{state.epoch} with a vote for node {state.voted_id} (KIP-595)",
            )

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        """A new process has the vote of the one before. It does not need it where it knows the leader of the epoch."""
        if before.incarnation == after.incarnation or after.leader_id >= 0:
            return
        directory = self.quorum.fault_times.directories.get(member.node_id, 0)
        wanted = self._votes.get((member.node_id, directory), {}).get(after.epoch)
        if wanted is not None:
            self.evidence += 1
            if member.replica.quorum.voted_id != wanted:
                self.violated(
                    at_us,
                    f"node {member.node_id} starts in epoch {after.epoch} with a vote for node "
                    f"{member.replica.quorum.voted_id}, and it had voted for node {wanted} (KIP-595)",
                )
