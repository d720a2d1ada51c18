"""Report card of suites: ``docs/evidence/suites.md``, made from one file a suite in ``docs/evidence/data/suites``.

A suite that is played replaces its own file only, so the others keep what was seen last.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from campaigns.suites.play import ON_KAFKA, Result
from campaigns.suites.suite import Suite, SuiteOutcome

EVIDENCE = Path(__file__).resolve().parents[2] / "docs" / "evidence"
PAGE = EVIDENCE / "suites.md"
CARDS = EVIDENCE / "data" / "suites"
INTRODUCTION = """# Test suites of clients

Suites that others wrote for their clients, played on the reference broker, and on Apache Kafka where a test
failed that is not allowed. `nox -s suites` plays them again. A red test fails here and not on Apache Kafka.
[campaigns/suites](../../campaigns/suites/README.md) says how, and which suites no registry has.
"""
BY_HAND = """
## Played once from the source repository

The packages of these suites have no tests, so no night plays them. Each was played by hand from the named commit, with
its addresses and the IDs of its nodes adapted. A failure was played on Apache Kafka 4.1.1, too, unless its reason is
what is not served, or lies outside the broker. The documentation of settings differs. The names of the tests are
in `data/suites`.
"""
_HEAD = [
    "| suite | version | passed | skipped | failed | of these on Apache Kafka, too | allowed | red | seen |",
    "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
]


@dataclass(frozen=True, slots=True)
class Card:
    """The result of a suite."""

    title: str
    version: str
    seen: str
    """when and where it was played"""
    passed: int
    skipped: int
    failed: dict[str, str]
    """why a failed test does not count against the broker, by its name; empty if it counts"""
    by_hand: bool = False
    """played from the source repository, and not by ``nox -s suites``"""

    @classmethod
    def of(cls, result: Result, seen: str) -> "Card":
        """Make the card of a run."""
        failed = {name: result.why(name) for name in result.failed}
        counts = result.count(SuiteOutcome.PASSED), result.count(SuiteOutcome.SKIPPED)
        return cls(result.suite.title, result.suite.version, seen, *counts, failed)

    @property
    def red(self) -> int:
        return sum(not why for why in self.failed.values())

    @property
    def on_kafka(self) -> int:
        """Number of tests that fail on Apache Kafka, too."""
        return sum(why == ON_KAFKA for why in self.failed.values())

    @property
    def allowed(self) -> int:
        return len(self.failed) - self.on_kafka - self.red


def keep(name: str, card: Card, folder: Path = CARDS) -> None:
    """Write the file of a suite."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(asdict(card), indent=1) + "\n", encoding="utf-8")


def kept(folder: Path = CARDS) -> list[Card]:
    """Return the cards of all suites that were played, by name."""
    return [Card(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))]


def page(cards: Sequence[Card], suites: Sequence[Suite]) -> str:
    """Return the report card in Markdown. ``suites`` are all that could be played."""
    played = [card for card in cards if not card.by_hand]
    lines = [INTRODUCTION, *_HEAD, *map(_row, played)]
    if unseen := [suite.title for suite in suites if suite.title not in {card.title for card in cards}]:
        lines += ["", f"Not played yet: {'; '.join(unseen)}."]
    for card in played:
        if card.failed:
            lines += ["", f"## {card.title}", "", "| test | why |", "| --- | --- |"]
            lines += [f"| `{name}` | {why or '**red**'} |" for name, why in card.failed.items()]
    by_hand = [card for card in cards if card.by_hand]
    if by_hand:
        lines += [
            BY_HAND,
            *_HEAD,
            *map(_row, by_hand),
            "",
            "| suite | why | tests that failed |",
            "| --- | --- | ---: |",
        ]
        for card in by_hand:
            reasons = Counter(why or "**red**" for why in card.failed.values())
            lines += [f"| {card.title} | {why} | {count} |" for why, count in reasons.most_common()]
    return "\n".join(lines) + "\n"


def _row(card: Card) -> str:
    counts = (card.passed, card.skipped, len(card.failed), card.on_kafka, card.allowed, card.red)
    return f"| {' | '.join(map(str, (card.title, card.version, *counts, card.seen)))} |"
