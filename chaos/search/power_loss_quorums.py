"""Scripts of the metadata quorum for enumerated power losses: a voter, snapshots.

The script plays the other nodes, the clock and the network. What is owed is what others may rely on: votes and epochs
in responses, offsets in the fetches that are sent, records below the high watermark, snapshots that are held.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeAlias

from chaos.checks.log.batches import batches_of
from chaos.checks.log.log_folders import batches_in, contradictions, false_claims, folder_of, segments_of
from chaos.search.power_losses import Resumed, Script, require
from chaos.sim.disk import SimDisk
from reference_broker.metadata.tests.metadata_world import topic_id, topic_records
from reference_broker.quorum.messages import RaftResponse, build_begin_quorum_epoch_request
from reference_broker.quorum.metadata_log import Diverging
from reference_broker.quorum.node_files import METADATA_DIRECTORY
from reference_broker.quorum.raft_handlers import handle_begin_quorum_epoch
from reference_broker.quorum.snapshots.messages import read_requests
from reference_broker.quorum.snapshots.tests.snapshot_world import Replica, Transfer, content, replayed, setting
from reference_broker.quorum.tests.quorum_alone import CLUSTER, Alone, granted
from reference_broker.quorum.values import Installed, OffsetAndEpoch, Provenance
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey

STATE = "quorum-state"
AFTER = b"after the loss"
FAR = 1000
"""Offset of a candidate's log end, which no voter's is ahead of."""
SETTINGS = {"metadata_log_segment_bytes": "1024"}


class Voter(Alone):
    """Node 0 of three over a simulated disk. Syncs wait until ``sync_one``."""

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk=disk, auto_sync=False, **SETTINGS)  # type: ignore[arg-type]

    def sync(self, paths: tuple[str, ...], done: Callable[[], None]) -> None:
        disk: Any = self.disk
        begun = disk.begin_sync(paths)

        def end() -> None:
            disk.finish_sync(begun)
            done()

        self.syncs.append((paths, end))

    def follow(self, leader: int, epoch: int) -> None:
        """The leader of an epoch announces itself. Requests sent before are dropped."""
        self.sent.clear()
        handle_begin_quorum_epoch(
            self.quorum, build_begin_quorum_epoch_request(CLUSTER, -1, leader, epoch), lambda _: None
        )


@dataclass(frozen=True, slots=True)
class OwedVoter:
    """The state of a voter on which others rely."""

    epoch: int = 0
    """the largest epoch in a response or request"""
    vote: tuple[int, int] = (-1, -1)
    """the last vote, with its epoch"""
    durable: tuple[tuple[int, bytes], ...] = ()
    """the batches below an offset that was sent as this node's own, or below the high watermark"""
    given: frozenset[bytes] = frozenset()
    """all batches that the log ever got"""


class ResumedVoter(Resumed):
    def __init__(self, voter: Voter, owed: OwedVoter) -> None:
        self.voter = voter
        self.owed = owed

    def use(self) -> OwedVoter:
        """Vote in a new epoch, follow its leader, and append what it sends."""
        voter, epoch = self.voter, self.voter.quorum.epoch + 1
        responses = voter.request_vote(1, epoch, OffsetAndEpoch(FAR, epoch - 1))
        voter.sync_all()
        require([response.granted for response in responses] == [True], f"no vote in epoch {epoch}: {responses}")
        voter.follow(1, epoch)
        voter.sync_all()
        offset = _fetch_offset(voter)
        batch = _batch(offset, epoch, AFTER)
        voter.respond_to_fetch(batch, offset, epoch=epoch)
        voter.sync_all()
        end = _fetch_offset(voter)
        durable = dict(self.owed.durable) | {at: data for at, data in _stored(voter.disk).items() if at < end}
        require(batch in durable.values(), f"the batch at offset {offset} was not appended")
        return OwedVoter(epoch, (epoch, 1), tuple(sorted(durable.items())), self.owed.given | {batch})


