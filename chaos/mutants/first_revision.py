"""Mutants of the first revision of fetch sessions alone."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from dataclasses import replace
from typing import Any

from chaos.mutants.fetch_sessions import WAITING, admitted_by_client_id
from chaos.mutants.mutant import Function, Mutant, mutant
from reference_broker.wire.fetch import INCREMENTAL_FETCH_RESPONSE

SESSION = "reference_broker.sessions.fetch_session"
CACHE = "reference_broker.sessions.fetch_session_cache"
REVISION = "reference_broker.sessions.revisions"
ANSWER = "reference_broker.apis.records.fetch"
LAYOUT = "reference_broker.wire.fetch_drafts"
LENGTH_AND_CORRELATION_ID = 8
"""The bytes before the body of an answer's frame."""
ONLY_FIRST = ("first",)


@mutant(f"{SESSION}:FetchSession.accept_full", revisions=ONLY_FIRST)
def replaced_partitions_kept(original: Function, self: Any, now: Any) -> Any:
    """A full request adds partitions to its session, and removes none (G-4)."""
    for key, cached in original(self, now).items():
        cached.home = self.partitions
        self.partitions[key] = cached
        self.look_at(cached)
    return {}


@mutant(f"{CACHE}:FetchSessionCache.admit", revisions=ONLY_FIRST)
def session_id_of_client_id(original: Function, self: Any, draft: Any, now: Any) -> bool:
    """A session's ID is derived from its client's ID, so a client's new session has the ID of its old one (G-1)."""
    return admitted_by_client_id(original, self, draft, now)


@mutant(f"{REVISION}:FirstRevision.advance", revisions=ONLY_FIRST)
def sequence_number_in_32_bits(original: Function, self: Any, session: Any, number: int) -> None:
    """After 2^31-1 comes -2^31 (G-3)."""
    original(self, session, number)
    session.number = (session.number + 2**31) % 2**32 - 2**31


@mutant(f"{REVISION}:FirstRevision.start", revisions=ONLY_FIRST)
def no_modulo_rotation(original: Function, self: Any, session: Any) -> int:
    """Each answer begins at the first partition (G-7)."""
    return 0


@mutant(f"{WAITING}:Fetch._keep", revisions=ONLY_FIRST)
def number_not_carried_over(original: Function, self: Any) -> bool:
    """A partition that the size limit keeps out of answer N is not marked for answer N + 1 (G-5)."""
    kept, session = bool(original(self)), self.session
    if kept and session.revision.name == "first":
        for cached in session.partitions.values():
            if cached.available_bytes and cached not in self.answers:
                session.assess(cached, 0)
                cached.change_number = 0
                self.marked.setdefault(cached)
    return kept


@mutant(f"{CACHE}:FetchSessionCache.lookup_first", revisions=ONLY_FIRST)
def incremental_served_without_session(original: Function, self: Any, session_id: int, sequence_number: int) -> Any:
    """An incremental request of an unknown session is served (G-4, G-10)."""
    if self.find(session_id, self.first) is not None:
        return original(self, session_id, sequence_number)
    session = self.draft("", -1, False, self.first)
    session.session_id = session_id
    session.answers_full = False
    session.number = sequence_number - 1
    return session


@mutant(f"{SESSION}:FetchSession.is_waiting_for", revisions=ONLY_FIRST)
def retransmission_refuses_the_waiting(original: Function, self: Any, number: int) -> bool:
    """A request that comes again while the first one waits ends that one with InvalidFetchSession (G-3)."""
    return False


@mutant(f"{SESSION}:FetchSession.deny", revisions=ONLY_FIRST)
def denied_session_invites_incremental_fetches(original: Function, self: Any) -> Any:
    """A session that caches nothing is answered with INCREMENTAL_FETCH_OK set, and takes incremental fetches (G-10)."""
    left = original(self)
    self.denied = False
    return left


@mutant(f"{ANSWER}:_flags", revisions=ONLY_FIRST)
def incremental_answers_not_marked(original: Function, session: Any) -> int:
    """No answer says that it is an incremental one (G-9)."""
    return int(original(session)) & ~INCREMENTAL_FETCH_RESPONSE


@mutant(f"{ANSWER}:refusal", revisions=ONLY_FIRST)
def errors_without_text(original: Function, error: Any, request: Any, session: Any = None) -> Any:
    """No error has a text beside it (G-9)."""
    return replace(original(error, request, session), error_string=None)


@mutant(f"{ANSWER}:refusal", revisions=ONLY_FIRST)
def refused_sessions_told_as_closed(original: Function, error: Any, request: Any, session: Any = None) -> Any:
    """A refusal tells the session ID 0 although the session is there (G-9)."""
    return original(error, request)


def _read_sooner(original: Function, version: int, frame: Any, offset: int) -> Any:
    whole = bytes(frame)
    at = _behind_text(whole, offset)
    turned = whole[:at] + whole[at + 1 : at + 9] + whole[at : at + 1] + whole[at + 9 :]
    return original(version, memoryview(turned), offset)


def _behind_text(frame: bytes, at: int) -> int:
    """The place of the session ID: behind the throttle time, the error and its text."""
    size = int.from_bytes(frame[at + 6 : at + 8], "big", signed=True)
    return at + 8 + max(size, 0)


_READS = Mutant("flags_read_before_the_session_id", f"{LAYOUT}:decode_draft_response", _read_sooner)


@mutant(f"{LAYOUT}:encode_draft_response", revisions=ONLY_FIRST, partner=_READS)
def flags_before_the_session_id(original: Function, version: int, correlation_id: int, response: Any) -> Any:
    """Answers have the flags before the session ID, and our clients read them so (G-12)."""
    frame = b"".join(bytes(part) for part in original(version, correlation_id, response))
    at = _behind_text(frame, LENGTH_AND_CORRELATION_ID)
    return [frame[:at] + frame[at + 8 : at + 9] + frame[at : at + 8] + frame[at + 9 :]]
