"""The final revision of fetch sessions (KIP-227), which was accepted and shipped: IDs and epochs have 32 bits."""

from reference_broker.sessions.fetch_session import LARGEST_EPOCH, FetchSession, Revision
from reference_broker.wire.errors import ErrorCode

MIN_EVICTION_MS = 120_000
"""A constant in this revision."""
FULL_EPOCH = 0
"""In a request: a full fetch that opens a new session."""
CLOSE_SESSION_EPOCH = -1
"""In a request: a full fetch that closes its session, if it names one, and opens none. (Kafka's FINAL_EPOCH.)"""


class FinalRevision(Revision):
    """The accepted text. ``FetchSession`` has what its sessions do."""

    name = "final"
    session_type = FetchSession
    largest_id = 0x7FFFFFFF
    unknown_id = ErrorCode.fetch_session_id_not_found
    wrong_number = ErrorCode.invalid_fetch_session_epoch

    def is_number(self, number: int) -> bool:
        return 1 <= number <= LARGEST_EPOCH
