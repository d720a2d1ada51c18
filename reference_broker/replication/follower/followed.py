"""One partition that this node follows: its log, and what its fetcher knows of it."""

from dataclasses import dataclass

from reference_broker.client.partitions import TopicPartition
from reference_broker.client.session_handler import Wanted
from reference_broker.log.partition_log import PartitionLog

NEVER = 2**63 - 1


@dataclass(slots=True, eq=False)
class Followed:
    """``asked`` is what the leader was last told of it, or None if nothing since it is followed.

    ``resumes_us`` is the monotonic time until which it is left out of the session. 0 means that it is fetched, and
    NEVER that it waits for newer metadata. ``errors`` counts errors in a row.
    """

    name: TopicPartition
    topic_id: bytes
    log: PartitionLog
    leader_id: int
    leader_epoch: int
    asked: Wanted | None = None
    resumes_us: int = 0
    errors: int = 0

    def wanted(self, max_bytes: int) -> Wanted:
        """What the next fetch asks for. A log without records cannot diverge, so it names no epoch."""
        log = self.log
        return Wanted(
            self.topic_id,
            log.log_end_offset,
            max_bytes,
            self.leader_epoch,
            log.latest_epoch if log.segments else -1,
            log.log_start_offset,
        )

    @property
    def trace_name(self) -> str:
        return f"{self.name.topic}-{self.name.partition}"

    def answers_present(self) -> bool:
        """Whether an answer that comes now fits what it would ask now: same leadership, same end of the log."""
        asked = self.asked
        return (
            asked is not None
            and self.resumes_us == 0
            and asked.current_leader_epoch == self.leader_epoch
            and asked.fetch_offset == self.log.log_end_offset
        )