class QuorumVoter(Script):
    name = "quorum"
    about = "a voter: votes, known epochs, appends, a divergent end that is truncated, a term as the leader"

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk)
        self.voter = Voter(disk)
        self.responses: list[tuple[int, list[RaftResponse]]] = []
        """Each vote that was requested: the candidate, and the responses so far."""
        self._owed = OwedVoter()

    def owed(self) -> OwedVoter:
        self._note()
        return self._owed

    def _note(self) -> None:
        """Add the epochs, votes and offsets that other nodes know from responses and requests by now."""
        owed, voter = self._owed, self.voter
        epoch, vote, end = owed.epoch, owed.vote, -1
        for candidate, responses in self.responses:
            for response in responses:
                epoch = max(epoch, response.epoch)
                if response.granted and response.epoch >= vote[0]:
                    vote = response.epoch, candidate
        for sent in voter.sent:
            if sent.api_key == ApiKey.VOTE and not sent.partition.pre_vote:
                epoch, vote = max(epoch, sent.partition.replica_epoch), (sent.partition.replica_epoch, 0)
            elif sent.api_key == ApiKey.FETCH:
                epoch = max(epoch, sent.partition.current_leader_epoch)
                end = sent.partition.fetch_offset
        if voter.quorum.is_leader:
            end = max(end, voter.quorum.high_watermark)
        stored = _stored(voter.disk)
        durable = dict(owed.durable) | {at: data for at, data in stored.items() if at < end}
        owed_now = OwedVoter(epoch, vote, tuple(sorted(durable.items())), owed.given | {*stored.values()})
        if owed_now != owed:
            self._owed = owed_now

    # --- the others -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        while self.voter.syncs:
            self.voter.sync_one()
            self._note()

    def request_vote(self, candidate: int, epoch: int, end: OffsetAndEpoch | None = None) -> None:
        end = OffsetAndEpoch(FAR, epoch - 1) if end is None else end
        self.responses.append((candidate, self.voter.request_vote(candidate, epoch, end)))
        self.settle()

    def follow(self, leader: int, epoch: int) -> None:
        self.voter.follow(leader, epoch)
        self.settle()

    def send(self, *values: bytes, leader: int, epoch: int) -> None:
        """The leader responds to the fetch with one batch for each value."""
        offset, data = _fetch_offset(self.voter), b""
        for value in values:
            batch = _batch(offset, epoch, value)
            data, offset = data + batch, offset + 1
            self._owed = replace(self._owed, given=self._owed.given | {batch})
        self.voter.respond_to_fetch(data, offset - len(values), leader=leader, epoch=epoch)
        self.settle()

    def diverge(self, end: OffsetAndEpoch, leader: int, epoch: int) -> None:
        """The leader responds with the end of that epoch in its log. Records after it need not survive any more."""
        durable = tuple((at, data) for at, data in self._owed.durable if at < end.offset)
        self._owed = replace(self._owed, durable=durable)
        self.voter.respond_to_fetch(validity=Diverging(end), leader=leader, epoch=epoch)
        self.settle()

    def play(self) -> None:
        voter = self.voter
        voter.quorum.start()
        self.settle()
        self.request_vote(1, 1)
        self.follow(1, 1)
        self.send(b"a" * 300, b"b" * 300, leader=1, epoch=1)
        self.send(b"c" * 300, leader=1, epoch=1)
        self.send(b"d" * 300, b"e" * 300, b"f" * 300, leader=1, epoch=1)
        self.request_vote(2, 2, OffsetAndEpoch(0, 0))  # Refused, but its epoch is known from now on.
        self.request_vote(1, 2)
        self.follow(1, 2)
        self.diverge(OffsetAndEpoch(4, 1), leader=1, epoch=2)
        self.send(b"g" * 300, leader=1, epoch=2)
        self.send(b"h" * 300, b"i" * 300, leader=1, epoch=2)
        self.request_vote(2, 3)
        self._lead()
        for value in (b"j", b"k"):
            voter.quorum.append([value * 300])
            self.settle()
            self._note()
            end = voter.log.end
            voter.fetch(1, end.offset, end.epoch)
            self._note()
        self.request_vote(2, voter.quorum.epoch + 1)
        self.follow(2, voter.quorum.epoch)
        self.send(b"l" * 300, leader=2, epoch=voter.quorum.epoch)

    def _lead(self) -> None:
        """Time passes until the voter seeks an election. Node 1 grants it all votes."""
        voter = self.voter
        while not voter.quorum.is_leader:
            voter.pass_ms(100)
            self.settle()
            for request in voter.take_requests(ApiKey.VOTE):
                request.replied(granted(request, True)) if request.peer == 1 else request.failed()
                self.settle()

    # --- the comparison ---------------------------------------------------------------------------------------------

    @classmethod
    def resume(cls, disk: SimDisk, owed: OwedVoter) -> ResumedVoter:  # type: ignore[override]
        folder = folder_of(disk.all_files(), METADATA_DIRECTORY)
        _compare_state(folder, owed)
        for claim in false_claims(folder, 0):
            require(False, claim)
        voter = Voter(disk)
        voter.quorum.start()
        voter.sync_all()
        require(voter.quorum.epoch >= owed.epoch, f"it resumes in epoch {voter.quorum.epoch}, after {owed.epoch}")
        _compare_log(folder_of(disk.all_files(), METADATA_DIRECTORY), owed, voter.log.end_offset)
        epoch, candidate = owed.vote
        other = next(node for node in (1, 2) if node != candidate)
        if epoch == voter.quorum.epoch:
            responses = voter.request_vote(other, epoch, OffsetAndEpoch(FAR, epoch - 1))
            voter.sync_all()
            require(
                not any(response.granted for response in responses),
                f"node {candidate} had its vote of epoch {epoch}, and now node {other} has it too",
            )
        return ResumedVoter(voter, owed)


