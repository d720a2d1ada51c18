"""The variants of fetchers as a table of habits, and the plan of one fetcher."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from reference_broker.client.partitions import TopicPartition

NO_SESSIONS: Final = "none"
REVISIONS: Final = ("final", "first", NO_SESSIONS)
"""The revisions of fetch sessions. With ``none`` each fetch is a full one, whatever the variant."""


class OnLost(Enum):
    """What a fetcher does when no answer comes. Stock clients, which know the final revision only, FALL_BACK."""

    FALL_BACK = "full fetch in a new session; in the first revision the same request with the same number again"
    NAME_ALL = "full fetch in both revisions, as stock clients do; in the first it stays in its session"
    RESEND = "the same request with the same epoch again"
    PRESUME = "the next epoch, as if the answer had been empty; it names all in the first revision, and nothing else"


@dataclass(frozen=True, slots=True)
class Habits:
    """Every ``forget_every`` polls some hot partitions are dropped, or taken back if some are. Every ``seek_every``
    polls some are read from the log's start again. 0 means never. Who ``forgets_all`` drops its idle partition,
    too, and thereby ends its session."""

    sessionless: bool = False
    on_lost: OnLost = OnLost.FALL_BACK
    forget_every: int = 0
    forgets_all: bool = False
    seek_every: int = 0

    def __post_init__(self) -> None:
        moves = self.forget_every or self.seek_every
        # A request that is sent again, or presumed processed, must still say where the fetcher is.
        assert self.on_lost is OnLost.FALL_BACK or not moves, "only a fetcher that falls back may drop or seek"


VARIANTS: Final[Mapping[str, Habits]] = {
    "full": Habits(sessionless=True),
    "incremental": Habits(),
    "forgetting": Habits(forget_every=5),
    "emptying": Habits(forget_every=5, forgets_all=True),
    "rotating": Habits(seek_every=20),
    "refetching": Habits(on_lost=OnLost.NAME_ALL),
    "resending": Habits(on_lost=OnLost.RESEND),
    "presuming": Habits(on_lost=OnLost.PRESUME),
}


@dataclass(frozen=True, slots=True)
class FetcherPlan:
    """``partitions`` are what it reads, its own idle partition first. ``poll_interval_us`` is the time between the
    intended times of two polls at the same node. A fetcher waits at the broker, so it is a closed loop: a poll that is
    due while another runs is due when that one ends. ``revision`` is one of REVISIONS. ``newest_version`` is the newest
    version of Fetch that it speaks."""

    process: str
    variant: str
    partitions: tuple[TopicPartition, ...]
    poll_interval_us: int = 100_000
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 8 << 20
    partition_max_bytes: int = 1 << 20
    revision: str = "final"
    first_epoch: int = 1
    newest_version: int = 18

    @property
    def sessionless(self) -> bool:
        return self.revision == NO_SESSIONS or VARIANTS[self.variant].sessionless
