"""Rules as a test writes them.

For example, ``kafka.on("OffsetCommit", client_id="app-*").drop_response(times=1)``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypedDict, Unpack

from crucible_kafka.library.arguments import checked
from crucible_kafka.library.error_responses import has_place, has_throttle_time, names_in_requests, served_versions
from crucible_kafka.library.errors import CrucibleTimeout, RuleNeverFired, no_attribute
from crucible_kafka.library.hit_counts import HitCounts
from crucible_kafka.library.message_facts import WHERE_NAMED
from crucible_kafka.library.requests import wait_for
from crucible_kafka.library.response_changes import ResponseChange
from crucible_kafka.library.rule_spec import SENDERS, SESSIONS, Act, FunctionAct, RuleSpec, Session
from reference_broker.apis.registry import SERVED
from reference_broker.transactions.transaction_metadata import TransactionState
from reference_broker.wire.apis import VERSIONS, ApiKey, api_name
from reference_broker.wire.errors import ErrorCode, error_name

NOT_NUMBERED: Final = 0
"""The ID of a rule before the cluster gives it one."""
API_KEYS: Final = {api_name(key).lower(): int(key) for key in SERVED if key in VERSIONS}
"""The APIs that nodes serve, by name in lower case."""
WAIT_S: Final = 5.0


class Counts(TypedDict, total=False):
    """Selection of the matching requests on which a rule acts. They are counted over the whole cluster.

    ``nth`` is the first one, from 1 on. ``times`` is how often it acts: once if ``nth`` is given, else without limit.
    With ``probability`` (0 to 1) it acts on that share of them, and ``seed`` says on which. A rule that is ``optional``
    need not act.
    """

    nth: int
    times: int
    probability: float
    seed: int
    optional: bool


class MatchFields(TypedDict, total=False):
    """The fields of ``RuleSpec`` that match requests, beside the API."""

    versions: tuple[int, int] | None
    client_id: str | None
    group: str | None
    topic: str | None
    partition: int | None
    transactional_id: str | None
    transaction: str | None
    node: int | None
    connection: int | None
    session: Session
    sender: str


@dataclass(frozen=True, slots=True)
class Hit:
    """One time that a rule acted."""

    at_s: float
    """Unix time."""
    node: int
    connection: int
    client_id: str
    api: str
    version: int
    what: str


@checked(besides=("__init__",))
class Rule:
    """A rule that holds until ``remove``, or until the cluster closes."""

    def __init__(
        self,
        spec: RuleSpec,
        text: str,
        optional: bool,
        counts: HitCounts,
        what_came: Callable[[tuple[int, ...] | None], str],
        remove: Callable[[int], None],
        change: ResponseChange | None = None,
    ) -> None:
        self.spec = spec
        self.change = change
        self.optional = optional
        self._text = text
        self._counts = counts
        self._what_came = what_came
        self._remove = remove

    def __repr__(self) -> str:
        return f"<rule {self.spec.id}: {self._text}, fired {self.fired} times>"

    def __str__(self) -> str:
        return self._text

    @property
    def hits(self) -> list[Hit]:
        """Each time that it acted, in order."""
        return [Hit(**hit) for hit in self._counts.hits()]

    @property
    def fired(self) -> int:
        """Number of times it has acted so far, on all nodes."""
        return len(self._counts.hits())

    def assert_fired(self, times: int | None = None) -> None:
        """Raise RuleNeverFired, which is an AssertionError, unless it has acted: ``times`` times, or at least once."""
        if self.change is not None:
            self.change.check()
        fired = self.fired
        if fired != times if times is not None else fired == 0:
            wanted = "" if times is None else f", not {times}"
            how_often = "never fired" if fired == 0 else f"fired {fired} times{wanted}"
            raise RuleNeverFired(f"The rule {self._text} {how_often}; {self._what_came(self.spec.apis)}.")

    def wait_fired(self, times: int = 1, timeout: float = WAIT_S) -> None:
        """Wait until it has acted ``times`` times. Raise CrucibleTimeout after ``timeout`` seconds."""

        def late() -> str:
            fired = f"fired {self.fired} of {times} times"
            return f"the rule {self._text} has {fired}; {self._what_came(self.spec.apis)}."

        wait_for(lambda: True if self.fired >= times else None, late, timeout)

    def remove(self) -> None:
        """Let requests pass again. What it did remains known. A second call does nothing."""
        self._remove(self.spec.id)


@checked(besides=("__init__",))
class Matcher:
    """Requests that match, and what may be done to them. Each method makes a rule that holds from its return on.

    Every method takes ``Counts``: ``times``, ``nth``, ``probability``, ``seed``, ``optional``.
    """

    def __init__(
        self,
        add: Callable[[RuleSpec, str, bool, ResponseChange | None], Rule],
        api: str | Sequence[str],
        match: MatchFields,
        counts: Counts,
    ) -> None:
        self._add = add
        self._apis = _api_keys(api)
        _check_counts({key: value for key, value in counts.items() if key != "optional"})
        self._match = match
        self._counts = counts
        _check_match(self._apis, match)

    def drop_request(self, **counts: Unpack[Counts]) -> Rule:
        """Lose the request: the node never sees it, and the connection breaks."""
        return self._rule("drop_request", counts)

    def drop_response(self, **counts: Unpack[Counts]) -> Rule:
        """Lose the response: the node has handled the request, and the connection breaks before the client knows."""
        return self._rule("drop_response", counts)

    def hang(self, *, handled: bool = False, **counts: Unpack[Counts]) -> Rule:
        """Send no response, and keep the connection open, so that the client has to time out. With ``handled`` the node
        carries out the request first."""
        return self._rule("hang", counts, handled=handled)

    def close_before(self, **counts: Unpack[Counts]) -> Rule:
        """Close the connection in order, instead of handling the request."""
        return self._rule("close_before", counts)

    def close_after(self, **counts: Unpack[Counts]) -> Rule:
        """Send the response, then close the connection."""
        return self._rule("close_after", counts)

    def delay_request(self, seconds: float, **counts: Unpack[Counts]) -> Rule:
        """Hand the request to the node later, also if the client has left meanwhile. The connection's next requests
        wait."""
        return self._rule("delay_request", counts, seconds=_at_least_0("seconds", seconds))

    def delay_response(self, seconds: float, **counts: Unpack[Counts]) -> Rule:
        """Handle the request at once, and send the response later."""
        return self._rule("delay_response", counts, seconds=_at_least_0("seconds", seconds))

    def reorder(self, within_s: float = 1.0, **counts: Unpack[Counts]) -> Rule:
        """Hold the request until another one that matches was handled, on another connection, or for ``within_s``."""
        return self._rule("reorder", counts, seconds=_at_least_0("within_s", within_s))

    def duplicate_request(self, **counts: Unpack[Counts]) -> Rule:
        """Let the node handle the request twice. The client gets the first response."""
        return self._rule("duplicate_request", counts)

    def respond_error(
        self,
        error: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        handled: bool = False,
        **counts: Unpack[Counts],
    ) -> Rule:
        """Respond with an error by Kafka's name: for the whole request, or for one partition.

        The node does not carry out what is refused, as a broker that refuses it would not; with ``handled`` it does
        first. An API without an error of its own gets it in each item, such as in each partition of an OffsetCommit.

        >>> kafka.on("Produce").respond_error("NOT_LEADER_OR_FOLLOWER", partition=0, times=1)
        """
        code = _error_code(error)
        _check_type("partition", partition, int, at_least=0)
        _check_type("topic", topic, str)
        if topic is not None and partition is None:
            raise ValueError("topic is given, and no partition: write on(..., topic=...), or give partition, too.")
        for key in self._apis or ():
            versions = self._match.get("versions") or served_versions(key)
            if not has_place(key, versions, of_partition=partition is not None):
                where = "for a partition" if partition is not None else "at all"
                fix = "leave out partition" if partition is not None else "use another act"
                raise ValueError(f"A response of {api_name(key)} has no error code {where}: {fix}.")
        return self._rule(
            "respond_error", counts, error=code, error_topic=topic, error_partition=partition, handled=handled
        )

    def truncate_response(self, size_bytes: int, **counts: Unpack[Counts]) -> Rule:
        """Send the first bytes of the response, and close the connection. The 4 bytes of the length count."""
        return self._rule("truncate_response", counts, position=int(_at_least_0("size_bytes", size_bytes)))

    def damage_response(self, position: int, **counts: Unpack[Counts]) -> Rule:
        """Invert the byte at this position of the response, which counts from its end if it is negative. The first 4
        bytes are the length, the next 4 the correlation ID."""
        _check_type("position", position, int)
        return self._rule("damage_response", counts, position=position)

    def throttle(self, milliseconds: int, **counts: Unpack[Counts]) -> Rule:
        """Say in the response that the client was throttled that long, so that it waits with its next request."""
        for key in self._apis or ():
            if not has_throttle_time(key):
                raise ValueError(f"A response of {api_name(key)} has no throttle time: use delay_response.")
        return self._rule("throttle", counts, milliseconds=int(_at_least_0("milliseconds", milliseconds)))

    def change_response(self, change: Callable[[Any], Any], **counts: Unpack[Counts]) -> Rule:
        """Send what ``change`` makes of the response's body: a dataclass with the fields of the newest version.

        It returns another body, None to lose the response with its connection, or the same body to let it pass, which
        does not count. The node calls it on its thread, so this works with nodes in the test's process only. Raise
        NotPossible for others.

        >>> kafka.on("Metadata").change_response(lambda body: replace(body, brokers=()), times=1)
        """
        return self._rule("change_response", counts, change=ResponseChange(change))

    def change_bytes(self, change: Callable[[bytes], bytes], **counts: Unpack[Counts]) -> Rule:
        """Send what ``change`` makes of the whole response as bytes. The first 4 are the length, the next 4 the
        correlation ID. As ``change_response``, it works with nodes in the test's process only."""
        return self._rule("change_bytes", counts, change=ResponseChange(change))

    if not TYPE_CHECKING:  # A type checker that saw it would take every name for an attribute.

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(self, name)

    def _rule(
        self, act: Act | FunctionAct, counts: Counts, *, change: ResponseChange | None = None, **fields: Any
    ) -> Rule:
        merged: dict[str, Any] = {**self._counts, **counts}
        optional = merged.pop("optional", False)
        if not isinstance(optional, bool):
            raise TypeError(f"optional is {optional!r}: give True or False.")
        _check_counts(merged)
        number = 0 if change is None else change.number
        spec = RuleSpec(id=NOT_NUMBERED, apis=self._apis, act=act, change=number, **self._match, **merged, **fields)
        shown = fields if change is None else {"change": change, **fields}
        return self._add(spec, self._text(act, {**shown, **merged}), optional, change)

    def _text(self, act: str, fields: dict[str, Any]) -> str:
        """Return the rule as it could be written in a test."""
        api = '"*"' if self._apis is None else " or ".join(f'"{api_name(key)}"' for key in self._apis)
        match = {name: value for name, value in self._match.items() if value not in (None, "client")}
        if "error" in fields:
            fields["error"] = error_name(fields["error"])
        if act == "truncate_response":
            fields = {"size_bytes": fields.pop("position"), **fields}
        shown = {
            name.removeprefix("error_"): value
            for name, value in fields.items()
            if value is not None and value is not False  # A partition or a position may be 0.
        }
        return f"on({_shown(api, match)}).{act}({_shown('', shown)})"