def _compare_state(folder: Mapping[str, bytes], owed: OwedVoter) -> None:
    data = folder.get(STATE)
    if data is None:
        require(owed.epoch == 0, f"{STATE} is gone, and epoch {owed.epoch} was sent to others")
        return
    try:
        state = json.loads(data)
    except ValueError:
        require(False, f"{STATE} cannot be read: {data[:40]!r}")
    epoch, candidate = owed.vote
    require(state["leaderEpoch"] >= owed.epoch, f"{STATE} has epoch {state['leaderEpoch']}, after {owed.epoch}")
    require(
        state["leaderEpoch"] != epoch or state["votedId"] == candidate,
        f"{STATE} has the vote for {state['votedId']} in epoch {epoch}, and node {candidate} had it",
    )


def _compare_log(folder: Mapping[str, bytes], owed: OwedVoter, end: int) -> None:
    segments = segments_of(folder)
    batches = batches_in(segments)
    for contradiction in contradictions(folder, [], batches, 0):
        require(False, contradiction)
    there, next_offset = {}, 0
    for data in batches:
        identity, _ = next(batches_of(data))
        require(identity.base_offset == next_offset, f"the records from {next_offset} on are missing")
        require(data in owed.given or AFTER in data, f"{identity.named} was never sent or written")
        there[identity.base_offset], next_offset = data, identity.last_offset + 1
    require(next_offset == end, f"the log ends at {end}, and its last batch at {next_offset}")
    for at, data in owed.durable:
        identity, _ = next(batches_of(data))
        require(there.get(at) == data, f"{identity.named} was reported to a leader or committed, and is lost")


def _stored(disk: Any) -> dict[int, bytes]:
    """The batches of the log, by offset."""
    batches = batches_in(segments_of(folder_of(disk.all_files(), METADATA_DIRECTORY)))
    return {next(batches_of(data))[0].base_offset: data for data in batches}


def _batch(offset: int, epoch: int, value: bytes) -> bytes:
    return build([Record(timestamp_ms=1, value=value)], base_offset=offset, leader_epoch=epoch)


def _fetch_offset(voter: Voter) -> int:
    """The offset of the fetch that is on its way."""
    return int([each for each in voter.sent if each.api_key == ApiKey.FETCH][-1].partition.fetch_offset)


# --- snapshots ------------------------------------------------------------------------------------------------------

CHUNK_BYTES = 700
SNAPSHOT_SETTINGS = {
    "metadata_log_segment_bytes": "1024",
    "metadata_log_max_record_bytes_between_snapshots": "1500",
    "metadata_max_retention_bytes": "3000",
    "crucible_metadata_snapshot_keep_ms": "1",
    "crucible_metadata_snapshot_fetch_max_bytes": str(CHUNK_BYTES),
}
NEW = "after "
"""Begins the value of the setting that a resumed node makes. The offset at which it does so follows."""
Content: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class OwedSnapshots:
    """The snapshots of a node on which others rely."""

    end: int = 0
    """records below this offset were synced"""
    held: OffsetAndEpoch | None = None
    """the newest snapshot on which the node relies"""
    partial: tuple[OffsetAndEpoch, int] | None = None
    """a download, and how many of its bytes must have been synced because the next ones were requested"""
    contents: Mapping[int, Content] = field(default_factory=dict, compare=False)
    """the metadata before each offset, by a replay of all records"""
    leader: Replica | None = field(default=None, compare=False)


