"""The rules of one node: which of them strikes now, and what all strikes have in common."""

from collections.abc import Callable, Iterator, Sequence
from random import Random

from chaos.claims import Claims
from chaos.powers import Powers
from chaos.rules import Counter, Rule
from reference_broker.wire.tags import Tag
from reports.rows import FaultRow
from scenarios.model import Match
from scenarios.vocabulary import PLACES

NO_FRAME = Tag(-1, -1, "")
"""The tag in the evidence of a strike at a disk write or a note, which belong to no request."""


def _anything(_: Rule) -> bool:
    return True


class RuleBook:
    """All nodes of the run share ``claims``. ``role`` says what this node is now (``chaos.roles.role_of``).

    Whoever drives it sets ``now_us``, the time since the run's start.
    """

    def __init__(
        self,
        node: int,
        rules: Sequence[Rule],
        powers: Powers,
        random: Random,
        claims: Claims,
        role: Callable[[], str],
    ) -> None:
        self.now_us = 0
        self._node = node
        self._powers = powers
        self._random = random
        self._claims = claims
        self._role = role
        self._load_from_us = 0
        self._armed = True
        self._by_place: dict[str, list[Counter]] = {place: [] for place in PLACES}
        for rule in rules:
            self.add(rule)

    def add(self, rule: Rule) -> None:
        self._by_place[rule.on].append(Counter(rule, self._claims))

    def remove(self, name: str) -> None:
        """Strikes the rule from the book. What it began still ends as planned."""
        for counters in self._by_place.values():
            counters[:] = [each for each in counters if each.rule.name != name]

    def load_from(self, at_us: int) -> None:
        """Notes that the load begins at ``at_us``, microseconds since the run's start."""
        self._load_from_us = at_us

    def disarm(self) -> None:
        self._armed = False

    def looks_at(self, *places: str) -> bool:
        """Returns whether there is a rule for one of these places."""
        return any(self._by_place[place] for place in places)

    def rules(self, place: str) -> Iterator[Rule]:
        return (counter.rule for counter in self._by_place[place])

    def hits(
        self,
        place: str,
        client_id: str,
        matches: Callable[[Match, str], bool],
        offers: Callable[[Rule], bool] = _anything,
    ) -> Iterator[tuple[Rule, int]]:
        """Yields each rule that strikes now, with the number of this hit. A match is counted only when the caller comes
        to its rule. ``offers`` says whether what is matched has what the rule changes."""
        due = self._due(place)
        if not due:
            return
        role, at_us = self._role(), self._at_us
        for counter in due:
            if counter.at(self._node, role) and matches(counter.rule.match, role) and offers(counter.rule):
                hit = counter.hit(client_id, at_us)
                if hit:
                    yield counter.rule, hit

    def may_hit(self, place: str, matches: Callable[[Match, str], bool]) -> bool:
        """Returns whether ``hits`` would count a match. It counts none."""
        due = self._due(place)
        role = self._role() if due else ""
        return any(counter.at(self._node, role) and matches(counter.rule.match, role) for counter in due)

    @property
    def _at_us(self) -> int:
        return self.now_us - self._load_from_us

    def _due(self, place: str) -> Sequence[Counter]:
        counters = self._by_place[place]
        if not counters or not self._armed:
            return ()
        at_us = self._at_us
        return [counter for counter in counters if counter.is_due(at_us)]

    def strike_node(self, rule: Rule) -> None:
        if rule.kind == "node_killed":
            self._powers.kill()
        elif rule.kind == "node_powered_off":
            self._powers.power_off()
        elif rule.kind == "node_paused":
            self._powers.pause(int(rule.duration_s * 1_000_000))
        elif rule.kind == "clock_stepped":
            self._powers.step_clock(rule.step_ms)
        else:
            raise AssertionError(
                f"rule {rule.name}: {rule.kind} cannot be done on {rule.on}; the loader should have refused it"
            )

    def delay_us(self, rule: Rule) -> int:
        """Draws the delay of one strike."""
        return self._random.randint(*rule.delay_ms) * 1000

    def role(self) -> str:
        return self._role()

    def report(self, rule: Rule, hit: int, tag: Tag = NO_FRAME, detail: str = "", kind: str = "") -> None:
        """Leaves evidence of a strike. It must come before the strike itself."""
        if rule.kind == "clock_stepped":
            detail = f"{detail} step_ms={rule.step_ms}".lstrip()
        self._powers.report(
            FaultRow(
                rule.name,
                kind or rule.kind,
                self.now_us,
                self.now_us,
                f"node-{self._node}",
                hit,
                tag.client_id,
                tag.api_key,
                tag.session_id,
                tag.session_epoch,
                detail,
            )
        )
