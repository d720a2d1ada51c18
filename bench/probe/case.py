"""What a case is: one statement about a broker, with its source, and a short conversation that shows it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from bench.probe.surroundings import Surroundings

NEWEST = 0x7FFF
LIMIT_S = 20.0
CHECKED_SECTION = "handshake/"
"""Cases of this section send what no client sends. Each runs alone, and a broker that ends is noticed at its case."""


class Level(Enum):
    """How much a statement binds, in the words of RFC 2119."""

    MUST = "MUST"
    SHOULD = "SHOULD"


MUST, SHOULD = Level.MUST, Level.SHOULD

Play: TypeAlias = "Callable[[Surroundings], None]"
Versions: TypeAlias = tuple[int, int]
"""The lowest and the highest version of an API, both included."""


@dataclass(frozen=True, slots=True)
class Case:
    """``id`` has a section and a name (``fetch/session/wrong-epoch``) and never changes. ``words`` are what must hold.

    ``source``: the KIP, schema or issue that says so. ``since``: the release of Apache Kafka that brought it.
    ``needs``: the APIs that the case is about, with the versions that it can speak. ``hostile``: it may harm a weak
    broker, so it is played against loopback only. ``alone``: no other case may run meanwhile. ``restarts``: the broker
    must be restarted, which only a target that the probe has started can be. ``limit_s``: the time for all of it.
    """

    id: str
    words: str
    source: str
    level: Level
    needs: Mapping[int, Versions]
    since: str
    hostile: bool
    alone: bool
    restarts: bool
    limit_s: float
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
) -> Callable[[Play], Case]:
    """Makes a case of a function. Its docstring becomes the case's words."""

    def made(play: Play) -> Case:
        assert play.__doc__, f"{id} has no words"
        words = " ".join(play.__doc__.split())
        by_itself = alone or hostile or restarts or id.startswith(CHECKED_SECTION)
        return Case(id, words, source, level, needs, since, hostile, by_itself, restarts, limit_s, play)

    return made


def since_version(lowest: int) -> Versions:
    """All versions from this one on."""
    return lowest, NEWEST


ANY = since_version(0)
