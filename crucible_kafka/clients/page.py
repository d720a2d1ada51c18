"""The results as one HTML page, with the look of a run's page: the verdict first, then what fails, then all cases."""

from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Final

from crucible_kafka.clients.case import CaseResult, ClientVerdict
from crucible_kafka.clients.protocol import AdapterInfo
from crucible_kafka.clients.report import detail_lines, summary

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_STYLE: Final = Path("reports", "page", "style.css")
_MORE_STYLE: Final = """
.case pre { font: 12px/1.45 var(--mono); white-space: pre-wrap; overflow-wrap: anywhere; background: var(--ground);
  border: 1px solid var(--line); border-radius: 6px; padding: 8px 10px; margin: 6px 0 2px; }
.case details > summary { padding: 0; font-size: inherit; color: inherit; }
.case .why { display: block; color: var(--bad); }
table.counts td { text-align: right; }
"""
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{said}: {client}</title>
<style>{style}</style>
</head>
<body>
<nav class="bar" aria-label="sections"><div><b>Crucible</b>{links}</div></nav>
<main>
<header class="verdict {tone}" id="verdict">
<p class="kicker">Client conformance</p>
<h1>{client}</h1>
<p class="summary"><span class="word">{mark} {said}</span>{verdict}</p>
<div class="tiles">{tiles}</div>
</header>
{red}
<section>
<h2 id="sections">Sections</h2>
<p>{summary}</p>
<div class="card scroll"><table class="counts"><thead><tr><th>section</th>{heads}</tr></thead><tbody>
{counts}
</tbody></table></div>
</section>
{sections}
</main>
</body>
</html>
"""
_CHIPS: Final = {
    ClientVerdict.PASS: "holds",
    ClientVerdict.FAIL: "broken",
    ClientVerdict.DIFFERS: "warn",
    ClientVerdict.NOT_SHOWN: "warn",
    ClientVerdict.ADAPTER_FAILED: "broken",
    ClientVerdict.OUR_ERROR: "warn",
}


def page_document(
    adapter: str, about: AdapterInfo, results: Sequence[CaseResult], red: Sequence[CaseResult], seconds: float
) -> str:
    """Return the page. ``red`` are the results for which the command fails."""
    sections = [(name, list(found)) for name, found in groupby(results, key=lambda result: result.case.section)]
    counted = Counter(result.verdict for result in results)
    there = [each for each in ClientVerdict if counted[each]]
    links = [
        *((("red", "What fails"),) if red else ()),
        ("sections", "Sections"),
        *((name, name) for name, _ in sections),
    ]
    return _PAGE.format(
        client=escape(f"{about.name} {about.version}"),
        style=_style() + _MORE_STYLE,
        links="".join(f'<a href="#{anchor}">{title}</a>' for anchor, title in links),
        tone="failed" if red else "passed",
        mark="✕" if red else "✓",
        said="failed" if red else "passed",
        verdict=escape(_verdict(results, red)),
        tiles="".join(f"<div><b>{counted[each]}</b><span>{each.value}</span></div>" for each in there),
        red=_red(red),
        summary=escape(summary(about, results, seconds)),
        heads="".join(f'<th class="n">{each.value}</th>' for each in there),
        counts="\n".join(_counts(name, found, there) for name, found in sections),
        sections="\n".join(_section(name, found, adapter) for name, found in sections),
    )


def _style() -> str:
    """Return the style of a run's page. In an installed wheel it is below the package."""
    places = (_PACKAGE.parent / _STYLE, _PACKAGE / "_rooms" / _STYLE)
    return next(place for place in places if place.is_file()).read_text(encoding="utf-8")


def _verdict(results: Sequence[CaseResult], red: Sequence[CaseResult]) -> str:
    unknown = sum(result.verdict is ClientVerdict.NOT_SHOWN for result in results)
    shown = f" {unknown} showed nothing." if unknown else ""
    if not red:
        return f"None of {len(results)} cases counts against the client.{shown}"
    return (
        f"{len(red)} of {len(results)} cases count against it. The first is {red[0].case.id}: {red[0].reason}.{shown}"
    )


def _red(red: Sequence[CaseResult]) -> str:
    if not red:
        return ""
    rows = "\n".join(
        f'<tr><th scope="row"><a href="#{each.case.id}">{escape(each.case.id)}</a></th><td>{_chip(each.verdict)}</td>'
        f"<td>{each.case.level.value}: {escape(each.case.words)}</td><td>{escape(each.reason)}</td></tr>"
        for each in red
    )
    heads = "<tr><th>case</th><th>verdict</th><th>what the broker does</th><th>what was seen</th></tr>"
    return (
        '<section><h2 id="red">What fails</h2>\n<div class="card long scroll"><table class="stack">'
        f"<thead>{heads}</thead><tbody>\n{rows}\n</tbody></table></div></section>"
    )


def _counts(name: str, results: Sequence[CaseResult], there: Sequence[ClientVerdict]) -> str:
    counted = Counter(result.verdict for result in results)
    cells = "".join(f"<td>{counted[each] or ''}</td>" for each in there)
    return f'<tr><th scope="row"><a href="#{name}">{name}</a></th>{cells}</tr>'


def _section(name: str, results: Sequence[CaseResult], adapter: str) -> str:
    rows = "\n".join(_row(result, adapter) for result in results)
    heads = "<tr><th>case</th><th>verdict</th><th>what the broker does, and what the client must do</th></tr>"
    return (
        f'<section class="cases"><h2 id="{name}">{name}</h2>\n<div class="card long scroll"><table class="stack">'
        f"<thead>{heads}</thead><tbody>\n{rows}\n</tbody></table></div></section>"
    )


def _row(result: CaseResult, adapter: str) -> str:
    case = result.case
    words = f"{case.level.value}: {escape(case.words)} <small>{escape(case.source)}</small>"
    why = f'<span class="why">{escape(result.reason)}</span>' if result.reason else ""
    conversation = escape("\n".join(detail_lines(result, adapter)))
    return (
        f'<tr class="case" id="{case.id}"><th scope="row">{escape(case.id.partition("/")[2])}</th>'
        f"<td>{_chip(result.verdict)}</td>"
        f"<td><details><summary>{words}{why}</summary><pre>{conversation}</pre></details></td></tr>"
    )


def _chip(verdict: ClientVerdict) -> str:
    return f'<span class="chip {_CHIPS.get(verdict, "")}">{verdict.value}</span>'
