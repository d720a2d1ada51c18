"""Finds and reads scenario files: TOML to frozen values, refusing what it does not know.

Every refusal is one sentence that names the file, the key and what is allowed (``ScenarioError``; exit code 2).
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from scenarios.fields import Reader, ScenarioError
from scenarios.model import (
    BEHAVIOURS,
    GUARANTEES,
    NEEDS,
    PLACES,
    TIMED_KINDS,
    Cluster,
    Fault,
    Fetchers,
    Load,
    Match,
    Producers,
    Scenario,
    Topic,
)

__all__ = ["Scenario", "ScenarioError", "find", "load", "load_all", "parse"]

FOLDER = Path(__file__).resolve().parent
API_KEYS = {
    "produce": 0,
    "fetch": 1,
    "list_offsets": 2,
    "metadata": 3,
    "api_versions": 18,
    "create_topics": 19,
    "init_producer_id": 22,
}
DIRECTIONS = ("upstream", "downstream", "both")
NEEDED_BY_KIND = {"clock_stepped": "clock", "disk_write_failed": "disk"}


def load_all() -> tuple[Scenario, ...]:
    """Every scenario of this folder, by file name."""
    return tuple(load(path) for path in sorted(FOLDER.glob("*.toml")))


def find(wanted: str) -> Scenario:
    """The scenario with this file, stem (with or without its number), or number in the list of scenarios."""
    path = Path(wanted)
    if path.suffix == ".toml":
        candidates = (path, FOLDER / path.name, FOLDER / "regressions" / path.name)
        found = next((each for each in candidates if each.exists()), None)
        if found is None:
            raise ScenarioError(f"there is no file {wanted!r}; give a scenario's file, its stem or its number")
        return load(found)
    stem = wanted.replace("_", "-")
    files = sorted(FOLDER.glob("*.toml")) + sorted(FOLDER.glob("regressions/*.toml"))
    for file in files:
        number, _, rest = file.stem.partition("-")
        if stem == file.stem or (number.isdigit() and (stem == rest or (stem.isdigit() and int(stem) == int(number)))):
            return load(file)
    known = ", ".join(file.stem for file in files)
    raise ScenarioError(f"there is no scenario {wanted!r}; give a file, or one of: {known}")


def typed(scenario: Scenario) -> str:
    """What to type for it on a command line: its name, or its file if it lies elsewhere."""
    ours = (FOLDER, FOLDER / "regressions")
    return scenario.name if Path(scenario.path).resolve().parent in ours else scenario.path


def load(path: Path) -> Scenario:
    """Reads one file. Raises ScenarioError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: is not UTF-8 text") from error
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path.name}: is not valid TOML: {error}") from error
    return parse(table, path)


def parse(table: Mapping[str, object], path: Path) -> Scenario:
    """The scenario in a parsed TOML table; ``path`` gives the name and stands in messages."""
    top = Reader(table, path.name, "")
    number = top.integer("number", -1, low=1)
    min_fetches = top.integer("min_fetches", low=0)
    min_acked = top.integer("min_acked", low=0)
    scenario = Scenario(
        name=path.stem,
        path=str(path),
        number=None if number < 0 else number,
        title=top.text("title"),
        clauses=top.texts("clauses"),
        needs=top.texts("needs", allowed=NEEDS),
        mutants=top.texts("mutants"),
        guarantees=top.texts("guarantees", allowed=GUARANTEES),
        min_fetches=min_fetches,
        min_acked=min_acked,
        sim_min_fetches=top.integer("sim_min_fetches", min_fetches, low=0),
        sim_min_acked=top.integer("sim_min_acked", min_acked, low=0),
        max_schedule_slip_ms=top.integer("max_schedule_slip_ms", low=1),
        cluster=_cluster(top.table("cluster", required=False)),
        load=_load(top.table("load")),
        faults=tuple(_fault(reader) for reader in top.tables("fault")),
        state=top.table("state", required=False).integers(),
    )
    top.end()
    _consistent(scenario, path.name)
    return scenario