class ResumedSnapshots(Resumed):
    def __init__(self, replica: Replica, owed: OwedSnapshots) -> None:
        self.replica = replica
        self.owed = owed

    def use(self) -> OwedSnapshots:
        """Go on with the download, append, sync, and make a snapshot."""
        replica, owed = self.replica, self.owed
        if owed.partial is not None and owed.leader is not None and replica.log.end_offset < owed.partial[0].offset:
            self._go_on_with(owed.partial, owed.leader)
        replica.epoch = replica.log.end.epoch + 1
        replica.append([setting(0, f"{NEW}{replica.log.end_offset}")])
        replica.sync()
        held = replica.make_snapshot()
        return OwedSnapshots(held.offset, held, None, owed.contents, owed.leader)

    def _go_on_with(self, partial: tuple[OffsetAndEpoch, int], leader: Replica) -> None:
        snapshot, position = partial
        transfer = Transfer(leader, self.replica, leader_id=LEADER)
        transfer.begin(snapshot)
        (request,) = read_requests(self.replica.ports.sent[0][0])
        require(
            request.position >= position,
            f"the download of {snapshot} goes on at byte {request.position}, and {position} bytes were synced",
        )
        transfer.finish()
        require(transfer.outcomes == [Installed(snapshot)], f"the download ended with {transfer.outcomes}")
        self.replica.load()
        _compare_image(self.replica, self.owed)


LEADER = 1


class MetadataSnapshots(Script):
    name = "snapshots"
    about = "snapshots that are made, cleaned, and downloaded in pieces, and the log that is cut below them"

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk)
        self.replica = _replica(disk)
        self.leader: Replica | None = None
        self.contents = {0: content(self.replica.image)}
        self.end = 0
        self.is_downloading = False

    def owed(self) -> OwedSnapshots:
        partial = None
        if self.is_downloading and self.replica.ports.sent:
            (request,) = read_requests(self.replica.ports.sent[0][0])
            partial = request.id, request.position
        return OwedSnapshots(self.end, self.replica.store.latest, partial, self.contents, self.leader)

    def append(self, name: str, partitions: int = 3) -> None:
        number = len(self.contents)
        records = topic_records(name, topic_id(number), partitions)
        before = self.replica.image
        offset = self.replica.log.end_offset + len(records)
        self.contents[offset] = content(replayed(before, records, Provenance(offset - 1, self.replica.epoch, 0)))
        self.replica.append(records)

    def sync(self) -> None:
        self.replica.sync()
        self.end = self.replica.log.end_offset

    def restart(self) -> None:
        self.disk.process_started()
        self.replica = _replica(self.disk)

    def play(self) -> None:
        for number in range(14):
            self.append(f"made-{number}")
            if number % 3 == 1:
                self.sync()
            self.replica.ports.advance(10)
        self.sync()
        self.replica.ports.advance(70_000)
        self.restart()
        self.append("behind", 1)
        self.sync()
        self._download()
        self.append("later", 1)
        self.sync()

    def _download(self) -> None:
        """A leader is far ahead, and its log begins behind this node's end."""
        leader = self.leader = Replica(SimDisk(Random(1)), **SNAPSHOT_SETTINGS)  # type: ignore[arg-type]
        leader.log.log.truncate_fully_and_start_at(self.replica.log.end_offset, leader.ports.now())
        leader.image, leader.epoch = self.replica.image, 2
        for number in range(6):
            leader.append(topic_records(f"fetched-{number}", topic_id(100 + number), 4))
        snapshot = leader.make_snapshot()
        self.contents[snapshot.offset] = content(leader.image)
        transfer = self._begin(leader, snapshot)
        transfer.deliver()
        transfer.deliver()
        self.restart()
        transfer = self._begin(leader, snapshot)
        transfer.finish()
        self.is_downloading = False
        assert transfer.outcomes == [Installed(snapshot)]
        self.replica.load()
        self.replica.epoch = 3
        self.end = snapshot.offset

    def _begin(self, leader: Replica, snapshot: OffsetAndEpoch) -> Transfer:
        transfer = Transfer(leader, self.replica, leader_id=LEADER)
        self.is_downloading = True
        transfer.begin(snapshot)
        return transfer

    # --- the comparison ---------------------------------------------------------------------------------------------

    @classmethod
    def resume(cls, disk: SimDisk, owed: OwedSnapshots) -> ResumedSnapshots:  # type: ignore[override]
        folder = folder_of(disk.all_files(), METADATA_DIRECTORY)
        for name, data in folder.items():
            if name.endswith(".checkpoint"):
                _check_whole(name, data)
        if owed.partial is not None and owed.leader is not None:
            _check_partial(folder, owed.partial, owed.leader)
        replica = _replica(disk)
        _compare_image(replica, owed)
        latest = replica.store.latest
        require(
            owed.held is None or (latest is not None and latest.age >= owed.held.age),
            f"the newest snapshot is {latest}, and {owed.held} was held",
        )
        folder = folder_of(disk.all_files(), METADATA_DIRECTORY)
        leftover = [name for name in folder if "-made" in name or name.endswith(".deleted")]
        require(not leftover, f"{leftover} are left over")
        start = replica.log.start_offset
        for claim in false_claims(folder, start):
            require(False, claim)
        segments = segments_of(folder)
        next_offset = segments[0].base if segments else start
        require(next_offset <= start, f"the log starts at {start}, and its first segment at {next_offset}")
        for data in batches_in(segments):
            identity, _ = next(batches_of(data))
            require(identity.base_offset == next_offset, f"the records from offset {next_offset} on are missing")
            next_offset = identity.last_offset + 1
        return ResumedSnapshots(replica, owed)


