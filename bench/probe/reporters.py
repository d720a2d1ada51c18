"""Reports of outcomes: as text for people, as JSON, as JUnit XML and as one HTML page."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from bench.probe.case import CaseOutcome, CaseVerdict, ProbeCase, Versions
from bench.program import PROGRAM
from reference_broker.wire.apis import api_name

MARKS = {
    CaseVerdict.PASS: "ok  ",
    CaseVerdict.FAIL: "FAIL",
    CaseVerdict.DIFFERS: "diff",
    CaseVerdict.NOT_ADVERTISED: "n/a ",
    CaseVerdict.INCONSISTENT: "BAD ",
    CaseVerdict.NOT_PLAYED: "-   ",
    CaseVerdict.OUR_ERROR: "OURS",
}


def case_line(case: ProbeCase) -> str:
    """A case in one line, for --dry-run."""
    return f"{case.id}  {case.level.value}  {case.words}"


def outcome_line(outcome: CaseOutcome) -> str:
    """An outcome in one line."""
    why = f": {outcome.reason}" if outcome.reason else ""
    return f"{MARKS[outcome.verdict]} {outcome.case.id}{why}"


def in_full(outcome: CaseOutcome, repeat: str, kafka: str) -> Iterator[str]:
    """All about one outcome: what must hold and why, what was sent, what came back, what Apache Kafka responds, and the
    command that repeats it."""
    case = outcome.case
    yield f"{MARKS[outcome.verdict].strip()} {case.id} ({outcome.verdict.value}, {outcome.seconds:.2f} s)"
    yield f"  {case.level.value}: {case.words}"
    yield f"  source: {case.source}, since Apache Kafka {case.since}; needs {needs(case)}"
    if outcome.reason:
        yield f"  {outcome.reason}"
    for observation in outcome.observations:
        yield f"  looked at: {observation.what}: {observation.seen} (wanted: {observation.wanted})"
    if kafka:
        yield f"  Apache Kafka: {kafka}"
    for line in outcome.lines:
        yield f"  {line.connection} {line.direction} {line.words}"
        if line.frame:
            yield f"      {line.hex}"
    yield f"  again: {repeat}"


def repeat_command(target: str, case_id: str) -> str:
    """The command that plays the case again."""
    return f"{PROGRAM} probe {target} --case {case_id}"


def needs(case: ProbeCase) -> str:
    return ", ".join(f"{api_name(key)}{_range(versions)}" for key, versions in case.needs.items()) or "nothing"


def _range(versions: Versions) -> str:
    low, high = versions
    if high == 0x7FFF:
        return f" {low}+" if low else ""
    return f" {low}-{high}" if low != high else f" {low}"


def outcome_summary(outcomes: Sequence[CaseOutcome], seconds: float) -> str:
    counted = Counter(outcome.verdict for outcome in outcomes)
    parts = [f"{counted[verdict]} {verdict.value}" for verdict in CaseVerdict if counted[verdict]]
    if ends := sum(outcome.ended for outcome in outcomes):
        parts.append(f"the broker ended {ends} time{'s' * (ends > 1)}")
    return f"{len(outcomes)} cases in {seconds:.1f} s: {', '.join(parts)}"


def json_document(target: str, outcomes: Sequence[CaseOutcome], kafka: Mapping[str, str]) -> str:
    """``kafka``: what Apache Kafka responds, by the case's ID."""
    return json.dumps({"target": target, "cases": [_case(outcome, kafka) for outcome in outcomes]}, indent=1)


def _case(outcome: CaseOutcome, kafka: Mapping[str, str]) -> dict[str, object]:
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
        "looked_at": [
            {"what": observation.what, "seen": observation.seen, "wanted": observation.wanted}
            for observation in outcome.observations
        ],
        "conversation": [
            {"connection": line.connection, "direction": line.direction, "words": line.words, "bytes": line.hex}
            for line in outcome.lines
        ],
    }


def junit_document(target: str, outcomes: Sequence[CaseOutcome], strict: bool, kafka: Mapping[str, str]) -> str:
    """Return the JUnit document. A case that fails the run is a failure, or an error if it is ours; one that does not
    apply, or may differ, is skipped with the reason. ``kafka``: what Apache Kafka responds, by the case's ID."""
    suites = ElementTree.Element("testsuites", name=f"Kafka protocol of {target}")
    for section, found in groupby(outcomes, key=lambda outcome: outcome.case.section):
        members = list(found)
        suite = ElementTree.SubElement(suites, "testsuite", name=section, tests=str(len(members)))
        suite.set("failures", str(sum(member.is_red(strict) for member in members)))
        suite.set("errors", str(sum(member.is_ours for member in members)))
        suite.set("skipped", str(sum(_is_skipped(member, strict) for member in members)))
        for member in members:
            shown = in_full(member, repeat_command(target, member.case.id), kafka.get(member.case.id, ""))
            _add(suite, member, strict, "\n".join(shown))
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _is_skipped(outcome: CaseOutcome, strict: bool) -> bool:
    return outcome.verdict is not CaseVerdict.PASS and not outcome.is_red(strict) and not outcome.is_ours


