"""Clients that retry until their coordinator accepts what they ask, even if it changes."""

from bench.peers.clients import RetryingClient
from bench.peers.raw_group import VERSIONS
from reference_broker.client import group_requests as requests
from reference_broker.client.group_requests import MemberIdentity
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.offset_requests import OffsetToCommit, commit_errors, commit_request
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode


class RetryingCoordinator(RetryingClient):
    """``key_type`` says what has a coordinator (FindCoordinator): groups, or transactional IDs."""

    key_type = requests.GROUP_KEY_TYPE

    def coordinator(self, key: str, limit_s: float) -> int:
        """Waits until the key has a coordinator, and returns its node ID. Raises PeerError."""
        return self._until(lambda: self._find(key), limit_s, f"a coordinator of {key}").node_id

    def _find(self, key: str) -> NodeAddress | None:
        body = requests.find_coordinator(key, self.key_type)
        answer = self._call(self._turn(), ApiKey.FIND_COORDINATOR, VERSIONS.find_coordinator, body)
        if answer is None:
            return None
        found = requests.coordinator_of(answer, key)
        if isinstance(found, NodeAddress):
            return found
        self._is_fine(int(found), (ErrorCode.none,))
        return None


class RetryingGroups(RetryingCoordinator):
    """Asks any node for the coordinator before each try, so that it follows it at once."""

    def committed(self, group: str, topic: str, offset: int, limit_s: float) -> None:
        """Commits an offset of partition 0 until that is accepted, as a consumer that assigns its partitions itself.

        Raises PeerError.
        """
        offsets = {TopicPartition(topic, 0): OffsetToCommit(offset)}
        body = commit_request(offsets, MemberIdentity(group), VERSIONS.offset_commit)

        def ask() -> bool | None:
            found = self._find(group)
            if found is None:
                return None
            answer = self._call(found.port, ApiKey.OFFSET_COMMIT, VERSIONS.offset_commit, body)
            if answer is None:
                return None
            errors = list(commit_errors(answer).values())
            return True if all(self._is_fine(int(error), (ErrorCode.none,)) for error in errors) else None

        self._until(ask, limit_s, f"a commit of {group}")