def _shown(first: str, values: dict[str, Any]) -> str:
    return ", ".join([*([first] if first else []), *(f"{name}={value!r}" for name, value in values.items())])


def _api_keys(api: str | Sequence[str]) -> tuple[int, ...] | None:
    names: list[Any] = list(api) if isinstance(api, list | tuple | set) else [api]
    for name in names:
        _check_type("api", name, str, optional=False)
    if not names:
        raise ValueError('api is empty: give the name of an API, such as "Produce", or "*" for all.')
    if names == ["*"]:
        return None
    return tuple(api_key_of(name) for name in names)


def api_key_of(name: str) -> int:
    """Return the key of an API by its name, whatever its case. Raise ValueError."""
    key = API_KEYS.get(name.lower())
    if key is None:
        close = get_close_matches(name.lower(), API_KEYS, 1)
        meant = f": did you mean {api_name(API_KEYS[close[0]])}?" if close else ": give Kafka's name, such as Produce."
        known = "is not served" if name.lower() in {api_name(each).lower() for each in ApiKey} else "is unknown"
        raise ValueError(f"The API {name!r} {known}{meant}")
    return key


def _check_match(apis: tuple[int, ...] | None, match: MatchFields) -> None:
    for field in ("client_id", "group", "topic", "transactional_id", "transaction", "sender"):
        _check_type(field, match.get(field), str)
    for field in ("partition", "node", "connection"):
        _check_type(field, match.get(field), int, at_least=0)
    session = match.get("session")
    if not isinstance(session, bool | str | int | None):
        raise TypeError(f"session is {session!r}: give True, False, an ID, or one of {', '.join(SESSIONS)}.")
    for field, names in WHERE_NAMED.items():
        is_named = apis is None or any(names_in_requests(key, names) for key in apis)
        if match.get(field) is not None and not is_named:
            which = " or ".join(api_name(key) for key in apis or ())
            raise ValueError(f"A request of {which} names no {field.replace('_', ' ')}, so the rule can never match.")
    versions = match.get("versions")
    if versions is not None and not (
        isinstance(versions, tuple | list)
        and len(versions) == 2
        and all(isinstance(version, int) for version in versions)
    ):
        raise TypeError(f"versions is {versions!r}: give a version, or the lowest and the highest, such as (4, 11).")
    if versions is not None and versions[0] > versions[1]:
        raise ValueError(f"versions is {versions}: give the lowest first.")
    for key in apis or ():
        least, greatest = served_versions(key)
        if versions is not None and (versions[1] < least or versions[0] > greatest):
            raise ValueError(
                f"versions is {versions}, and {api_name(key)} has {least} to {greatest}, so the rule can never match."
            )
    if session is not None and (apis is None or ApiKey.FETCH not in apis):
        raise ValueError('session is given, and only a Fetch has sessions: write on("Fetch", session=...).')
    if isinstance(session, str) and session not in SESSIONS:
        raise ValueError(f"session is {session!r}: give True, False, an ID, or one of {', '.join(SESSIONS)}.")
    if match.get("sender", "client") not in SENDERS:
        raise ValueError(f"sender is {match.get('sender')!r}: give one of {', '.join(SENDERS)}.")
    states = [state.value for state in TransactionState]
    if match.get("transaction") not in (None, *states):
        raise ValueError(f"transaction is {match.get('transaction')!r}: give one of {', '.join(states)}.")