def _add(suite: ElementTree.Element, outcome: CaseOutcome, strict: bool, shown: str) -> None:
    name = outcome.case.id.rpartition("/")[2]
    test = ElementTree.SubElement(suite, "testcase", classname=outcome.case.section.replace("/", "."), name=name)
    test.set("time", f"{outcome.seconds:.3f}")
    message = f"{outcome.verdict.value}: {outcome.reason}"
    if outcome.is_red(strict) or outcome.is_ours:
        kind = "error" if outcome.is_ours else "failure"
        ElementTree.SubElement(test, kind, message=message).text = shown
    elif _is_skipped(outcome, strict):
        ElementTree.SubElement(test, "skipped", message=message)


STYLE: Final = Path(__file__).resolve().parents[2] / "reports" / "page" / "style.css"
"""The style of a run's page. It is read as a file, since loads and probes do not import the code of pages."""

_MORE_STYLE = """
.filter { display: flex; flex-wrap: wrap; gap: 8px 14px; align-items: center; padding: 12px 16px; }
.filter input[type="search"] { font: inherit; flex: 1 1 200px; min-width: 0; color: var(--ink);
  background: var(--ground); border: 1px solid var(--line); border-radius: 6px; padding: 6px 10px; }
.filter label { font-size: 13px; white-space: nowrap; cursor: pointer; }
.filter output { color: var(--muted); font-size: 13px; }
.case pre { font: 12px/1.45 var(--mono); white-space: pre-wrap; overflow-wrap: anywhere; background: var(--ground);
  border: 1px solid var(--line); border-radius: 6px; padding: 8px 10px; margin: 6px 0 2px; }
.case details > summary { padding: 0; font-size: inherit; color: inherit; }
.case .why { display: block; color: var(--bad); }
tr.case[hidden] { display: none !important; }
table.counts td { text-align: right; } table.counts td:last-child { min-width: 0; }
@media (max-width: 640px) { table.counts { font-size: 12.5px; } .case td.kafka:empty { display: none; } }
"""

_SCRIPT = """
"use strict";
const root = document.documentElement;
const words = document.getElementById("words"), shown = document.getElementById("shown");
const boxes = [...document.querySelectorAll(".filter input[type=checkbox]")];
const cases = [...document.querySelectorAll("tr.case")];
const filter = () => {
  const kinds = new Set(boxes.filter((each) => each.checked).map((each) => each.value));
  const wanted = words.value.toLowerCase().split(/\\s+/).filter(Boolean);
  let count = 0;
  for (const each of cases) {
    const text = each.dataset.text;
    each.hidden = !kinds.has(each.dataset.verdict) || !wanted.every((word) => text.includes(word));
    count += !each.hidden;
  }
  for (const each of document.querySelectorAll("section.cases")) {
    each.hidden = !each.querySelector("tr.case:not([hidden])");
  }
  shown.textContent = `${count} of ${cases.length} cases`;
};
words.addEventListener("input", filter);
for (const each of boxes) each.addEventListener("change", filter);
const unfold = () => {
  const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!row?.matches("tr.case")) return;
  if (row.hidden) { words.value = ""; for (const each of boxes) each.checked = true; filter(); }
  row.querySelector("details").open = true;
  row.scrollIntoView();
};
addEventListener("hashchange", unfold);
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
addEventListener("beforeprint", () => { for (const each of document.querySelectorAll("details")) each.open = true; });
filter(); unfold();
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{said}: Kafka protocol of {target}</title>
<style>{style}</style>
</head>
<body>
<nav class="bar" aria-label="sections"><div><b>Crucible</b>
{links}
<button id="theme" type="button" title="light or dark">◐</button></div></nav>
<main>
<header class="verdict {tone}" id="verdict">
<p class="kicker">Protocol probe</p>
<h1>Kafka protocol of {target}</h1>
<p class="summary"><span class="word">{mark} {said}</span>{verdict}</p>
<div class="tiles">{tiles}</div>
</header>
{red}
<section>
<h2 id="sections">Sections</h2>
<p>{summary}</p>
<details class="card"><summary>cases of each section</summary>
<div class="scroll"><table class="counts"><thead><tr><th>section</th>{heads}</tr></thead><tbody>
{counts}
</tbody></table></div></details>
</section>
<section>
<h2 id="cases">Cases</h2>
<p>Each case unfolds: what was sent, what came back, and the command that plays it again.</p>
<div class="card filter"><input type="search" id="words" placeholder="words of a case" aria-label="words of a case">
{boxes}
<output id="shown"></output></div>
</section>
{sections}
</main>
<script>{script}</script>
</body>
</html>
"""

_CHIPS = {
    CaseVerdict.PASS: "holds",
    CaseVerdict.FAIL: "broken",
    CaseVerdict.DIFFERS: "warn",
    CaseVerdict.INCONSISTENT: "broken",
    CaseVerdict.OUR_ERROR: "warn",
}


