"""``crucible fleet``: a scenario's load without its faults, against a local cluster or somebody's broker; on request
started and stopped by hand, on Locust's web page."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from bench.fleet.shapes import LoadShape
from bench.fleet.spec import FleetSpec, write_spec
from chaos.live import identity
from chaos.live.cluster import ClusterPlan, Member, started
from chaos.live.errors import NodeDied, SetupError
from chaos.live.fleet import Way, spec_of
from chaos.live.run_folder import RunFolder
from chaos.live.target import REFERENCE, look
from chaos.promises import promised_to_clients
from reports.manifest import Expectations, Manifest, write_manifest
from scenarios.model import Scenario
from scenarios.revisions import revision_of

Progress = Callable[[str], None]
END_LIMIT_S = 150.0
"""For last polls, the final read and the end of all workers."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """``seconds`` 0: as long as the scenario's. ``clients`` 0: as many fetchers as the scenario has, else so many, in
    the proportions of its groups. ``shape``: step, spike or soak; empty: all clients from start to end. ``page``: port
    of Locust's web page, 0: none, the load runs by itself."""

    out: Path
    target: str = REFERENCE
    seed: int = 1
    seconds: int = 0
    clients: int = 0
    workers: int = 2
    shape: str = ""
    page: int = 0


def drive(scenario: Scenario, plan: LoadPlan, command: str, progress: Progress) -> RunFolder:
    """Leaves a run's folder, to be judged from the clients' side. Raises SetupError, after which there is none."""
    folder = RunFolder(plan.out)
    folder.make()
    start_us, wall_us = time.monotonic_ns() // 1000, time.time_ns() // 1000
    crash = ""
    try:
        with _broker(scenario, plan, folder) as way:
            spec = _spec(scenario, plan, folder, way, start_us)
            try:
                _run_fleet(spec, folder, plan.page, progress)
            except NodeDied as death:
                crash = str(death)
                progress(f"crash: {crash}")
    except (SetupError, KeyboardInterrupt):
        folder.discard()
        raise
    folder.write_faults(())
    folder.collect_trace()
    folder.set_torn_aside()
    duration_us = time.monotonic_ns() // 1000 - start_us
    write_manifest(folder.path, _manifest(scenario, plan, command, crash, wall_us, duration_us))
    return folder


def sized(scenario: Scenario, clients: int) -> Scenario:
    """With so many fetchers, at least one of each group; 0: as they are."""
    groups = scenario.load.fetchers
    whole = sum(each.count for each in groups)
    if not clients or not whole:
        return scenario
    counts = [max(1, clients * each.count // whole) for each in groups]
    counts[0] = max(1, counts[0] + clients - sum(counts))
    resized = tuple(replace(each, count=count) for each, count in zip(groups, counts, strict=True))
    return replace(scenario, load=replace(scenario.load, fetchers=resized))


@contextmanager
def _broker(scenario: Scenario, plan: LoadPlan, folder: RunFolder) -> Iterator[Way]:
    """Where the fleet goes, straight and without proxies: figures never pass through them."""
    if plan.target != REFERENCE:
        nodes, versions = look(plan.target)
        yield Way(tuple(nodes), f"crucible-{time.time_ns() // 1_000_000}-", versions)
        return
    cluster = ClusterPlan(folder.data, scenario.cluster.nodes, config=dict(scenario.cluster.config))
    with started(cluster) as members, ExitStack() as stack:
        target = [] if scenario.load.mirror is None else stack.enter_context(started(_second_cluster(folder)))
        yield Way(_where(members), target=_where(target))


def _second_cluster(folder: RunFolder) -> ClusterPlan:
    """That a mirror copies to."""
    return ClusterPlan(folder.data / "target")


def _where(members: Sequence[Member]) -> tuple[str, ...]:
    return tuple(member.advertised for member in members)


def _spec(scenario: Scenario, plan: LoadPlan, folder: RunFolder, way: Way, start_us: int) -> FleetSpec:
    spec = spec_of(sized(scenario, plan.clients), folder.path, way, start_us, plan.seed)
    return msgspec.structs.replace(
        spec,
        load=replace(spec.load, seconds=plan.seconds or spec.load.seconds),
        workers=plan.workers,
        shape=LoadShape(plan.shape) if plan.shape else None,
    )


def _run_fleet(spec: FleetSpec, folder: RunFolder, page: int, progress: Progress) -> None:
    """Until it is done. Ctrl-C ends the load, not what comes after it. Raises NodeDied, SetupError."""
    file, log = write_spec(spec, folder.logs / "fleet-spec.json"), folder.logs / "fleet.log"
    words = [sys.executable, "-m", "bench.fleet", str(file), *(["--web", str(page)] if page else [])]
    with log.open("ab") as errors:
        fleet = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
    told = ""
    try:
        told = _follow(fleet, progress)
    except KeyboardInterrupt:
        progress("the load ends; final polls and final read")
        fleet.send_signal(signal.SIGTERM)
        told = _follow(fleet, progress)
    finally:
        if fleet.poll() is None:
            fleet.kill()
        fleet.wait()
    if fleet.returncode == 2:
        raise SetupError(f"The fleet could not start: {told}")
    if fleet.returncode:
        raise NodeDied(f"the fleet ended with {fleet.returncode}: {told or log}")


def _follow(fleet: "subprocess.Popen[bytes]", progress: Progress) -> str:
    """Its lines, told to a person, until it ends; the last error."""
    assert fleet.stdout is not None
    error = ""
    for line in fleet.stdout:
        event = _event(line)
        if event.get("event") == "error":
            error = str(event.get("message"))
        words = _words(event)
        if words:
            progress(words)
    try:
        fleet.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        error = error or "it did not end"
    return error


def _event(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _words(event: dict[str, Any]) -> str:
    kind = event.get("event")
    if kind == "web":
        return f"open {event['url']} and start up to {event['clients']} users; Ctrl-C ends the fleet"
    if kind == "load":
        return f"load with {event.get('fetchers', 0)} fetchers and {event.get('producers', 0)} producers"
    if kind == "progress" and event.get("second", 0) % 5 == 0:
        return (
            f"second {event['second']}: {event['ok']:,} operations done, {event['failed']:,} failed, "
            f"workers take {event['cpu_permille'] / 1000:.2f} cores"
        )
    return {"load_ended": "final polls and final read"}.get(str(kind), "")


def _manifest(
    scenario: Scenario, plan: LoadPlan, command: str, crash: str, start_wall_us: int, duration_us: int
) -> Manifest:
    commit, dirty = identity.commit()
    return Manifest(
        scenario=scenario.name,
        seed=plan.seed,
        world="live",
        number=scenario.number or 0,
        title=f"The load of: {scenario.title}",
        repeat_command=command,
        run_id=plan.out.name,
        target=plan.target,
        revision=revision_of(scenario),
        command=command,
        commit=commit,
        dirty=dirty,
        start_wall_us=start_wall_us,
        duration_us=duration_us,
        crash=crash,
        versions=identity.versions(),
        machine=identity.machine(),
        notes=("A load without faults, and without a look into the nodes: judged from the clients' side.",),
        expectations=Expectations(
            max_schedule_slip_ms=0 if plan.page else scenario.max_schedule_slip_ms,
            guarantees=_promised(scenario, by_hand=bool(plan.page)),
        ),
    )


def _promised(scenario: Scenario, by_hand: bool) -> tuple[str, ...]:
    """What clients can see. Fetchers that somebody stops by hand need not have read to the end."""
    return tuple(each for each in promised_to_clients(scenario) if not (by_hand and each == "fetch-gap"))