def _replica(disk: SimDisk) -> Replica:
    return Replica(disk, node_id=2, **SNAPSHOT_SETTINGS)  # type: ignore[arg-type]


def _check_whole(name: str, data: bytes) -> None:
    """KIP-630: batches from offset 0 on without a hole, of the epoch in the name, between header and footer."""
    batches = [identity for identity, _ in batches_of(data)]
    size = sum(len(batch) for _, batch in batches_of(data))
    require(size == len(data) > 0, f"{name} has {size} bytes of whole batches in {len(data)}, and has its name already")
    offsets = [batch.base_offset for batch in batches] == [0, *(batch.last_offset + 1 for batch in batches[:-1])]
    epoch = int(name.removesuffix(".checkpoint").partition("-")[2])
    ends = len(batches) > 1 and batches[0].control and batches[-1].control
    require(
        offsets and ends and {batch.epoch for batch in batches} == {epoch}, f"{name} is no whole snapshot: {batches}"
    )


def _check_partial(folder: Mapping[str, bytes], partial: tuple[OffsetAndEpoch, int], leader: Replica) -> None:
    snapshot, position = partial
    stem = f"{snapshot.offset:020}-{snapshot.epoch:010}.checkpoint"
    data = folder.get(stem + ".part", folder.get(stem, b""))
    require(
        data[:position] == leader.bytes_of(snapshot)[:position],
        f"{stem}.part has {len(data)} bytes, and its first {position}, which were synced, are not the leader's",
    )


def _compare_image(replica: Replica, owed: OwedSnapshots) -> None:
    end = replica.log.end_offset
    require(end >= owed.end, f"the metadata ends at offset {end}, and records up to {owed.end} were synced")
    require(
        replica.image.provenance.offset + 1 == end,
        f"the metadata that is loaded ends at {replica.image.provenance.offset + 1}, and the log at {end}",
    )
    expected = _expected(replica, owed)
    require(expected is not None, f"the metadata ends at offset {end}, inside a batch")
    require(
        content(replica.image) == expected,
        f"the metadata at offset {end} differs from a replay of all records",
    )


def _expected(replica: Replica, owed: OwedSnapshots) -> Content | None:
    """Return the result of a replay of all records, with the setting that a resumed node has made last."""
    image = replica.image
    resource = 2, "t0"
    value = image.configs.get(resource, {}).get("retention.ms", "")
    if not value.startswith(NEW):
        return owed.contents.get(replica.log.end_offset)
    base = owed.contents.get(int(value.removeprefix(NEW)))
    if base is None:
        return None
    configs = {**base[6], resource: {"retention.ms": value}}
    return (image.provenance.offset, image.provenance.epoch, *base[2:6], configs, *base[7:])
