"""Outcomes as one JSON json_document, which --baseline reads again."""

import json
from collections.abc import Mapping, Sequence

from bench.probe.told.text import needs
from bench.probe.verdict import Outcome


def json_document(target: str, outcomes: Sequence[Outcome], kafka: Mapping[str, str]) -> str:
    """``kafka``: what Apache Kafka answers, by the case's ID."""
    return json.dumps({"target": target, "cases": [_case(each, kafka) for each in outcomes]}, indent=1)


def _case(outcome: Outcome, kafka: Mapping[str, str]) -> dict[str, object]:
    case = outcome.case
    return {
        "id": case.id,
        "verdict": outcome.verdict.value,
        "reason": outcome.reason,
        "level": case.level.value,
        "words": case.words,
        "source": case.source,
        "since": case.since,
        "needs": needs(case),
        "seconds": round(outcome.seconds, 3),
        "kafka": kafka.get(case.id, ""),
        "looked_at": [{"what": each.what, "seen": each.seen, "wanted": each.wanted} for each in outcome.observations],
        "conversation": [
            {"connection": each.connection, "direction": each.direction, "words": each.words, "bytes": each.hex}
            for each in outcome.lines
        ],
    }
