"""Play one seed of a scenario in the simulator: the entry point of the simulator."""

import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from chaos.checks.check import Check
from chaos.mutants import applied, by_name
from chaos.sim.cluster import EventReached
from chaos.sim.decision_counts import NOTHING_COUNTED, recorder, watch
from chaos.sim.machine import Machine
from chaos.sim.network import CODED_SHARE
from chaos.sim.swarm import materialised
from chaos.sim.verdict import SimVerdict, compute_verdict
from chaos.sim.world import RunStuckError, SimWorld
from scenarios.decision_points import ROOT
from scenarios.loader import Scenario
from scenarios.revisions import own_points

_OFFSETS = ("offset", "base_offset", "base")
"""Names of local variables that have the offset at which a function failed."""


class PlayedSeed(NamedTuple):
    """The result of a played seed."""

    verdict: SimVerdict
    world: SimWorld
    """as it was at the end of the run; ``chaos.sim.run_folder.write_out`` needs it"""


def play_seed(
    scenario: Scenario,
    seed: int,
    mutant: str | None = None,
    *,
    hashed: bool = False,
    keep_trace: bool = False,
    coded_share: float = CODED_SHARE,
    also: Sequence[type[Check]] = (),
    until_event: int = -1,
) -> PlayedSeed:
    """Play one seed, and compute the verdict of the run. Raise MutantError if there is no such mutant or it does not
    fit the code.

    - ``hashed``, ``keep_trace``, ``coded_share`` and ``also`` are those of ``SimWorld``.
    - With ``until_event`` the run ends after that event, counted over all nodes, and the verdict is meaningless.
    """
    with applied(by_name(mutant) if mutant else None) as applied_mutant:
        played = materialised(scenario, seed)
        on_decisions = any(fault.on == "decision" for fault in played.faults)
        counts = watch() if own_points(played) or on_decisions else recorder()
        if counts is not None:
            counts.begin(is_waited_for=on_decisions)
        world = SimWorld(played, seed, hashed=hashed, keep_trace=keep_trace, coded_share=coded_share, also=also)
        world.cluster.stop_after_event = until_event
        crash, stuck, crashed_node = tuple[str, ...](), "", -1
        try:
            world.play()
        except EventReached:
            pass
        except RunStuckError as error:
            stuck = str(error)
        except Exception as error:
            crash, crashed_node = _crash(error, world.stage)
        reached = NOTHING_COUNTED if counts is None else counts.end()
        verdict = compute_verdict(world, applied_mutant, reached, crash, stuck)
        return PlayedSeed(replace(verdict, crashed_node=crashed_node), world)


def _crash(error: Exception, stage: str) -> tuple[tuple[str, ...], int]:
    """Return the exception that ended the run, then the node and the offset at which it was raised, and the node's
    number, -1 if none was at work."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    last = traceback.extract_tb(error.__traceback__)[-1]
    path = Path(last.filename)
    file = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    what = f"{type(error).__name__}: {error} ({file}:{last.lineno}, during {stage})"
    node = next(
        (own.node_id for own in (frame.f_locals.get("self") for frame in frames) if isinstance(own, Machine)), -1
    )
    where = [f"node {node}"] if node >= 0 else []
    for frame in reversed(frames):
        at = next((value for name in _OFFSETS if type(value := frame.f_locals.get(name)) is int), None)
        if at is not None:
            where.append(f"offset {at}")
            break
    return ((what, f"it worked on {' at '.join(where)}") if where else (what,)), node
