"""Writes a scenario as a file: the loader reads it back as the same value."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from scenarios.declared import as_table
from scenarios.load import Load
from scenarios.model import Fault, Match, Range, Scenario
from scenarios.vocabulary import API_KEYS

_TOP = (
    "title",
    "clauses",
    "needs",
    "mutants",
    "guarantees",
    "min_fetches",
    "min_acked",
    "sim_min_fetches",
    "sim_min_acked",
    "max_schedule_slip_ms",
    "min_rewinds",
    "sim_max_lost_commits",
    "points",
    "revisions",
)


def write_scenario(scenario: Scenario, path: Path, comment: str = "") -> Path:
    """Write the file and return its path. ``comment`` comes first, each of its lines after a #."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(scenario, comment), encoding="utf-8")
    return path


def text_of(scenario: Scenario, comment: str = "") -> str:
    return "\n".join(_lines(scenario, comment)) + "\n"


def fault_line(fault: Fault) -> str:
    """The fault's keys as its table has them, in one line."""
    return ", ".join(each for each in _fault(fault) if " = " in each)


def _lines(scenario: Scenario, comment: str) -> Iterator[str]:
    yield from (f"# {line}".rstrip() for line in comment.splitlines())
    for name in _TOP:
        yield f"{name} = {_value(getattr(scenario, name))}"
    yield from ("", "[cluster]", *_lines_of(as_table(scenario.cluster)))
    yield from _load(scenario.load)
    for fault in scenario.faults:
        yield from _fault(fault)
    for fault in scenario.external_faults:
        yield from _fault(fault, "external_fault")
    if scenario.state:
        yield from ("", "[state]", *(f"{_key(name)} = {value}" for name, value in scenario.state))
    if scenario.swarm is not None:
        yield from ("", "[swarm]", *_lines_of(as_table(scenario.swarm)))


def _load(load: Load) -> Iterator[str]:
    """Yield the keys of ``[load]`` itself, and then its tables."""
    table = as_table(load)
    groups = {name: tables for name, tables in table.items() if isinstance(tables, list)}
    yield from ("", "[load]", *_lines_of({name: value for name, value in table.items() if name not in groups}))
    for name, tables in groups.items():
        for each in tables:
            yield from ("", f"[[load.{name}]]", *_lines_of(each))


def _lines_of(table: Mapping[str, object]) -> Iterator[str]:
    yield from (f"{_key(name)} = {_value(value)}" for name, value in table.items())


def _fault(fault: Fault, table: str = "fault") -> Iterator[str]:
    yield from ("", f"[[{table}]]")
    for field in fields(fault):
        value = getattr(fault, field.name)
        if field.name == "match":
            if value != Match():
                yield f"match = {_match(value)}"
        elif field.name == "link":
            if value is not None:
                yield f"link = {_value(str(value))}"
        elif field.name == "at_s":
            if fault.timed:
                yield f"at_s = {_value(value)}"
        elif field.name == "config":
            if value:
                yield f"config = {_table(value)}"
        elif _is_written(field.name, fault, value, field.default):
            yield f"{field.name} = {_value(value)}"


def _is_written(name: str, fault: Fault, value: Any, default: Any) -> bool:
    """Return whether the field must be written. This is always so if the loader would otherwise derive it from another
    key."""
    if name in ("times", "sim_at_s", "sim_duration_s", "sim_repeat_every_s"):
        return fault.timed == name.startswith("sim_")
    if name == "node":
        return fault.link is None or fault.link.source == "client"
    if name in ("duration_s", "repeat_every_s", "restart_after_s"):
        return bool(value != default)
    return value != default or default is MISSING


def _match(match: Match) -> str:
    names = {number: name for name, number in API_KEYS.items()}
    entries: list[str] = []
    for field in fields(match):
        value = getattr(match, field.name)
        if value is None:
            continue
        if field.name == "fields":
            entries += [f"{_key(name)} = {_value(wanted)}" for name, wanted in value]
        else:
            entries.append(f"{field.name} = {_value(names[value] if field.name == 'api' else value)}")
    return "{ " + ", ".join(entries) + " }"


def _table(pairs: Sequence[tuple[str, Any]]) -> str:
    return "{ " + ", ".join(f"{_key(name)} = {_value(value)}" for name, value in pairs) + " }"


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case Range():
            return str(value.low) if value.low == value.high else f"[{value.low}, {value.high}]"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case int() | float():
            return repr(value)
        case dict():
            return _table(tuple(value.items()))
        case tuple() | list():
            return "[" + ", ".join(_value(each) for each in value) + "]"
    raise TypeError(f"a scenario holds no {type(value).__name__}")


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else json.dumps(name)
