"""What came of a case."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from bench.probe.case import Case, Level
from bench.probe.conversation import Line


class Verdict(Enum):
    """FAIL and DIFFERS: the broker does something else than a MUST or a SHOULD says. NOT_ADVERTISED: it does not claim
    to have what the case needs, which is no failure. INCONSISTENT: it claims so, but it closes the connection, stays
    silent, answers bytes that are no answer, or says that the version is not supported. NOT_PLAYED: a hostile case and
    a target that is not on loopback, a restart and a target that the probe cannot restart, or a broker that is gone.
    OUR_ERROR: the case itself stumbles, which says nothing about the broker."""

    PASS = "pass"
    FAIL = "fail"
    DIFFERS = "differs"
    NOT_ADVERTISED = "not advertised"
    INCONSISTENT = "inconsistent"
    NOT_PLAYED = "not played"
    OUR_ERROR = "our error"


@dataclass(frozen=True, slots=True)
class Observation:
    """One field that decides: what it is, what the broker told, and what was wanted, in words."""

    what: str
    seen: str
    wanted: str


@dataclass(frozen=True, slots=True)
class Outcome:
    case: Case
    verdict: Verdict
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
        """Whether the case itself stumbled. The run fails for it, as nobody knows what the broker would have done."""
        return self.verdict is Verdict.OUR_ERROR

    def is_red(self, strict: bool) -> bool:
        """Whether the broker fails the case. With ``strict``, a SHOULD counts like a MUST. The end of a broker always
        counts."""
        broken = self.verdict in (Verdict.FAIL, Verdict.DIFFERS, Verdict.INCONSISTENT)
        return broken and (strict or self.ended or self.case.level is Level.MUST)


class Unexpected(Exception):  # noqa: N818  (what the broker told, not an error of ours)
    """The broker's answer is not the one that the case wants."""


class NotAdvertised(Exception):  # noqa: N818
    """The broker does not claim to have what is needed."""


PREPARING = "while the case prepares: "
"""So begins a reason that is not about what the case says."""


class Unsupported(Exception):  # noqa: N818
    """The broker does not do what it advertises: it answers UNSUPPORTED_VERSION, or it makes no topics."""