def page_document(
    target: str, outcomes: Sequence[CaseOutcome], red: Sequence[CaseOutcome], summary: str, kafka: Mapping[str, str]
) -> str:
    """Return the page. ``red`` are the outcomes for which the command fails, and ``kafka`` is what Apache Kafka
    responds in each case."""
    sections = [(name, list(found)) for name, found in groupby(outcomes, key=lambda outcome: outcome.case.section)]
    counted = Counter(outcome.verdict for outcome in outcomes)
    there = [each for each in CaseVerdict if counted[each]]
    return _PAGE.format(
        target=escape(target),
        style=STYLE.read_text(encoding="utf-8") + _MORE_STYLE,
        script=_SCRIPT,
        tone="failed" if red else "passed",
        mark="✕" if red else "✓",
        said="failed" if red else "passed",
        verdict=escape(_verdict(outcomes, red)),
        links="".join(f'<a href="#{name}">{title}</a>' for name, title in _links(bool(red))),
        tiles="".join(f"<div><b>{counted[each]}</b><span>{each.value}</span></div>" for each in there),
        red=_red(red),
        summary=escape(summary),
        heads="".join(f'<th class="n">{each.value}</th>' for each in there),
        counts="\n".join(_counts(name, found, there) for name, found in sections),
        boxes="\n".join(
            f'<label><input type="checkbox" value="{each.value}" checked> {each.value} {counted[each]}</label>'
            for each in there
        ),
        sections="\n".join(_section(name, found, target, kafka) for name, found in sections),
    )


def _links(has_red: bool) -> Sequence[tuple[str, str]]:
    return (*((("red", "What fails"),) if has_red else ()), ("sections", "Sections"), ("cases", "Cases"))


def _verdict(outcomes: Sequence[CaseOutcome], red: Sequence[CaseOutcome]) -> str:
    ends = sum(outcome.ended for outcome in outcomes)
    death = f" The broker ended {ends} time{'s' * (ends > 1)}." if ends else ""
    if not red:
        return f"None of {len(outcomes)} cases counts against the broker.{death}"
    first = red[0]
    why = f": {first.reason}" if first.reason else ""
    return f"{len(red)} of {len(outcomes)} cases count against the broker. The first is {first.case.id}{why}.{death}"


def _red(red: Sequence[CaseOutcome]) -> str:
    if not red:
        return ""
    rows = "\n".join(
        f'<tr><th scope="row"><a href="#{each.case.id}">{escape(each.case.id)}</a></th><td>{_chip(each.verdict)}</td>'
        f"<td>{each.case.level.value}: {escape(each.case.words)}</td><td>{escape(each.reason)}</td></tr>"
        for each in red
    )
    heads = "<tr><th>case</th><th>verdict</th><th>what must hold</th><th>what was seen</th></tr>"
    return (
        '<section><h2 id="red">What fails</h2>\n<div class="card long scroll"><table class="stack">'
        f"<thead>{heads}</thead><tbody>\n{rows}\n</tbody></table></div></section>"
    )


def _counts(name: str, outcomes: Sequence[CaseOutcome], there: Sequence[CaseVerdict]) -> str:
    counted = Counter(outcome.verdict for outcome in outcomes)
    cells = "".join(f"<td>{counted[each] or ''}</td>" for each in there)
    return f'<tr><th scope="row"><a href="#{name}">{name}</a></th>{cells}</tr>'


def _section(name: str, outcomes: Sequence[CaseOutcome], target: str, kafka: Mapping[str, str]) -> str:
    rows = "\n".join(_row(outcome, target, kafka.get(outcome.case.id, "")) for outcome in outcomes)
    heads = "<tr><th>case</th><th>verdict</th><th>Apache Kafka</th><th>what must hold</th></tr>"
    return (
        f'<section class="cases"><h2 id="{name}">{name}</h2>\n<div class="card long scroll"><table class="stack">'
        f"<thead>{heads}</thead><tbody>\n{rows}\n</tbody></table></div></section>"
    )


def _row(outcome: CaseOutcome, target: str, kafka: str) -> str:
    case, verdict = outcome.case, outcome.verdict.value
    conversation = escape("\n".join(in_full(outcome, repeat_command(target, case.id), kafka)))
    words = f"{case.level.value}: {escape(case.words)} <small>{escape(case.source)}</small>"
    why = f'<span class="why">{escape(outcome.reason)}</span>' if outcome.reason else ""
    shown = f"<details><summary>{words}{why}</summary><pre>{conversation}</pre></details>"
    text = escape(f"{case.id} {case.words} {case.source} {outcome.reason} {kafka}".lower(), quote=True)
    return (
        f'<tr class="case" id="{case.id}" data-verdict="{verdict}" data-text="{text}">'
        f'<th scope="row">{escape(case.id.rpartition("/")[2])}</th><td>{_chip(outcome.verdict)}</td>'
        f'<td class="kafka">{escape(kafka)}</td><td>{shown}</td></tr>'
    )


def _chip(verdict: CaseVerdict) -> str:
    return f'<span class="chip {_CHIPS.get(verdict, "")}">{verdict.value}</span>'