def _check_counts(counts: dict[str, Any]) -> None:
    unknown = set(counts) - {"nth", "times", "probability", "seed"}
    if unknown:
        names = [*MatchFields.__annotations__, *Counts.__annotations__]
        close = [match for name in sorted(unknown) for match in get_close_matches(name, names, 1)]
        meant = f" Did you mean {' and '.join(close)}?" if close else ""
        raise TypeError(
            f"{', '.join(sorted(unknown))}: the counts are nth, times, probability, seed and optional.{meant}"
        )
    for name in ("nth", "times"):
        _check_type(name, counts.get(name), int, at_least=1)
    _check_type("seed", counts.get("seed"), int)
    probability = counts.get("probability")
    _check_type("probability", probability, int, float)
    if probability is not None and not 0 < probability <= 1:
        raise ValueError(f"probability is {probability}: give more than 0, and at most 1.")


def _error_code(name: str) -> int:
    _check_type("error", name, str, optional=False)
    by_name = {each.name.upper(): int(each) for each in ErrorCode}
    code = by_name.get(name.upper())
    if code is None:
        close = get_close_matches(name.upper(), by_name, 1)
        meant = f": did you mean {close[0]}?" if close else ": give a name of Kafka's Errors, such as NOT_COORDINATOR."
        raise ValueError(f"The error {name!r} is unknown{meant}")
    if code == 0:
        raise ValueError("NONE is no error: give a name of Kafka's Errors, such as NOT_COORDINATOR.")
    return code


def _at_least_0(name: str, value: float) -> float:
    _check_type(name, value, int, float, optional=False, at_least=0)
    return value


def _check_type(name: str, value: object, *kinds: type, optional: bool = True, at_least: int | None = None) -> None:
    """Raise TypeError or ValueError here, where the test's author sees it: in a node it would end the node."""
    if value is None and optional:
        return
    if not isinstance(value, kinds) or isinstance(value, bool):
        wanted = {str: "a string", int: "a whole number", float: "a number"}[kinds[-1]]
        raise TypeError(f"{name} is {value!r}: give {wanted}.")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{name} is {value}: give a finite number.")
    if at_least is not None and isinstance(value, int | float) and value < at_least:
        raise ValueError(f"{name} is {value}: give at least {at_least}.")


__all__ = ["Counts", "CrucibleTimeout", "Hit", "MatchFields", "Matcher", "Rule"]
