"""Launchers of nodes: our own, those of a target file, and by shell commands."""

import json
import pickle
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from bench.fleet.negotiation import UnreachableError, negotiate
from bench.fleet.spec import address_of
from bench.ports import free_port, free_ports
from bench.targets.layout import OURS, ClusterLayout, NodeLayout, Via, name_of
from bench.targets.model import Chosen, Commands, TargetError
from chaos.live.cluster import ABILITIES, Launcher, LiveNode
from chaos.live.errors import EndedItself, NodeDied, NotBack, SetupError, TargetDied
from chaos.live.links import Links
from chaos.live.node_side.node_protocol import NOT_YET, NodeSpec
from chaos.live.processes import READY_LIMIT_S, Child, EvidencePipe, ShellProcess, TargetProcess, run_shell
from chaos.live.quorum import Dial, introductions, new_cluster_id, shared_store
from chaos.live.run_folder import RunFolder
from scenarios.model import Scenario

EXIT_SETUP = 2


class BrokerLauncher(Launcher):
    """Starts a process that prints a line when it is ready. ``words`` start it, with ``config`` as further options."""

    process: Child | None

    def __init__(self, name: str, words: Sequence[str], config: Mapping[str, str], data: Path, log: Path) -> None:
        self.name = name
        self.config = config
        self.data = data
        self.log = log
        self._words = words

    def start(self) -> None:
        settings = [word for key, value in self.config.items() for word in ("--config", f"{key}={value}")]
        self.process = Child(self.name, [*self._words, *settings], self.log)

    def is_serving(self) -> bool:
        assert self.process is not None
        within_s = 0.0 if self.process.exit_status is None else 2.0  # The line may still be in the pipe.
        return self.process.line_with("ready", within_s) is not None

    def failure(self, is_first: bool) -> Exception:
        """A node that refuses to restart from its own data counts as having ended itself."""
        assert self.process is not None
        status, words = self.process.exit_status, self.process.last_words()
        if status is None:
            limit = f"within {READY_LIMIT_S:g} s; its log: {self.log}"
            first = f"{self.name} was not ready {limit}"
            return NodeDied(first) if is_first else NotBack(f"{self.name} did not come back {limit}")
        if status != EXIT_SETUP:
            return self.process.death(" before it was ready")
        refusal = words.removeprefix("crucible broker: ")
        return SetupError(refusal) if is_first else EndedItself(f"{self.name} could not start again: {refusal}")

    def reconfigure(self, config: Mapping[str, str]) -> None:
        self.config = {**self.config, **config}


class NodeUnderTest(BrokerLauncher):
    """``spec`` is that of the latest start. The node reports evidence through a pipe."""

    def __init__(self, spec: NodeSpec, logs: Path) -> None:
        name = f"node-{spec.node_id}"
        super().__init__(name, (), spec.config, Path(spec.data), logs / f"{name}.log")
        self.spec = spec
        self._load_from_us = NOT_YET
        self._pipe: EvidencePipe | None = None

    def start(self) -> None:
        pipe = self._pipe = EvidencePipe()
        self.spec = replace(
            self.spec,
            config=self.config,
            incarnation=self.spec.incarnation + 1,
            evidence_fd=pipe.write_end,
            load_from_us=self._load_from_us,
        )
        command = [sys.executable, "-m", "chaos.live.node_side.node_process", json.dumps(asdict(self.spec))]
        self.process = Child(self.name, command, self.log, pass_fds=(pipe.write_end,))
        pipe.close_write_end()

    def load_starts(self, at_us: int) -> None:
        """Faults at states may fire from now on. Their times, and the interval to the next metadata snapshot, count
        from here."""
        self._load_from_us = at_us
        if self.process is not None:
            self.process.send_command(load_from_us=at_us)

    def disarm(self) -> None:
        """Let no further fault at a state fire."""
        self._load_from_us = NOT_YET
        if self.process is not None:
            self.process.send_command(disarm=True)

    def evidence(self) -> list[dict[str, Any]]:
        return [] if self._pipe is None else self._pipe.lines()

    def close(self) -> None:
        super().close()
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


def nodes_under_test(
    scenario: Scenario,
    folder: RunFolder,
    links: Links,
    lead: Callable[[Dial], Dial],
    seed: int,
    mutant: str,
    origin_us: int,
) -> list[LiveNode]:
    """Return the nodes of a run behind their links, without starting them. ``lead`` may add further proxies to the
    links."""
    cluster = scenario.cluster
    listen = [f"127.0.0.1:{port}" for port in free_ports(cluster.total)]
    introduced = introductions(new_cluster_id(), listen, cluster.nodes, links, lead)
    store = shared_store(dict(cluster.config), folder.data)
    folder.scenario.write_bytes(pickle.dumps(scenario))
    nodes = []
    for number, address in enumerate(listen):
        spec = NodeSpec(
            node_id=number,
            listen=address,
            advertised=links.add("client", number, address).listen,
            metrics_listen=f"127.0.0.1:{free_port()}",
            data=str(folder.data / f"node-{number}"),
            spools=str(folder.spools),
            hit_counts=str(folder.hit_counts),
            config={**cluster.config_of(number), **introduced[number], **store},
            is_voter=number < cluster.nodes,
            scenario=str(folder.scenario),
            seed=seed,
            mutant=mutant,
            origin_us=origin_us,
        )
        nodes.append(LiveNode(number, address, NodeUnderTest(spec, folder.logs), spec.advertised))
    return nodes


