"""One case of the suite: what a broker does, its source, and the verdict on a client."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from crucible_kafka.clients.protocol import FEATURES

if TYPE_CHECKING:
    from crucible_kafka.clients.play import Play

LIMIT_S: Final = 60.0
"""Time limit of a whole case. A case ends by its own bounds; this one catches mistakes in cases."""


class Level(Enum):
    """The requirement level of a statement, in the words of RFC 2119."""

    MUST = "MUST"
    SHOULD = "SHOULD"


MUST, SHOULD = Level.MUST, Level.SHOULD
CaseFunction: TypeAlias = "Callable[[Play], None]"


@dataclass(frozen=True, slots=True)
class ClientCase:
    """A behaviour of a broker, and the required reaction of a client."""

    id: str
    """Section and name (``sessions/response-lost``), never changed."""
    level: Level
    words: str
    """What the broker does, and what the client must do."""
    source: str
    """The KIP, the message schema, or the file of Kafka's client that says so."""
    needs: Sequence[str]
    """Features of the client, of ``protocol.FEATURES``."""
    limit_s: float
    conduct: CaseFunction

    @property
    def section(self) -> str:
        return self.id.partition("/")[0]


def case(
    id: str,  # noqa: A002  (the name that the field has)
    level: Level,
    source: str,
    needs: Sequence[str] = ("consumer",),
    limit_s: float = LIMIT_S,
) -> Callable[[CaseFunction], ClientCase]:
    """Make a case of a function. Its docstring becomes the case's words."""
    assert all(need in FEATURES for need in needs), f"{id} needs a feature that the protocol does not have"

    def made(conduct: CaseFunction) -> ClientCase:
        assert conduct.__doc__, f"{id} has no words"
        return ClientCase(id, level, " ".join(conduct.__doc__.split()), source, needs, limit_s, conduct)

    return made


class ClientVerdict(Enum):
    """The verdict on a client in one case."""

    PASS = "pass"
    FAIL = "fail"  # a MUST is violated
    DIFFERS = "differs"  # a SHOULD is violated
    NOT_SUPPORTED = "not supported"  # the client lacks what the case is about
    NOT_SHOWN = "not shown"  # the fault never fired, so nothing is known
    ADAPTER_FAILED = "adapter failed"  # the adapter broke the protocol, ended, or flooded
    OUR_ERROR = "our error"  # the case itself failed, which shows nothing about the client


class Violated(Exception):  # noqa: N818 - what the client did, not an error of ours
    """A judgement went against the client. ``kind`` is data, progress, wire or error."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(f"{kind}: {sentence}")
        self.kind = kind


class NotSupported(Exception):  # noqa: N818 - says what is known
    """The client lacks what the case is about."""


class NotShown(Exception):  # noqa: N818 - says what is known
    """The broker did not behave as the case needs, so the case shows nothing."""


class AdapterFailed(Exception):  # noqa: N818 - says what happened
    """The adapter broke the protocol. The text is one sentence."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One thing that was judged: its kind, what it is, what was seen, and what was wanted."""

    kind: str
    what: str
    seen: str
    wanted: str


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case that was played."""

    case: ClientCase
    verdict: ClientVerdict
    reason: str
    seconds: float
    judgements: Sequence[Judgement] = ()
    conversation: Sequence[str] = field(default_factory=list)
    """Operations of the application, frames and events, by time."""

    def is_red(self, strict: bool) -> bool:
        """Whether the case counts against the client or its adapter, or failed by itself. With ``strict`` a SHOULD
        counts like a MUST, and so does a case that showed nothing."""
        if self.verdict in (ClientVerdict.FAIL, ClientVerdict.ADAPTER_FAILED, ClientVerdict.OUR_ERROR):
            return True
        return strict and self.verdict in (ClientVerdict.DIFFERS, ClientVerdict.NOT_SHOWN)
