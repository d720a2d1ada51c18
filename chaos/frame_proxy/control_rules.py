"""Rules in the form of the control API (docs/control-api.md): its paths and JSON, as far as a proxy can play them.

A test that adds its rules by these works in front of any broker. What a proxy cannot do is refused, never left out.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from chaos.frame_proxy.proxy import FrameProxy
from chaos.frame_proxy.rules_file import read_rule
from reference_broker.wire.apis import ApiKey, api_name
from reference_broker.wire.errors import ErrorCode
from reports.rows import FaultRow, is_hit
from scenarios.fields import ScenarioError

PREFIX: Final = "/v1/rules"
NAMES: Final = "control-rule-"
"""The prefix of these rules' names in ``/rules`` and ``/hits``."""
MAX_WAIT_S: Final = 600.0
WAIT_S: Final = 5.0
POLL_S: Final = 0.02
KINDS: Final = {
    "drop_request": "request_dropped",
    "delay_request": "request_delayed",
    "duplicate_request": "request_duplicated",
    "drop_response": "response_dropped",
    "delay_response": "response_delayed",
    "respond_error": "response_error",
    "truncate_response": "response_truncated",
}
"""The acts that a proxy can carry out, with the kinds of faults that they are."""
ARGUMENTS: Final = {
    "delay_request": ("seconds",),
    "delay_response": ("seconds",),
    "respond_error": ("error", "handled"),
    "truncate_response": ("size_bytes",),
}
ONLY_INSIDE: Final = (
    "versions",
    "group",
    "topic",
    "partition",
    "transactional_id",
    "transaction",
    "connection",
    "probability",
    "seed",
    "within_s",
    "error_topic",
    "error_partition",
    "position",
    "milliseconds",
)
"""Fields that only a node of ``crucible serve`` can play."""
IN_BODIES: Final = (
    "group",
    "topic",
    "partition",
    "transactional_id",
    "transaction",
    "error_topic",
    "error_partition",
)
"""Those of them for which the body of the request must be decoded."""
BAD_REQUEST, NOT_FOUND, METHOD_NOT_ALLOWED, VIOLATED, LATE = 400, 404, 405, 422, 504


class Refusal(Exception):  # noqa: N818 - says what happened
    """A request that is refused, with the HTTP status and the sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class RuleWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A rule as the control API has it."""

    act: str
    api: str | list[str] = "*"
    client_id: str | None = None
    node: Annotated[int, Meta(ge=0)] | None = None
    session: bool | None = None
    sender: Literal["client"] = "client"
    times: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    nth: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    optional: bool = False
    seconds: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] | None = None
    error: str | None = None
    handled: bool | None = None
    size_bytes: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