def _cluster(reader: Reader) -> Cluster:
    cluster = Cluster(
        nodes=reader.integer("nodes", 1, low=1, high=9), config=reader.table("config", required=False).pairs()
    )
    reader.end()
    return cluster


def _load(reader: Reader) -> Load:
    seconds = reader.number("seconds", low=0.1)
    idle_appends_s = reader.number("idle_appends_s", 0.0, low=0.0)
    load = Load(
        seconds=seconds,
        sim_seconds=reader.number("sim_seconds", seconds, low=0.1),
        topics=tuple(_topic(each) for each in reader.tables("topics")),
        fetchers=tuple(_fetchers(each) for each in reader.tables("fetchers")),
        producers=tuple(_producers(each) for each in reader.tables("producers")),
        idle_appends_s=idle_appends_s,
        sim_idle_appends_s=reader.number("sim_idle_appends_s", idle_appends_s, low=0.0),
        request_timeout_ms=reader.integer("request_timeout_ms", 2000, low=1),
    )
    reader.end()
    return load


def _topic(reader: Reader) -> Topic:
    topic = Topic(
        name=reader.text("name"),
        partitions=reader.integer("partitions", low=1, high=10_000),
        config=reader.table("config", required=False).pairs(),
    )
    reader.end()
    return topic


def _fetchers(reader: Reader) -> Fetchers:
    count = reader.integer("count", low=1)
    group = Fetchers(
        name=reader.text("name", "fetcher"),
        behaviour=reader.text("behaviour", allowed=BEHAVIOURS),
        count=count,
        sim_count=reader.integer("sim_count", count, low=1),
        topic=reader.text("topic"),
        partitions=reader.integer("partitions", low=0),
        poll_interval_ms=reader.integer("poll_interval_ms", 100, low=0),
        max_wait_ms=reader.integer("max_wait_ms", 500, low=0),
        min_bytes=reader.integer("min_bytes", 1, low=0),
        max_bytes=reader.integer("max_bytes", 8 << 20, low=1),
        partition_max_bytes=reader.integer("partition_max_bytes", 1 << 20, low=1),
    )
    reader.end()
    return group


def _producers(reader: Reader) -> Producers:
    count = reader.integer("count", low=1)
    rate_per_s = reader.number("rate_per_s", low=0.01)
    group = Producers(
        name=reader.text("name", "producer"),
        count=count,
        sim_count=reader.integer("sim_count", count, low=1),
        topic=reader.text("topic"),
        rate_per_s=rate_per_s,
        sim_rate_per_s=reader.number("sim_rate_per_s", rate_per_s, low=0.01),
        record_bytes=reader.integer("record_bytes", 100, low=1),
        batch_records=reader.integer("batch_records", 10, low=1),
        acks=reader.integer("acks", -1, low=-1, high=1),
        idempotent=reader.boolean("idempotent", True),
    )
    reader.end()
    return group


def _match(reader: Reader) -> Match:
    api = reader.text("api", "", allowed=("", *API_KEYS))
    match = Match(
        api=API_KEYS[api] if api else None,
        client_id=reader.text("client_id", "") or None,
        session=reader.boolean("session", False) if reader.has("session") else None,
        session_epoch=reader.range("session_epoch") if reader.has("session_epoch") else None,
        error=reader.integer("error", 0) if reader.has("error") else None,
        role=reader.text("role", "", allowed=("", "client", "peer")) or None,
        path=reader.text("path", "") or None,
        position=reader.range("position") if reader.has("position") else None,
    )
    reader.end()
    return match


