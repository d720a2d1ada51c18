"""A quorum that writes a transcript: one line for each request and response, role, high watermark and log end."""

from functools import partial

from reference_broker.metadata.records import TopicRecord, encode
from reference_broker.quorum.messages import (
    metadata_partition_of,
    read_begin_quorum_epoch_request,
    read_end_quorum_epoch_request,
    read_fetch_response,
    read_quorum_epoch_response,
    read_vote_request,
    read_vote_response,
)
from reference_broker.quorum.tests.quorum_ports import SentRequest
from reference_broker.quorum.tests.quorum_world import Process, SimulatedQuorum, _snapshot
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.records.batch import iterate
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import error_name


class TranscriptWorld(SimulatedQuorum):
    """``lines``: the lines since the last command. Fetches without any change are omitted."""

    def __init__(self, seed: int, voters: int, observers: int, **settings: str) -> None:
        self.lines: list[str] = []
        self._roles: dict[int, str] = {}
        self._high_watermarks: dict[int, int] = {}
        self._ends: dict[int, OffsetAndEpoch] = {}
        super().__init__(seed, voters, observers, **settings)

    def step(self) -> None:
        super().step()
        self.look()

    def look(self) -> None:
        """Write the changes of the live nodes."""
        for node_id, process in sorted(self.processes.items()):
            quorum = process.quorum
            self._look_at_role(node_id, f"{quorum.role.value} in epoch {quorum.epoch}")
            self._look_at_end(node_id, quorum.log.end)
            high_watermark = quorum.high_watermark
            if high_watermark > self._high_watermarks.get(node_id, 0):
                self.lines.append(f"* node {node_id}: the high watermark is {high_watermark}")
            self._high_watermarks[node_id] = high_watermark

    def forget(self, node_id: int) -> None:
        """Forget the state of a node before its next life."""
        self._roles.pop(node_id, None)
        self._high_watermarks.pop(node_id, None)

    def append(self, count: int) -> None:
        """Append to the log of the leader of the highest epoch, one batch for each record."""
        assert self.leader is not None, "nobody leads"
        self.append_to(self.leader, count)

    def append_to(self, process: Process, count: int) -> None:
        for _ in range(count):
            self.appended += 1
            value = encode(TopicRecord(name=f"t{self.appended}", topic_id=bytes(16)))
            process.deliver(partial(process.quorum.append, [value]))
        self.look()

    def snapshot(self, node_id: int) -> None:
        _snapshot(self.processes[node_id])
        latest = self.processes[node_id].snapshots.latest
        start = self.processes[node_id].log.start_offset
        self.lines.append(f"* node {node_id}: the newest snapshot ends at {_at(latest)}, its log begins at {start}")

    def responded(self, process: Process, requester: int, request: SentRequest, body: object) -> None:
        super().responded(process, requester, request, body)
        line = _conversation(f"node {requester} -> node {process.node_id}", request, body)
        if line:
            self.lines.append(line)

    def _look_at_role(self, node_id: int, role: str) -> None:
        if self._roles.get(node_id) != role:
            self._roles[node_id] = role
            self.lines.append(f"* node {node_id}: {role}")

    def _look_at_end(self, node_id: int, end: OffsetAndEpoch) -> None:
        before = self._ends.get(node_id, OffsetAndEpoch(0, 0))
        if end.offset < before.offset:
            self.lines.append(f"* node {node_id}: the log is cut from {_at(before)} back to {_at(end)}")
        self._ends[node_id] = end


def _at(place: OffsetAndEpoch | None) -> str:
    return "nowhere" if place is None else f"offset {place.offset} (epoch {place.epoch})"


def _conversation(who: str, request: SentRequest, body: object) -> str:
    key = ApiKey(request.api_key)
    if key is ApiKey.FETCH:
        return _fetch(who, request, body)
    if key is ApiKey.VOTE:
        wanted, response = read_vote_request(request.body), read_vote_response(body)
        assert wanted is not None, "a quorum requests the metadata partition"
        kind = "pre-vote" if wanted.pre_vote else "vote"
        text = f"{who}: {kind} for epoch {wanted.epoch}, my log ends at {_at(wanted.end)}"
        granted = "granted" if response is not None and response.granted else "not granted"
        return f"{text}: {granted}" + _epoch_suffix(response, wanted.epoch)
    epoch_change = (
        read_begin_quorum_epoch_request(request.body)
        if key is ApiKey.BEGIN_QUORUM_EPOCH
        else read_end_quorum_epoch_request(request.body)
    )
    assert epoch_change is not None, "a quorum names the metadata partition"
    verb = "I lead" if key is ApiKey.BEGIN_QUORUM_EPOCH else "I resign from"
    after = (
        f", try {' then '.join(map(str, epoch_change.preferred_successors))}"
        if epoch_change.preferred_successors
        else ""
    )
    return f"{who}: {verb} epoch {epoch_change.epoch}{after}" + _epoch_suffix(
        read_quorum_epoch_response(body), epoch_change.epoch
    )


def _epoch_suffix(response: object, requested_epoch: int) -> str:
    epoch = getattr(response, "epoch", requested_epoch)
    return f", the epoch is {epoch}" if epoch > requested_epoch else ""


def _fetch(who: str, request: SentRequest, body: object) -> str:
    wanted, response = metadata_partition_of(request.body), read_fetch_response(body)  # type: ignore[arg-type]
    if wanted is None or response is None:
        return ""
    end = OffsetAndEpoch(wanted.fetch_offset, max(wanted.last_fetched_epoch, 0))
    text = f"{who}: fetch in epoch {wanted.current_leader_epoch} from {_at(end)}"
    if response.error:
        leader = f"node {response.leader_id} leads" if response.leader_id >= 0 else "I know no leader of"
        return f"{text}: {error_name(response.error)}, {leader} epoch {response.epoch}"
    if response.snapshot is not None:
        return f"{text}: take the snapshot that ends at {_at(response.snapshot)}"
    if response.diverging is not None:
        return f"{text}: our logs part, mine ends that epoch at {_at(response.diverging)}"
    batches = len(list(iterate(bytes(response.records)))) if response.records else 0
    return f"{text}: {batches} batch{'es' if batches > 1 else ''}" if batches else ""