def samples_of(nodes: Sequence[LiveNode]) -> list[tuple[int, str, int]]:
    """Return node ID, metrics address and pid of each node under test."""
    launchers = [node.launcher for node in nodes]
    return [
        (launcher.spec.node_id, launcher.spec.metrics_listen, launcher.process.pid)
        for launcher in launchers
        if isinstance(launcher, NodeUnderTest) and launcher.process is not None
    ]


READY_EVERY_S = 0.1
READY_COMMAND_LIMIT_S = 30.0


class ExternalLauncher(Launcher):
    """Base of the launchers of external nodes. A thread of its own tests whether a node serves, since that may take
    its time: by the command ``ready``, or else by an ApiVersions request to ``listen``."""

    late_report_s = 1.0

    def __init__(self, name: str, listen: str, ready: str, ready_limit_s: float, abilities: frozenset[str]) -> None:
        self.abilities = abilities
        self.start_limit_s = ready_limit_s
        self._name = name
        self._test: Callable[[], bool] = (lambda: _succeeds(ready)) if ready else (lambda: responds(listen))
        self._ready = threading.Event()
        self._starts = 0

    def start(self) -> None:
        self._starts += 1
        self._ready = threading.Event()
        process = self.process = self._started()
        words = (process, self._ready)
        threading.Thread(target=self._await_ready, args=words, name=f"{self._name}-ready", daemon=True).start()

    @abstractmethod
    def _started(self) -> TargetProcess | ShellProcess:
        """Start a process and return it."""

    def _await_ready(self, process: TargetProcess | ShellProcess, ready: threading.Event) -> None:
        """Test until this incarnation serves or has ended."""
        while process.exit_status is None and process is self.process:
            if self._test():
                ready.set()
                return
            time.sleep(READY_EVERY_S)

    def is_serving(self) -> bool:
        return self._ready.is_set()

    def failure(self, is_first: bool) -> Exception:
        assert self.process is not None
        within = f"within {self.start_limit_s:g} s"
        if self.process.exit_status is not None:
            how = f"{self.process.how_it_ended()} before it was ready{'' if is_first else ' again'}"
        else:
            how = f"was not ready {within}" if is_first else f"did not come back {within}"
        explanation = f"{self._name} {how}: {self.process.last_words()}"
        return SetupError(explanation) if is_first else TargetDied(explanation)


class ProcessLauncher(ExternalLauncher):
    """Starts one of a plan's nodes. ``settings`` are those of all nodes, by number, which the plan reads."""

    def __init__(
        self, layout: NodeLayout, plan: ClusterLayout, via: Via, settings: list[dict[str, str]], log: Path, listen: str
    ) -> None:
        file = plan.node
        super().__init__(name_of(layout.number), listen, layout.ready, file.ready_limit_s, abilities_of(plan.chosen))
        self.layout = layout
        self.data = layout.data
        self._plan = plan
        self._via = via
        self._settings = settings
        self._log = log

    def _started(self) -> TargetProcess:
        """A data folder that is empty at a later start is prepared once more. Nothing else happens meanwhile."""
        layout = self.layout
        if self._starts > 1 and layout.data.is_dir() and not any(layout.data.iterdir()):
            try:
                layout.make()
            except TargetError as failure:
                raise TargetDied(str(failure)) from failure
        return TargetProcess(self._name, layout.command, self._log, layout.environment, self._plan.node.stop_limit_s)

    def reconfigure(self, config: Mapping[str, str]) -> None:
        own = {key: value for key, value in config.items() if not key.startswith(OURS)}
        self._settings[self.layout.number].update(own)
        self.layout = self._plan.laid(self.layout.number, self._via)
        self.layout.write()


class CommandLauncher(ExternalLauncher):
    """Reaches a node that runs already, or that its command starts."""

    def __init__(self, number: int, chosen: Chosen, commands: Commands) -> None:
        self._address = chosen.file.addresses[number]
        self._number = number
        self._commands = commands
        ready = self._made().command("ready")
        super().__init__(name_of(number), self._address, ready, commands.ready_limit_s, abilities_of(chosen))

    def _made(self) -> ShellProcess:
        return ShellProcess(self._number, self._address, self._commands)

    def _started(self) -> ShellProcess:
        process = self._made()
        if self._commands.start:
            process.start()
        return process


PROCESS_WORDS = ("start", "stop", "kill", "pause", "resume")


def abilities_of(chosen: Chosen) -> frozenset[str]:
    """Return the abilities of the launcher of each node of a target (``chaos.live.cluster.ABILITIES``)."""
    file = chosen.file
    if file.node is not None:
        is_one = file.node.one_process and chosen.nodes > 1
        return frozenset({"settings"}) if is_one else ABILITIES - {"disk"}
    return frozenset(word for word in PROCESS_WORDS if file.commands is not None and getattr(file.commands, word))


def responds(listen: str) -> bool:
    """Return whether a node responds to ApiVersions there."""
    try:
        negotiate([address_of(listen)], 0.0)
    except UnreachableError:
        return False
    return True


def _succeeds(command: str) -> bool:
    try:
        return run_shell(command, READY_COMMAND_LIMIT_S).returncode == 0
    except TimeoutExpired:
        return False