def _fault(reader: Reader) -> Fault:
    on = reader.text("on", "", allowed=("", *PLACES))
    at_s = reader.number("at_s", -1.0, low=0.0)
    if (on == "") == (at_s < 0):
        raise reader.refusal("on", f"or at_s: give exactly one; on is one of {', '.join(PLACES)}")
    every = reader.integer("every", 0, low=0)
    duration_s = reader.number("duration_s", 0.0, low=0.0)
    repeat_every_s = reader.number("repeat_every_s", 0.0, low=0.0)
    fault = Fault(
        name=reader.text("name"),
        kind=reader.text("kind", allowed=PLACES[on] if on else TIMED_KINDS),
        on=on,
        match=_match(reader.table("match", required=False)),
        nth=reader.range("nth", (1, 1), low=1),
        every=every,
        times=reader.integer("times", 0 if every else 1, low=0),
        total=reader.integer("total", 0, low=0),
        after_s=reader.number("after_s", 0.0, low=0.0),
        until_s=reader.number("until_s", -1.0, low=0.0),
        at_s=max(at_s, 0.0),
        sim_at_s=reader.number("sim_at_s", max(at_s, 0.0), low=0.0),
        duration_s=duration_s,
        sim_duration_s=reader.number("sim_duration_s", duration_s, low=0.0),
        repeat=reader.integer("repeat", 1, low=1),
        repeat_every_s=repeat_every_s,
        sim_repeat_every_s=reader.number("sim_repeat_every_s", repeat_every_s, low=0.0),
        restart_after_s=reader.number("restart_after_s", 1.0, low=-1.0),
        node=reader.integer("node", 0, low=0),
        direction=reader.text("direction", "both", allowed=DIRECTIONS),
        delay_ms=reader.range("delay_ms", (0, 0), low=0),
        jitter_ms=reader.integer("jitter_ms", 0, low=0),
        step_ms=reader.integer("step_ms", 0),
        cut_bytes=reader.range("cut_bytes", (0, 0), low=0),
        bytes_per_s=reader.integer("bytes_per_s", 0, low=0),
        optional=reader.boolean("optional", False),
    )
    reader.end()
    return fault


def needed_by(fault: Fault) -> str:
    """What the world must offer for this fault: one of NEEDS."""
    if not fault.timed:
        return NEEDED_BY_KIND.get(fault.kind, "interceptor")
    return "proxy" if fault.kind.startswith("link_") else "signals"


def _consistent(scenario: Scenario, file: str) -> None:
    topics = {topic.name for topic in scenario.load.topics}
    if len(scenario.load.topics) != 1:
        raise ScenarioError(f"{file}: load.topics: give exactly one; the idle partitions have a topic of their own")
    groups: tuple[Fetchers | Producers, ...] = (*scenario.load.fetchers, *scenario.load.producers)
    for group in groups:
        if isinstance(group, Producers) and group.acks == 0:
            raise ScenarioError(
                f"{file}: load: {group.name!r} has acks 0: nothing would be answered, so nothing could be judged"
            )
        if group.topic not in topics:
            raise ScenarioError(
                f"{file}: load: topic {group.topic!r} of {group.name!r} is not among: {', '.join(sorted(topics))}"
            )
    for name in _twice([group.name for group in groups]):
        raise ScenarioError(f"{file}: load: two groups are named {name!r}; give each a name of its own")
    for name in _twice([fault.name for fault in scenario.faults]):
        raise ScenarioError(f"{file}: fault: two faults are named {name!r}; give each a name of its own")
    for fault in scenario.faults:
        if needed_by(fault) not in scenario.needs:
            raise ScenarioError(
                f"{file}: needs: fault {fault.name!r} ({fault.kind}) needs {needed_by(fault)!r}, which is not listed"
            )
        if fault.node >= scenario.cluster.nodes:
            raise ScenarioError(
                f"{file}: fault {fault.name!r}: node {fault.node} is not among 0..{scenario.cluster.nodes - 1}"
            )
    if scenario.state and "interceptor" not in scenario.needs:
        raise ScenarioError(f"{file}: needs: [state] is set inside our broker's process and needs 'interceptor'")


def _twice(names: list[str]) -> list[str]:
    return [name for position, name in enumerate(names) if name in names[:position]]
