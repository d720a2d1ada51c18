"""Sessions of KIP-227's first revision: requests that tests of Fetch 1000 send, and state that they look at."""

from reference_broker.apis.records.first_revision import FirstRevisionSession
from reference_broker.apis.tests.fetch_world import FetchWorld
from reference_broker.wire.errors import DraftError, ErrorCode
from reference_broker.wire.fetch import INCREMENTAL_FETCH_OK, FetchResponse

INVALID_FETCH_SESSION, INCREMENTAL_FETCH_DENIED, INVALID_REQUEST = (
    DraftError.INVALID_FETCH_SESSION,
    DraftError.INCREMENTAL_FETCH_DENIED,
    ErrorCode.invalid_request,
)


def open_session(world: FetchWorld, *places: tuple[str, int], **fields: int) -> int:
    response = world.fetch_first(0, 0, dict.fromkeys(places, 0), **fields).response
    assert (response.error_code, response.response_flags) == (0, INCREMENTAL_FETCH_OK)
    return response.session_id


def session_of(world: FetchWorld, session_id: int) -> FirstRevisionSession:
    session = world.sessions.sessions[session_id]
    assert isinstance(session, FirstRevisionSession)
    return session


def dirty_number(session: FirstRevisionSession, place: tuple[str, int]) -> int:
    return session.dirty_sequence_numbers[session.partitions[place]]


def outcome(response: FetchResponse) -> tuple[int, int, int]:
    return response.error_code, response.session_id, response.response_flags
