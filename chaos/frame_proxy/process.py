"""The proxy as a process of a run.

``python -m chaos.frame_proxy.process SPEC``, where SPEC is a ``Spec`` as JSON.

It prints one JSON line when it is ready (``ready``: HOST:PORT for each node and each link), and one for each hit
(``fault``) before the hit's action. It takes orders as JSON lines on stdin, and ends with stdin or at SIGTERM.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from chaos.frame_proxy.proxy import AdvertisedNode, FrameProxy, LinkPair, ProxyPlan
from chaos.frame_proxy.proxy_command import new_loop
from chaos.frame_proxy.rules_file import BETWEEN_NODES, PLACES
from chaos.interceptor.held_responses import LostKeys
from chaos.interceptor.rules import Rule, between_nodes, rules_of
from chaos.live.fault_selection import select_live_faults
from chaos.live.processes import READY_LIMIT_S, Child
from chaos.seeds import random_for
from reference_broker.serve.process import await_end_signals
from reports.rows import FaultRow
from scenarios import loader
from scenarios.derived import for_external_target

FAULT = "fault"
READY = "ready"
LOST_BY_PROXY = "lost_by_proxy"
LOOK_EVERY_S = 0.05


class Spec(msgspec.Struct):
    """The specification of the process. A field without a note is as in ProxyPlan."""

    nodes: list[tuple[int, str, int]] = []
    """ID, and host and port as advertised; rules know a node by its place here."""
    dial: dict[str, str] = {}
    pairs: list[LinkPair] = []
    """The links between nodes."""
    scenario: str = ""
    """Path of the scenario whose rules are played. Rules with a link, and rules at other nodes' responses, are played
    on the ``pairs``; all others are played in front of the ``nodes``. Nodes of the reference broker inject faults at
    the responses of other nodes themselves."""
    seed: int = 1
    """Determines the rules' random choices."""
    origin_us: int = 0
    frames: str = ""
    topic: str = ""
    external_faults: list[str] | None = None
    """Names of the faults that are played in front of an external target. None: the nodes belong to the reference
    broker."""
    roles_are_reported: bool = False
    processes: dict[int, int | str] = {}
    """Process ID of each node. The order ``processes`` updates those of restarted nodes."""


class ProxyProcess(Child):
    """The process. ``fronts`` are HOST:PORT before each node and on each link.

    Making one starts it, and raises SetupError or NodeDied.
    """

    def __init__(
        self,
        spec: Spec,
        log: Path,
        hit: Callable[[FaultRow], None],
        lost: Callable[[int, LostKeys], None] = lambda *_: None,
    ) -> None:
        self._hit = hit
        self._lost = lost
        self._is_ready = threading.Event()
        self.fronts: list[str] = []
        words = [sys.executable, "-m", "chaos.frame_proxy.process", msgspec.json.encode(spec).decode()]
        super().__init__("the frame proxy", words, log, on_line=self._handle_line)
        deadline = time.monotonic() + READY_LIMIT_S
        while not self._is_ready.wait(LOOK_EVERY_S):
            if self.exit_status is not None or time.monotonic() > deadline:
                self.terminate()
                raise self.death(" before it was ready")

    def _handle_line(self, line: dict[str, Any]) -> None:
        if READY in line:
            self.fronts = line[READY]
            self._is_ready.set()
        if FAULT in line:
            self._hit(FaultRow(*line[FAULT]))
        if LOST_BY_PROXY in line:
            self._lost(*line[LOST_BY_PROXY])


def frame_rules(spec: Spec) -> Sequence[Rule]:
    """Return the rules of the scenario that hit frames at this proxy. The numbers that they leave to
    chance are those that nodes and the simulator draw."""
    if not spec.scenario:
        return ()
    scenario = loader.find(spec.scenario)
    played = select_live_faults(scenario if spec.external_faults is None else for_external_target(scenario), spec.seed)
    places = PLACES if spec.external_faults is None else BETWEEN_NODES
    rules = [rule for rule in rules_of(played, random_for(spec.seed, "rules")) if rule.on in places]
    here = [rule for rule in rules if (spec.pairs if between_nodes(rule) else spec.nodes)]
    return [rule for rule in here if spec.external_faults is None or rule.name in spec.external_faults]


def main() -> None:
    spec = msgspec.json.decode(sys.argv[1], type=Spec)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(spec))


async def _serve(spec: Spec) -> None:
    loop = asyncio.get_running_loop()
    ending = asyncio.Event()

    def in_loop(work: Callable[..., None], *words: object) -> None:
        with suppress(RuntimeError):  # The loop is closed already.
            loop.call_soon_threadsafe(work, *words)

    await_end_signals(lambda: in_loop(ending.set))
    plan = ProxyPlan(
        dial=spec.dial,
        rules=frame_rules(spec),
        frames=Path(spec.frames) if spec.frames else None,
        seed=spec.seed,
        topic=spec.topic,
        roles_are_reported=spec.roles_are_reported,
        origin_us=spec.origin_us,
        processes=spec.processes,
        behind_toxiproxy=True,
    )
    proxy = FrameProxy(
        plan,
        lambda row: _write_line({FAULT: list(row.values())}),
        lambda node, lost: _write_line({LOST_BY_PROXY: [node, lost]}),
    )
    proxy.load_from(2**62)  # No rule hits before the load.

    def listen() -> None:
        for line in sys.stdin:
            in_loop(_obey, proxy, msgspec.json.decode(line))
        in_loop(ending.set)

    try:
        nodes = [AdvertisedNode(*node, number=number) for number, node in enumerate(spec.nodes)]
        _write_line({READY: proxy.start(nodes, spec.pairs)})
        threading.Thread(target=listen, name="orders", daemon=True).start()
        await ending.wait()
    finally:
        proxy.close()
        await asyncio.sleep(0)


def _obey(proxy: FrameProxy, order: Mapping[str, Any]) -> None:
    if "load_from_us" in order:
        proxy.load_from(order["load_from_us"])
    if "role" in order:
        proxy.take_role(*order["role"])
    for node, process in order.get("processes", {}).items():
        proxy.has_process(int(node), process)
    if "toxic" in order:
        proxy.toxic(*order["toxic"])
    if order.get("disarm"):
        proxy.disarm()


def _write_line(line: object) -> None:
    """Write at once and past all buffers, so that the evidence is out before what it is about."""
    os.write(1, msgspec.json.encode(line) + b"\n")


if __name__ == "__main__":
    main()
