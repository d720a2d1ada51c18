"""Conversations in KIP-227's first revision: what tests of Fetch 1000 say and look at."""

from reference_broker.apis.tests.fetch_world import World
from reference_broker.sessions.fetch_session import FetchSession
from reference_broker.wire.errors import DraftError, ErrorCode
from reference_broker.wire.fetch import FetchResponse

FULL, RESPONSE, OK = 0, 1, 2
NOT_VALID, DENIED, INVALID = (
    DraftError.INVALID_FETCH_SESSION,
    DraftError.INCREMENTAL_FETCH_DENIED,
    ErrorCode.invalid_request,
)


def opened(world: World, *places: tuple[str, int], **fields: int) -> int:
    answer = world.fetch_first(0, 0, dict.fromkeys(places, 0), **fields).answer
    assert (answer.error_code, answer.response_flags) == (0, OK)
    return answer.session_id


def session_of(world: World, session_id: int) -> FetchSession:
    return world.sessions.sessions[session_id]


def outcome(answer: FetchResponse) -> tuple[int, int, int]:
    return answer.error_code, answer.session_id, answer.response_flags
