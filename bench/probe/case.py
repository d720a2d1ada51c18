"""One case of the probe: a statement about a broker, its source, a short conversation that shows it, and a verdict."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from bench.probe.conversation import Line

if TYPE_CHECKING:
    from bench.probe.context import ProbeContext


NEWEST = 0x7FFF
LIMIT_S = 20.0
CHECKED_SECTION = "handshake/"
"""Cases of this section send what no client sends. Each runs alone, and a broker that ends is noticed at its case."""


class Level(Enum):
    """The requirement level of a statement, in the words of RFC 2119."""

    MUST = "MUST"
    SHOULD = "SHOULD"


MUST, SHOULD = Level.MUST, Level.SHOULD

Play: TypeAlias = "Callable[[ProbeContext], None]"
Versions: TypeAlias = tuple[int, int]
"""The lowest and the highest version of an API, both included."""


@dataclass(frozen=True, slots=True)
class ProbeCase:
    """One statement about a broker, with the conversation that shows whether it holds."""

    id: str  # section and name (``fetch/session/wrong-epoch``), never changed
    words: str  # what must hold
    source: str  # the KIP, schema or issue that says so
    level: Level
    needs: Mapping[int, Versions]  # the APIs that the case is about, with the versions that it can speak
    since: str  # the release of Apache Kafka that introduced it
    hostile: bool  # may harm a weak broker, so it is played against loopback only
    alone: bool  # no other case may run meanwhile
    restarts: bool  # the broker must be restarted, so the probe must have started it
    limit_s: float  # time limit of the whole case
    play: Play

    @property
    def section(self) -> str:
        return self.id.rpartition("/")[0]


def case(
    id: str,  # noqa: A002  (the name that the field has)
    source: str,
    needs: Mapping[int, Versions],
    *,
    since: str,
    level: Level = MUST,
    hostile: bool = False,
    alone: bool = False,
    restarts: bool = False,
    limit_s: float = LIMIT_S,
) -> Callable[[Play], ProbeCase]:
    """Make a case of a function. Its docstring becomes the case's words."""

    def made(play: Play) -> ProbeCase:
        assert play.__doc__, f"{id} has no words"
        words = " ".join(play.__doc__.split())
        by_itself = alone or hostile or restarts or id.startswith(CHECKED_SECTION)
        return ProbeCase(id, words, source, level, needs, since, hostile, by_itself, restarts, limit_s, play)

    return made


def since_version(lowest: int) -> Versions:
    """All versions from this one on."""
    return lowest, NEWEST


ANY = since_version(0)


class CaseVerdict(Enum):
    """The verdict on one case."""

    PASS = "pass"
    FAIL = "fail"  # a MUST is violated
    DIFFERS = "differs"  # a SHOULD is violated
    NOT_ADVERTISED = "not advertised"  # the broker does not claim to have what the case needs, which is no failure
    INCONSISTENT = "inconsistent"
    """It claims to have it, but closes the connection, stays silent, sends bytes that are no response, or rejects the
    version as unsupported."""
    NOT_PLAYED = "not played"
    """A hostile case and a target that is not on loopback, a restart and a target that the probe cannot restart, or a
    broker that is gone."""
    OUR_ERROR = "our error"  # the case itself failed, which shows nothing about the broker


@dataclass(frozen=True, slots=True)
class Observation:
    """One field that decides: what it is, its value in the response, and what was wanted, in words."""

    what: str
    seen: str
    wanted: str


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    case: ProbeCase
    verdict: CaseVerdict
    reason: str
    seconds: float
    observations: Sequence[Observation] = ()
    lines: Sequence[Line] = field(default_factory=list)
    ended: bool = False
    """The broker ended during the case, or served nobody after it."""

    @property
    def decided_by(self) -> str:
        """The last field that was looked at, and its value."""
        return f"{self.observations[-1].what}: {self.observations[-1].seen}" if self.observations else ""

    @property
    def is_ours(self) -> bool:
        """Whether the case itself failed. The run fails then, because the broker's behaviour is unknown."""
        return self.verdict is CaseVerdict.OUR_ERROR

    def is_red(self, strict: bool) -> bool:
        """Return whether the broker fails the case. With ``strict``, a SHOULD counts like a MUST. The end of a broker
        always counts."""
        broken = self.verdict in (CaseVerdict.FAIL, CaseVerdict.DIFFERS, CaseVerdict.INCONSISTENT)
        return broken and (strict or self.ended or self.case.level is Level.MUST)


class Unexpected(Exception):  # noqa: N818  (what the broker did, not an error of ours)
    """The broker's response is not the one that the case wants."""


class NotAdvertised(Exception):  # noqa: N818
    """The broker does not claim to have what is needed."""


PREPARING = "while the case prepares: "
"""The beginning of a reason that is not about the case's own statement."""


class Unsupported(Exception):  # noqa: N818
    """The broker does not do what it advertises: it responds with UNSUPPORTED_VERSION, or it creates no topics."""
