"""Reads the committed offsets of all groups once more when all is quiet, so that the history says what is left of them.

Members fetch offsets only when partitions are assigned to them. An offset that is lost after that shows here.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from bench.fleet.behaviours.cluster import ClusterScript
from bench.fleet.behaviours.protocol import Address, Answered, Chance, ClientSettings, TopicPartition
from bench.fleet.behaviours.script import Steps
from reference_broker.client.group_coordinator import GroupCoordinator
from reference_broker.client.group_requests import GroupRequest, GroupVersions, MemberIdentity, name_of
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.offset_commits import CommittedOffsets, Fetched
from reference_broker.client.offset_requests import fetched_offsets
from reference_broker.wire.apis import ApiKey
from reports.rows import CommitRow

FINAL_OFFSETS: Final = "final_offsets"
"""What the history calls these reads."""


class OffsetsReader(ClusterScript):
    """Fetches the stable offsets of each group, with a version that carries no metadata epoch, and ends.

    ``groups`` maps group IDs to the partitions that they commit. After ``limit_us`` the groups that are ``unread`` stay
    so.
    """

    KEEPS_CONNECTIONS = True

    def __init__(
        self,
        process: str,
        settings: ClientSettings,
        random: Chance,
        groups: Mapping[str, Sequence[TopicPartition]],
        limit_us: int,
    ) -> None:
        super().__init__(process, settings, random, ())
        self.groups = groups
        self.limit_us = limit_us
        self.unread: dict[str, None] = dict.fromkeys(groups)
        self._failures: Counter[NodeAddress | None] = Counter()

    @property
    def missed(self) -> str:
        """Return the groups whose offsets could not be read, as a sentence without its full stop; or nothing."""
        several = "s" * (len(self.unread) > 1)
        return f"the committed offsets of group{several} {', '.join(self.unread)} could not be read" * bool(self.unread)

    def run(self) -> Steps[None]:
        """The groups take turns of one request each, so that one whose coordinator is stuck does not hold up others."""
        deadline_us = self.now.mono_us + self.limit_us
        versions, settings = self.settings.versions, self.settings
        of_group = GroupVersions(find_coordinator=versions.find_coordinator, offset_fetch=versions.offset_fetch)
        reads: dict[str, CommittedOffsets] = {}
        for group, partitions in self.groups.items():
            coordinator = GroupCoordinator(group, of_group, settings.backoff_us, settings.request_timeout_us)
            reads[group] = CommittedOffsets(coordinator)
            reads[group].fetch(partitions, MemberIdentity(group), deadline_us)
        while reads:
            due = [each for each, offsets in reads.items() if (offsets.wake_at_us or 0) <= self.now.mono_us]
            if not due:
                yield from self.sleep_until(min(each.wake_at_us or 0 for each in reads.values()))
                continue
            # A node that did not answer comes after the others, because it may take a request's whole timeout again.
            group = min(due, key=lambda each: self._failures[reads[each].coordinator.node])
            offsets = reads.pop(group)
            yield from self._turn(group, offsets)
            if offsets.busy:
                reads[group] = offsets

    def _turn(self, group: str, offsets: CommittedOffsets) -> Steps[None]:
        """Sends the group's next request, unless its time is over, and records what a fetch has found."""
        request = offsets.next_request(self.now.mono_us)
        if request is not None and request.api_key != ApiKey.OFFSET_FETCH:
            yield from self._send(offsets, request)
            return
        operation = self.journal.begin(FINAL_OFFSETS)
        reason = None if request is None else (yield from self._send(offsets, request))
        fetched = offsets.take_result()
        if fetched is None:
            self.journal.end(operation, "fail", reason)
            return
        assert isinstance(fetched, Fetched), "a fetch of offsets ends with what it fetched"
        error = name_of(fetched.error) if fetched.error else None
        self.journal.end(operation, "fail" if error else "ok", error)
        if error is None:
            del self.unread[group]
        for where, at in fetched.offsets.items():
            who = (self.process, operation.index, "fetched", group, fetched.asked_as.generation_id, "")
            self.journal.record(CommitRow(*who, *where, at.offset, at.leader_epoch, -1, False, None, self.now.mono_us))

    def _send(self, offsets: CommittedOffsets, request: GroupRequest) -> Steps[str | None]:
        """Sends the request, and returns why it brought nothing: a fetch's error, or that nobody answered."""
        to = self._next_address() if request.to is None else Address(request.to.host, request.to.port)
        answer: Answered | str = "disconnected"
        if (yield from self._reach(to)):
            answer = yield from self.call(request.api_key, request.api_version, request.body)
        if isinstance(answer, str):
            self._failures[request.to] += request.to is not None
            offsets.failed(self.now.mono_us)
            return answer
        offsets.answered(self.now.mono_us, answer.body)
        found = fetched_offsets(answer.body) if request.api_key == ApiKey.OFFSET_FETCH else {}
        return None if isinstance(found, dict) else name_of(found)