class WaitWanted(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a wait."""

    times: Annotated[int, Meta(ge=1)] = 1
    timeout_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = WAIT_S


class AssertWanted(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an assertion."""

    times: Annotated[int, Meta(ge=1)] | None = None


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of an operation without any."""


@dataclass(frozen=True, slots=True)
class Added:
    """A rule that was added here."""

    number: int
    name: str
    wanted: RuleWanted
    text: str


class ControlRules:
    """The rules of one proxy. ``in_loop`` carries out a function in the proxy's loop."""

    def __init__(self, proxy: FrameProxy, in_loop: Callable[[Callable[[], Any]], Any]) -> None:
        self._proxy = proxy
        self._in_loop = in_loop
        self._added: dict[int, Added] = {}
        self._last = 0

    def respond(self, method: str, path: str, body: bytes, is_gone: Callable[[], bool]) -> tuple[int, object]:
        """Return status and body of the response. Raise Refusal."""
        number, _, operation = path.removeprefix(PREFIX).removeprefix("/").partition("/")
        try:
            if operation:
                return self._respond_about(method, number, operation, body, is_gone)
            if number == "check" and method == "POST":
                return 200, self._in_loop(self._check)
            if number:
                return 200, self._in_loop(lambda: self._one(method, self._find(number)))
            if method == "POST":
                wanted = _wanted(body)
                return 201, self._in_loop(lambda: self._add(wanted))
            if method == "DELETE":
                return 200, self._in_loop(self._clear)
            return 200, self._in_loop(lambda: [self._shown(rule) for rule in self._listed()])
        except (msgspec.MsgspecError, ScenarioError, UnicodeDecodeError, RecursionError) as wrong:
            raise Refusal(BAD_REQUEST, str(wrong)) from wrong

    def _respond_about(
        self, method: str, number: str, operation: str, body: bytes, is_gone: Callable[[], bool]
    ) -> tuple[int, object]:
        if operation not in ("wait", "assert-fired"):
            raise Refusal(NOT_FOUND, f"There is no {PREFIX}/{number}/{operation}: use wait or assert-fired.")
        if method != "POST":
            raise Refusal(METHOD_NOT_ALLOWED, f"{PREFIX}/{number}/{operation} has no {method}: use POST.")
        rule = self._in_loop(lambda: self._find(number))
        if operation == "wait":
            return 200, self._wait(rule, msgspec.json.decode(body or b"{}", type=WaitWanted), is_gone)
        times = msgspec.json.decode(body or b"{}", type=AssertWanted).times
        return 200, self._in_loop(lambda: self._assert_fired(rule, times))

    # In the loop

    def _listed(self) -> list[Added]:
        """Return the rules that hold. Those that ``DELETE /rules/NAME`` has removed are not among them."""
        names = {rule.name for rule in self._proxy.rules}
        return [rule for rule in self._added.values() if rule.name in names]

    def _find(self, number: str) -> Added:
        for rule in self._listed():
            if str(rule.number) == number:
                return rule
        raise Refusal(NOT_FOUND, f"There is no rule {number[:50]}: GET {PREFIX} lists those that hold.")

    def _add(self, wanted: RuleWanted) -> dict[str, Any]:
        table = _table(wanted)
        added = Added(self._last + 1, f"{NAMES}{self._last + 1}", wanted, _text(wanted))
        self._proxy.add(read_rule({**table, "name": added.name}))
        self._last = added.number
        self._added[added.number] = added
        return self._shown(added)

    def _one(self, method: str, rule: Added) -> dict[str, Any]:
        if method == "POST":
            raise Refusal(METHOD_NOT_ALLOWED, f"{PREFIX}/{rule.number} has no POST: use DELETE or GET.")
        shown = self._shown(rule)
        if method == "DELETE":
            self._proxy.remove(rule.name)
            del self._added[rule.number]
        return shown

    def _clear(self) -> dict[str, Any]:
        for rule in self._listed():
            self._proxy.remove(rule.name)
        self._added.clear()
        return {}

    def _check(self) -> dict[str, Any]:
        for rule in self._listed():
            if not rule.wanted.optional:
                self._assert_fired(rule, None)
        return {}

    def _assert_fired(self, rule: Added, times: int | None) -> dict[str, Any]:
        fired = len(self._hits(rule))
        if fired == 0 or times not in (None, fired):
            how_often = "never fired" if fired == 0 else f"fired {fired} times, not {times}"
            raise Refusal(VIOLATED, f"The rule {rule.text} {how_often}: GET /log shows what came.")
        return self._shown(rule)

    def _hits(self, rule: Added) -> list[FaultRow]:
        return [row for row in self._proxy.hits if row.name == rule.name and is_hit(row.kind)]

    def _shown(self, rule: Added) -> dict[str, Any]:
        hits, origin_s = self._hits(rule), time.time() - self._proxy.now_us() / 1e6
        return {
            "id": rule.number,
            "text": rule.text,
            "act": rule.wanted.act,
            "optional": rule.wanted.optional,
            "fired": len(hits),
            "hits": [
                {
                    "at_s": origin_s + row.at_us / 1e6,
                    "node": int(row.target.removeprefix("node-")),
                    "connection": -1,
                    "client_id": row.client_id,
                    "api": api_name(row.api_key),
                    "version": -1,
                    "what": rule.wanted.act,
                }
                for row in hits
            ],
        }

    # In the thread of a connection

    def _wait(self, rule: Added, wanted: WaitWanted, is_gone: Callable[[], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + wanted.timeout_s
        while True:
            shown: dict[str, Any] = self._in_loop(lambda: self._shown(rule))
            if shown["fired"] >= wanted.times:
                return shown
            if time.monotonic() >= deadline or is_gone():
                fired = f"has fired {shown['fired']} of {wanted.times} times"
                raise Refusal(LATE, f"After {wanted.timeout_s:g} s, the rule {rule.text} {fired}.")
            time.sleep(POLL_S)


def _wanted(body: bytes) -> RuleWanted:
    """Read a rule. Raise Refusal, msgspec.MsgspecError."""
    plain = msgspec.json.decode(body)
    for name in ONLY_INSIDE:
        if isinstance(plain, Mapping) and plain.get(name) is not None:
            why = "is matched in the decoded body" if name in IN_BODIES else "needs more than the header"
            raise Refusal(
                BAD_REQUEST,
                f"{name} {why} of a request, which a proxy does not read: match by api, client_id, node, session, or "
                "use crucible serve.",
            )
    return msgspec.convert(plain, RuleWanted)


def _table(wanted: RuleWanted) -> dict[str, Any]:
    """Return the rule with the keys of a ``[[fault]]``. Raise Refusal."""
    act = wanted.act
    if act not in KINDS:
        raise Refusal(BAD_REQUEST, f"A proxy cannot carry out {act!r}: its acts are {', '.join(KINDS)}.")
    takes = ARGUMENTS.get(act, ())
    given = {name: getattr(wanted, name) for arguments in ARGUMENTS.values() for name in arguments}
    for name, value in given.items():
        if value is not None and name not in takes:
            raise Refusal(BAD_REQUEST, f"{act} has no {name}.")
        if value is None and name in takes and name != "handled":
            raise Refusal(BAD_REQUEST, f"{act} needs {name}: give it.")
    match: dict[str, Any] = {}
    if wanted.api not in ("*", ["*"]):
        match["api"] = _api(wanted.api)
    if wanted.client_id is not None:
        match["client_id"] = wanted.client_id
    if wanted.session is not None:
        match["session"] = wanted.session
    most = 1 if wanted.times is None and wanted.nth is not None else wanted.times or 0
    table: dict[str, Any] = {
        "kind": KINDS[act],
        "on": "request" if act.endswith("_request") else "response",
        "node": "any" if wanted.node is None else wanted.node,
        "nth": wanted.nth or 1,
        "every": 1,
        "times": 0,
        "total": most,
        "match": match,
    }
    if wanted.seconds is not None:
        table["delay_ms"] = round(wanted.seconds * 1000)
    if wanted.size_bytes is not None:
        table["cut_bytes"] = wanted.size_bytes
    if wanted.error is not None:
        if wanted.handled is not True:
            raise Refusal(BAD_REQUEST, "A proxy changes the response of a node that has handled it: give handled.")
        table["code"] = _code(wanted.error)
    return table


def _api(api: str | list[str]) -> str:
    names = [api] if isinstance(api, str) else api
    if len(names) != 1:
        raise Refusal(BAD_REQUEST, "A rule of a proxy has one API, or * for all: add a rule for each.")
    known = {api_name(key).lower(): key for key in ApiKey}
    api_key = known.get(names[0].lower())
    if api_key is None:
        close = get_close_matches(names[0].lower(), known, 1)
        meant = f": did you mean {api_name(known[close[0]])}?" if close else ": give Kafka's name, such as Produce."
        raise Refusal(BAD_REQUEST, f"The API {names[0]!r} is unknown{meant}")
    return api_key.name.lower()


def _code(error: str) -> int:
    codes = {code.name.upper(): int(code) for code in ErrorCode}
    if codes.get(error.upper(), 0) == 0:
        raise Refusal(BAD_REQUEST, f"The error {error!r} is unknown: give a name of Kafka's, such as NOT_COORDINATOR.")
    return codes[error.upper()]


def _text(wanted: RuleWanted) -> str:
    """Return the rule as a test in Python would write it."""
    of_act = {name for arguments in ARGUMENTS.values() for name in arguments} | {"times", "nth", "optional"}
    shown = {
        name: value
        for name in wanted.__struct_fields__
        if name not in ("act", "api", "sender")
        and (value := getattr(wanted, name)) is not None
        and (value is not False or name == "session")  # A node may be 0.
    }
    match = "".join(f", {name}={value!r}" for name, value in shown.items() if name not in of_act)
    act = ", ".join(f"{name}={value!r}" for name, value in shown.items() if name in of_act)
    api = wanted.api if isinstance(wanted.api, str) else wanted.api[0]
    return f'on("{api}"{match}).{wanted.act}({act})'
