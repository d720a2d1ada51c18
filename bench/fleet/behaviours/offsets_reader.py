"""Reads the committed offsets of all groups once more when all is quiet, so that the history says what is left of them.

Members fetch offsets only when partitions are assigned to them. An offset that is lost after that shows here.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from bench.fleet.behaviours.chance import Chance
from bench.fleet.behaviours.cluster import ClusterScript
from bench.fleet.behaviours.protocol import Address, ClientSettings, TopicPartition
from bench.fleet.behaviours.script import Steps
from reference_broker.client.group_coordinator import GroupCoordinator
from reference_broker.client.group_requests import GroupRequest, GroupVersions, MemberIdentity, name_of
from reference_broker.client.offset_commits import CommittedOffsets, Fetched
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

    @property
    def missed(self) -> str:
        """Return the groups whose offsets could not be read, as a sentence without its full stop; or nothing."""
        several = "s" * (len(self.unread) > 1)
        return f"the committed offsets of group{several} {', '.join(self.unread)} could not be read" * bool(self.unread)

    def run(self) -> Steps[None]:
        deadline_us = self.now.mono_us + self.limit_us
        for group, partitions in self.groups.items():
            operation = self.journal.begin(FINAL_OFFSETS)
            fetched = yield from self._fetch(group, partitions, deadline_us)
            error = name_of(fetched.error) if fetched.error else None
            self.journal.end(operation, "fail" if error else "ok", error)
            if error is None:
                del self.unread[group]
            for where, at in fetched.offsets.items():
                who = (self.process, operation.index, "fetched", group, fetched.asked_as.generation_id, "")
                self.journal.record(
                    CommitRow(*who, *where, at.offset, at.leader_epoch, -1, False, None, self.now.mono_us)
                )

    def _fetch(self, group: str, partitions: Sequence[TopicPartition], deadline_us: int) -> Steps[Fetched]:
        told, settings = self.settings.versions, self.settings
        versions = GroupVersions(find_coordinator=told.find_coordinator, offset_fetch=told.offset_fetch)
        coordinator = GroupCoordinator(group, versions, settings.backoff_us, settings.request_timeout_us)
        offsets = CommittedOffsets(coordinator)
        offsets.fetch(partitions, MemberIdentity(group), deadline_us)
        while offsets.busy:
            request = offsets.next_request(self.now.mono_us)
            if request is not None:
                yield from self._send(offsets, request)
            elif offsets.busy:
                yield from self.sleep_until(max(offsets.wake_at_us or 0, self.now.mono_us + 1))
        fetched = offsets.take_result()
        assert isinstance(fetched, Fetched), "a fetch of offsets ends with what it fetched"
        return fetched

    def _send(self, offsets: CommittedOffsets, request: GroupRequest) -> Steps[None]:
        to = self._next_address() if request.to is None else Address(request.to.host, request.to.port)
        if (yield from self._reach(to)):
            answer = yield from self.call(request.api_key, request.api_version, request.body)
            if not isinstance(answer, str):
                offsets.answered(self.now.mono_us, answer.body)
                return
        offsets.failed(self.now.mono_us)
