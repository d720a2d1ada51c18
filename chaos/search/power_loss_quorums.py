"""Scripts of the metadata quorum for enumerated power losses: a voter, and the snapshots of its log.

The script plays the other nodes, the clock and the network. What is owed is what others may rely on: votes and epochs
in responses, offsets in the fetches that are sent, records below the high watermark, snapshots that are held.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from chaos.checks.batches import batches_of
from chaos.checks.log_folders import batches_in, contradictions, false_claims, folder_of, segments_of
from chaos.search.power_losses import Resumed, Script, require
from chaos.sim.disk import SimDisk
from reference_broker.quorum.messages import RaftResponse, begin_epoch
from reference_broker.quorum.metadata_log import Diverging
from reference_broker.quorum.node_files import METADATA_DIRECTORY
from reference_broker.quorum.requests import handle_begin_quorum_epoch
from reference_broker.quorum.tests.quorum_alone import CLUSTER, Alone, granted
from reference_broker.quorum.values import OffsetAndEpoch
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
        """The leader of an epoch makes itself known. What was sent before is forgotten."""
        self.sent.clear()
        handle_begin_quorum_epoch(self.quorum, begin_epoch(CLUSTER, -1, leader, epoch), lambda _: None)


@dataclass(frozen=True, slots=True)
class OwedVoter:
    """What others may rely on. ``epoch`` is the largest in a response or request, ``vote`` the last vote with its
    epoch."""

    epoch: int = 0
    vote: tuple[int, int] = (-1, -1)
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
        responses = voter.ask_vote(1, epoch, OffsetAndEpoch(FAR, epoch - 1))
        voter.sync_all()
        require([each.granted for each in responses] == [True], f"no vote in epoch {epoch}: {responses}")
        voter.follow(1, epoch)
        voter.sync_all()
        offset = _fetch_offset(voter)
        batch = _batch(offset, epoch, AFTER)
        voter.respond_to_fetch(batch, offset, epoch=epoch)
        voter.sync_all()
        durable = dict(self.owed.durable)
        for at, data in _stored(voter.disk).items():
            if at < _fetch_offset(voter):
                durable[at] = data
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
        """Take what responses and requests tell others by now."""
        owed, voter = self._owed, self.voter
        epoch, vote, end = owed.epoch, owed.vote, -1
        for candidate, responses in self.responses:
            for each in responses:
                epoch = max(epoch, each.epoch)
                if each.granted and each.epoch >= vote[0]:
                    vote = each.epoch, candidate
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
        found = OwedVoter(epoch, vote, tuple(sorted(durable.items())), owed.given | {*stored.values()})
        if found != owed:
            self._owed = found

    # --- the others -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        while self.voter.syncs:
            self.voter.sync_one()
            self._note()

    def request_vote(self, candidate: int, epoch: int, end: OffsetAndEpoch | None = None) -> None:
        end = OffsetAndEpoch(FAR, epoch - 1) if end is None else end
        self.responses.append((candidate, self.voter.ask_vote(candidate, epoch, end)))
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
        """The leader says where its log ends that epoch. What is behind it is owed no longer."""
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
            for each in voter.take(ApiKey.VOTE):
                each.replied(granted(each, True)) if each.peer == 1 else each.failed()
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
            responses = voter.ask_vote(other, epoch, OffsetAndEpoch(FAR, epoch - 1))
            voter.sync_all()
            require(
                not any(each.granted for each in responses),
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
