"""``crucible client``: plays cases against a client. It uses the client's adapter, and reports the results."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crucible_kafka.clients.adapter import adapter_info
from crucible_kafka.clients.bundled import find
from crucible_kafka.clients.case import CaseResult, ClientVerdict
from crucible_kafka.clients.cases import chosen
from crucible_kafka.clients.page import page_document
from crucible_kafka.clients.play import play_all
from crucible_kafka.clients.protocol import AdapterInfo
from crucible_kafka.clients.report import (
    case_line,
    detail_lines,
    json_document,
    junit_document,
    read_baseline,
    result_line,
    section_lines,
    summary,
    worse,
)

PASSED: Final = 0
FAILED: Final = 1


class UsageError(Exception):
    """The words of the command do not fit together."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options of the command line."""

    adapter: str | None
    sections: Sequence[str] = ()
    cases: Sequence[str] = ()
    strict: bool = False
    lists: bool = False
    baseline: Path | None = None
    json: Path | None = None
    junit: Path | None = None
    page: Path | None = None


def run(options: ClientOptions, say: Callable[[str], None]) -> int:
    """Return the exit code: 0 if no MUST failed (with ``strict`` also no SHOULD, and each case was shown), else 1. With
    a baseline it is 1 if something got worse. It is 1 if an adapter or a case failed by itself, too. ``say`` takes a
    line for people.

    Raise UsageError, UnknownCase, AdapterNotFound, NoBaseline and AdapterFailed, which are one sentence each.
    """
    cases = chosen(options.sections, options.cases)
    if options.lists:
        for case in cases:
            say(case_line(case))
        say(f"{len(cases)} cases")
        return PASSED
    if options.adapter is None:
        raise UsageError("ADAPTER is missing: give a bundled name or the path of an executable, or --list.")
    before = read_baseline(options.baseline) if options.baseline else None
    command = find(options.adapter, say)
    about = adapter_info(command)
    say(f"{about.name} {about.version}, {len(cases)} cases")
    began = time.monotonic()
    results = play_all(cases, command, about, lambda result: say(result_line(result)))
    seconds = time.monotonic() - began
    red = [result for result in results if result.is_red(options.strict)] if before is None else worse(before, results)
    red += [result for result in results if result.verdict is ClientVerdict.OUR_ERROR and result not in red]
    for each in results:
        if each in red or each.case.id in options.cases:
            say("")
            for line in detail_lines(each, options.adapter):
                say(line)
    say("")
    for line in section_lines(results):
        say(line)
    say(summary(about, results, seconds) + ("" if before is None else f"; {len(red)} worse than {options.baseline}"))
    _write(options, about, results)
    if options.page is not None:
        options.page.write_text(page_document(options.adapter, about, results, red, seconds), encoding="utf-8")
    return FAILED if red else PASSED


def _write(
    options: ClientOptions,
    about: AdapterInfo,
    results: Sequence[CaseResult],
) -> None:
    assert options.adapter is not None, "cases were played"
    if options.json is not None:
        options.json.write_text(json_document(options.adapter, about, results), encoding="utf-8")
    if options.junit is not None:
        options.junit.write_text(junit_document(options.adapter, results, options.strict), encoding="utf-8")
