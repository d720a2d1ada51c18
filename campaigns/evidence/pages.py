"""Writes the pages of ``docs/evidence`` from what is kept: the matrices, and each red cell with its reproduction."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from pathlib import Path

from bench.probe.case import CaseVerdict, Level, ProbeCase
from bench.probe.cases import all_cases
from campaigns.evidence.kept import FOLDER, EvidenceTarget
from campaigns.evidence.plays import PLAYS, RED

FAILS, DIFFERS, NOTHING, UNPLAYED = "**fails**", "differs", "–", "·"
REDS = frozenset(each.value for each in RED)
_MADE = "<!-- Made by ./crucible evidence --pages from data/. Edit campaigns/evidence/pages.py instead. -->\n\n"


def write(found: Sequence[EvidenceTarget], folder: Path = FOLDER) -> list[Path]:
    """Write all pages and return them. README.md and kafka.md are written by hand, but for the former's table."""
    pages = {"probe.md": _MADE + probe_matrix(found), "scenarios.md": _MADE + scenario_matrix(found)}
    pages |= {_page(target): _MADE + failing(target) for target in found if target.cases}
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")
    readme = folder / "README.md"
    before, mark, rest = readme.read_text(encoding="utf-8").partition("<!-- table -->\n")
    after = rest.partition("<!-- end of table -->\n")[2]
    readme.write_text(f"{before}{mark}{summary(found)}<!-- end of table -->\n{after}", encoding="utf-8")
    return [folder / name for name in (*pages, "README.md")]


def summary(found: Sequence[EvidenceTarget]) -> str:
    """One row for each target."""
    heads = ("target", "version", "passes", "fails a MUST", "differs from a SHOULD", "not judged", "not played", "seen")
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for each in (target for target in found if target.cases):
        marks = Counter(mark(each, case) for case in all_cases())
        link = f"[{each.title}]({_page(each)})"
        counts = " | ".join(str(marks[kind]) for kind in ("passes", FAILS, DIFFERS, NOTHING, UNPLAYED))
        lines.append(f"| {link} | {each.version or 'this clone'} | {counts} | {each.date}, {each.machine} |")
    return "\n".join(lines) + "\n"


def mark(found: EvidenceTarget, case: ProbeCase) -> str:
    """The cell of a case in the matrix."""
    cell = found.cases.get(case.id)
    if cell is None or cell.verdict == CaseVerdict.NOT_PLAYED.value:
        return UNPLAYED
    if cell.verdict in REDS:
        return FAILS if case.level is Level.MUST else DIFFERS
    return "passes" if cell.verdict == "pass" else NOTHING


def probe_matrix(found: Sequence[EvidenceTarget]) -> str:
    """Broker x case, section by section."""
    played = [target for target in found if target.cases]
    heads = " | ".join(_head(target) for target in played)
    lines = [
        "# Broker x case",
        "",
        f"`./crucible probe TARGET` on one node, played {PLAYS} times. A blank cell passes. What the marks mean, and "
        "all else, is in [README.md](README.md). A broker's name leads to what it did, and to "
        "the command that shows it again.",
        "",
    ]
    for section, cases in groupby(all_cases(), key=lambda each: each.section):
        lines += [f"## {section}", "", f"| case | level | {heads} |", "| --- | --- |" + " --- |" * len(played)]
        for case in cases:
            marks = " | ".join(_linked(target, case) for target in played)
            lines.append(f"| {case.id.rpartition('/')[2]} | {case.level.value} | {marks} |")
        lines.append("")
    return "\n".join(lines)


def failing(found: EvidenceTarget) -> str:
    """All red cells of one target, with what must hold, what it did and the command that shows it."""
    lines = [
        f"# {_whole_name(found)}",
        "",
        f"Seen on {found.date} ({found.machine}), {PLAYS} times each, on one node. See [README.md](README.md) for what "
        "this means. Everything else passes, is not judged, or was not played.",
        "",
    ]
    for words, level in (("Fails a MUST", Level.MUST), ("Differs from a SHOULD", Level.SHOULD)):
        red = [each for each in all_cases() if each.level is level and mark(found, each) in (FAILS, DIFFERS)]
        lines += [f"## {words}: {len(red)}", ""]
        for case in red:
            lines += _red(found, case)
    return "\n".join(lines)


def _red(found: EvidenceTarget, case: ProbeCase) -> Iterator[str]:
    yield f"### {case.id}"
    yield ""
    yield f"{case.words} (*{case.source}*)"
    yield ""
    yield f"What came: {_plain(found.cases[case.id].reason)}"
    yield ""
    yield "```"
    yield f"./crucible probe {found.target} --case {case.id}"
    yield "```"
    yield ""


def scenario_matrix(found: Sequence[EvidenceTarget]) -> str:
    """Broker x scenario, and the reason of everything that did not pass."""
    played = [target for target in found if target.scenarios]
    names = sorted({name for target in played for name in target.scenarios}, key=_by_number)
    lines = [
        "# Broker x scenario",
        "",
        "`./crucible run SCENARIO --target TARGET`. A run is *passed* if each guarantee that could be judged held. "
        "It is *refused*, before it starts, if the target lacks what the scenario needs, or only the simulator plays "
        "it; below the table is why. A blank cell was not played. All else is in [README.md](README.md).",
        "",
        f"| scenario | {' | '.join(_name(target) for target in played)} |",
        "| --- |" + " --- |" * len(played),
    ]
    lines += [f"| {name} | {' | '.join(_verdict(target.scenarios, name) for target in played)} |" for name in names]
    for target in played:
        lines += [
            "",
            f"## {_name(target)}",
            "",
            f"{_whole_name(target)}. Seen on {target.date} ({target.machine}).",
            "",
        ]
        for name, play in sorted(target.scenarios.items(), key=lambda item: _by_number(item[0])):
            why = f": {_plain(play.reason)}" if play.reason else ""
            lines.append(f"- {name}: {play.verdict}{why}  \n  `{play.command}`")
    return "\n".join(lines) + "\n"


def _by_number(name: str) -> tuple[float, str]:
    """Sort scenarios by their numbers, then those without one by name."""
    return (float(name) if name.isdigit() else inf, name)


def _verdict(scenarios: Mapping[str, object], name: str) -> str:
    play = scenarios.get(name)
    return getattr(play, "verdict", "")


def _linked(found: EvidenceTarget, case: ProbeCase) -> str:
    shown = mark(found, case)
    if shown == "passes":
        return ""
    return f"[{shown}]({_page(found)}#{_anchor(case.id)})" if shown in (FAILS, DIFFERS) else shown


def _head(found: EvidenceTarget) -> str:
    return f"[{_name(found)}]({_page(found)})"


def _name(found: EvidenceTarget) -> str:
    return found.target


def _whole_name(found: EvidenceTarget) -> str:
    return f"{found.title} {found.version}".rstrip()


def _page(found: EvidenceTarget) -> str:
    return f"probe-{found.target.replace('/', '-').replace('@', '-')}.md"


def _anchor(case_id: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return "".join(each for each in case_id.lower() if each.isalnum() or each in "-_ ").replace(" ", "-")


def _plain(text: str) -> str:
    """Text that Markdown leaves as it is."""
    return text.replace("|", "\\|").replace("<", "\\<").replace("*", "\\*").replace("_", "\\_")
