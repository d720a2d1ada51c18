"""``crucible fleet``: a scenario's load without its faults.

Optionally, the user starts and stops the load on Locust's web page.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from bench.fleet.spec import FleetSpec, LoadShape
from chaos.checks.guarantee_selection import promised_to_clients
from chaos.live.cluster_command import ClusterPlan, started
from chaos.live.errors import NodeDied, SetupError
from chaos.live.external.cluster import standing
from chaos.live.external.target import REFERENCE, discover
from chaos.live.fleet import ClusterAccess, FleetProcess, live_fleet_spec
from chaos.live.run_folder import RunFolder
from chaos.live.run_manifest import of_live_run
from reports.manifest import Expectations, Manifest, write_manifest
from reports.schema import stored_files
from scenarios.model import Scenario

Progress = Callable[[str], None]
END_LIMIT_S = 150.0
"""Limit of the last polls, the final read and the end of all workers, after the user has ended the load."""


@dataclass(frozen=True, slots=True)
class LoadAlonePlan:
    """The options of the command."""

    out: Path
    target: str = REFERENCE
    seed: int = 1
    seconds: int = 0
    """Duration of the load. 0: the scenario's."""
    clients: int = 0
    """Number of fetchers, in the proportions of the scenario's groups. 0: the scenario's number."""
    workers: int = 2
    shape: str = ""
    """step, spike or soak. Empty: all clients run from start to end."""
    page: int = 0
    """Port of Locust's web page. 0: no page, the load runs by itself."""


def drive(scenario: Scenario, plan: LoadAlonePlan, command: str, progress: Progress) -> RunFolder:
    """Run the load, and return the run's folder, which is judged from the clients' side. Raise SetupError; then there
    is no folder."""
    folder = RunFolder(plan.out)
    folder.make()
    start_us, wall_us = time.monotonic_ns() // 1000, time.time_ns() // 1000
    crash = ""
    try:
        with _broker(scenario, plan, folder) as access:
            spec = _spec(scenario, plan, folder, access, start_us)
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
    """Return the scenario with this number of fetchers, at least one of each group. 0 leaves it as it is."""
    groups = scenario.load.fetchers
    whole = sum(group.count for group in groups)
    if not clients or not whole:
        return scenario
    counts = [max(1, clients * group.count // whole) for group in groups]
    counts[0] = max(1, counts[0] + clients - sum(counts))
    resized = tuple(replace(each, count=count) for each, count in zip(groups, counts, strict=True))
    return replace(scenario, load=replace(scenario.load, fetchers=resized))


@contextmanager
def _broker(scenario: Scenario, plan: LoadAlonePlan, folder: RunFolder) -> Iterator[ClusterAccess]:
    """Yield the access of the fleet to the brokers, without proxies, which would distort the figures."""
    if plan.target != REFERENCE:
        with standing(plan.target, folder.data, scenario.cluster) as target:
            nodes, versions = discover(target.bootstrap)
            yield ClusterAccess(tuple(nodes), f"crucible-{time.time_ns() // 1_000_000}-", versions)
        return
    with ExitStack() as stack:
        source = ClusterPlan(folder.data, scenario.cluster.nodes, config=dict(scenario.cluster.config))
        access = ClusterAccess(stack.enter_context(started(source)).addresses)
        if scenario.load.mirror is not None:
            mirror = stack.enter_context(started(ClusterPlan(folder.mirror_target)))
            access = replace(access, target=mirror.addresses)
        yield access


def _spec(
    scenario: Scenario, plan: LoadAlonePlan, folder: RunFolder, access: ClusterAccess, start_us: int
) -> FleetSpec:
    spec = live_fleet_spec(sized(scenario, plan.clients), folder.path, access, start_us, plan.seed)
    return msgspec.structs.replace(
        spec,
        load=replace(spec.load, seconds=plan.seconds or spec.load.seconds),
        workers=plan.workers,
        shape=LoadShape(plan.shape) if plan.shape else None,
    )


def _run_fleet(spec: FleetSpec, folder: RunFolder, page: int, progress: Progress) -> None:
    """Run the fleet until it is done. Ctrl-C ends only the load. Raise NodeDied, SetupError."""

    def show(event: dict[str, Any]) -> None:
        if words := _words(event):
            progress(words)

    fleet = FleetProcess(spec, folder, ["--web", str(page)] if page else [], show)
    try:
        fleet.wait()
    except KeyboardInterrupt:
        progress("the load ends; final polls and final read")
        fleet.request_end()
        if not fleet.wait(END_LIMIT_S):
            raise NodeDied(f"the fleet did not end within {END_LIMIT_S:g} s") from None
    finally:
        fleet.kill()
        fleet.close()
    fleet.check()


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
    scenario: Scenario, plan: LoadAlonePlan, command: str, crash: str, start_wall_us: int, duration_us: int
) -> Manifest:
    return Manifest(
        **of_live_run(scenario, plan.out, plan.seed, start_wall_us),
        title=f"The load of: {scenario.title}",
        repeat_command=command,
        history_files=stored_files(plan.out),
        target=plan.target,
        command=command,
        duration_us=duration_us,
        crash=crash,
        notes=("A load without faults, and without a look into the nodes: judged from the clients' side.",),
        expectations=Expectations(
            max_schedule_slip_ms=0 if plan.page else scenario.max_schedule_slip_ms,
            guarantees=_promised(scenario, by_hand=bool(plan.page)),
        ),
    )


def _promised(scenario: Scenario, by_hand: bool) -> tuple[str, ...]:
    """Return the guarantees that clients can judge. If the user stops the load, fetchers need not have read to the
    end."""
    return tuple(each for each in promised_to_clients(scenario) if not (by_hand and each == "fetch-gap"))
