"""A rule as plain values: which requests it matches, when it acts, and what it does. A node gets it as a command."""

from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from random import Random
from typing import Any, Final, Literal, Self, TypeAlias

from crucible_kafka.library.message_facts import Facts
from reference_broker.core.events import Request
from reference_broker.wire.fetch import FINAL_EPOCH, INITIAL_EPOCH, FetchRequest

Act: TypeAlias = Literal[
    "drop_request",
    "drop_response",
    "hang",
    "close_before",
    "close_after",
    "delay_request",
    "delay_response",
    "reorder",
    "duplicate_request",
    "respond_error",
    "truncate_response",
    "damage_response",
    "throttle",
]
"""The action of a rule. ``Matcher`` documents each, and ``rule_engine`` carries it out."""
FunctionAct: TypeAlias = Literal["change_response", "change_bytes"]
"""Acts of a function of the test, which only nodes in the test's process can call."""
NEED_NO_RESPONSE: Final = ("drop_request", "close_before", "delay_request", "reorder", "duplicate_request")
"""Acts on the request alone, so that they suit a Produce with acks=0, too."""
SESSIONS: Final = ("new", "incremental", "closing")
SENDERS: Final = ("client", "node", "any")
Session: TypeAlias = "bool | str | int | None"

"""Session epochs of a Fetch that closes a session, and of one that would begin one (KIP-227)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSpec:
    """Fields that are None match everything. Names are patterns (``app-*``)."""

    id: int
    apis: tuple[int, ...] | None
    act: Act | FunctionAct
    versions: tuple[int, int] | None = None
    client_id: str | None = None
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    transactional_id: str | None = None
    transaction: str | None = None
    """The state of the transactional ID at the coordinator that gets the request."""
    node: int | None = None
    connection: int | None = None
    session: Session = None
    sender: str = "client"
    nth: int | None = None
    times: int | None = None
    probability: float | None = None
    seed: int = 0
    handled: bool = False
    """For ``hang`` and ``respond_error``: whether the node handles the request first."""
    seconds: float = 0.0
    error: int = 0
    error_topic: str | None = None
    error_partition: int | None = None
    position: int = 0
    """For ``truncate_response`` the number of bytes, for ``damage_response`` the position of the byte."""
    milliseconds: int = 0
    change: int = 0
    """For a ``FunctionAct``: the number of the ``ResponseChange``."""

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Self:
        """Return the rule that ``plain`` made, also after JSON has turned tuples into lists."""
        values: dict[str, Any] = {key: tuple(each) if isinstance(each, list) else each for key, each in plain.items()}
        return cls(**values)

    def matches(self, node: int, request: Request) -> bool:
        """Return whether the header of the request matches. ``matches_facts`` judges its body."""
        return (
            (self.apis is None or request.api_key in self.apis)
            and (self.versions is None or self.versions[0] <= request.api_version <= self.versions[1])
            and (self.sender == "any" or (self.sender == "node") == (request.tag.role == "peer"))
            and (self.client_id is None or fnmatchcase(request.client_id, self.client_id))
            and self.node in (None, node)
            and self.connection in (None, request.connection)
            and (self.session is None or _has_session(request, self.session))
        )

    @property
    def needs_facts(self) -> bool:
        wanted = (
            self.group,
            self.topic,
            self.partition,
            self.transactional_id,
            self.transaction,
            self.error_partition,
        )
        return any(each is not None for each in wanted)

    def matches_facts(self, facts: Facts) -> bool:
        """Return whether what the body names matches. A topic and a partition must be those of one item.

        A request that names partitions must name the one that an error is about.
        """
        if self.error_partition is not None and facts.partitions:
            pattern = self.error_topic or self.topic or "*"
            if not _any_partition_fits(facts, pattern, self.error_partition):
                return False
        if self.group is not None and not _any_fits(facts.groups, self.group):
            return False
        if self.transactional_id is not None and not _any_fits(facts.transactional_ids, self.transactional_id):
            return False
        if self.partition is not None:
            return _any_partition_fits(facts, self.topic or "*", self.partition)
        return self.topic is None or _any_fits(facts.topics, self.topic)

    def acts_on(self, number: int) -> bool:
        """Return whether it acts on this matching request, counted from 1 over the cluster. ``times`` is counted
        apart."""
        if self.nth is not None and number < self.nth:
            return False
        return self.probability is None or Random(f"{self.seed}-{number}").random() < self.probability

    @property
    def most(self) -> int | None:
        """Largest number of times that it acts, None for no limit."""
        return 1 if self.times is None and self.nth is not None else self.times


def _any_fits(names: set[str], pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _any_partition_fits(facts: Facts, topic: str, partition: int) -> bool:
    return any(index == partition and fnmatchcase(name, topic) for name, index in facts.partitions)


def _has_session(request: Request, session: Session) -> bool:
    body = request.body
    if not isinstance(body, FetchRequest):
        return False
    if session is True or session is False:
        return (body.session_id != 0) == session
    if isinstance(session, int):
        return body.session_id == session
    if body.session_epoch == INITIAL_EPOCH:
        return session == "new"
    return session == ("closing" if body.session_epoch == FINAL_EPOCH else "incremental") and body.session_id != 0
