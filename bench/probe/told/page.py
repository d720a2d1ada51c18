"""Outcomes as one HTML page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby

from bench.probe.told.text import in_full
from bench.probe.verdict import Outcome, Verdict

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Kafka protocol of {target}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; font-size: 14px; }}
th, td {{ text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }}
pre {{ font-size: 12px; white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: .5rem; }}
.fail, .inconsistent {{ color: #a33; font-weight: 600; }}
.differs {{ color: #a60; }}
.not-advertised, .not-played {{ color: #777; }}
</style>
<h1>Kafka protocol of {target}</h1>
<p>{summary}</p>
<table><tr><th>section</th>{heads}</tr>
{counts}</table>
{sections}
</html>
"""


def document(target: str, outcomes: Sequence[Outcome], summary: str, kafka: Mapping[str, str]) -> str:
    """A table that counts, then each case. What was sent and answered unfolds. ``kafka``: what Apache Kafka answers."""
    sections = [(name, list(found)) for name, found in groupby(outcomes, key=lambda each: each.case.section)]
    return _PAGE.format(
        target=escape(target),
        summary=escape(summary),
        heads="".join(f"<th>{each.value}</th>" for each in Verdict),
        counts="\n".join(_counts(name, found) for name, found in sections),
        sections="\n".join(_section(name, found, target, kafka) for name, found in sections),
    )


def _counts(name: str, outcomes: Sequence[Outcome]) -> str:
    counted = Counter(each.verdict for each in outcomes)
    cells = "".join(f"<td>{counted[each] or ''}</td>" for each in Verdict)
    return f'<tr><td><a href="#{name}">{name}</a></td>{cells}</tr>'


def _section(name: str, outcomes: Sequence[Outcome], target: str, kafka: Mapping[str, str]) -> str:
    rows = "\n".join(_row(each, target, kafka.get(each.case.id, "")) for each in outcomes)
    heads = "<tr><th>case</th><th>verdict</th><th>what must hold</th><th>Apache Kafka</th></tr>"
    return f'<h2 id="{name}">{name}</h2>\n<table>{heads}\n{rows}</table>'


def _row(outcome: Outcome, target: str, kafka: str) -> str:
    case, verdict = outcome.case, outcome.verdict.value
    again = f"./crucible probe {target} --case {case.id}"
    conversation = escape("\n".join(in_full(outcome, again, kafka)))
    words = f"{case.level.value}: {escape(case.words)} <small>({escape(case.source)})</small>"
    why = f"<br>{escape(outcome.reason)}" if outcome.reason else ""
    shown = f"<details><summary>{words}{why}</summary><pre>{conversation}</pre></details>"
    mark = f'<td class="{verdict.replace(" ", "-")}">{verdict}</td>'
    return f"<tr><td>{escape(case.id.rpartition('/')[2])}</td>{mark}<td>{shown}</td><td>{escape(kafka)}</td></tr>"
