"""A node of a live run over all its incarnations: same ports, same data, one process after another."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from chaos.live.errors import EndedItself, NodeDied, NotBack, SetupError
from chaos.live.node_side.node_process import NOT_YET, NodeSpec
from chaos.live.processes import READY_LIMIT_S, Child, EvidencePipe


@dataclass(slots=True)
class LiveNode:
    """One node. ``logs`` is the folder of its log.

    ``spec`` is that of the latest start. ``changes`` holds settings for the next start, which add to or replace those
    of the spec. ``child`` is None before the first start. ``is_ready`` speaks of the incarnation that runs.
    """

    spec: NodeSpec
    logs: Path
    changes: Mapping[str, str] = field(default_factory=dict)
    child: Child | None = None
    is_ready: bool = False
    load_from_us: int = NOT_YET
    _pipe: EvidencePipe | None = None

    @property
    def name(self) -> str:
        return f"node-{self.spec.node_id}"

    @property
    def listen(self) -> str:
        """HOST:PORT without a proxy before it."""
        return self.spec.listen

    @property
    def advertised(self) -> str:
        """HOST:PORT of the proxy that leads clients here."""
        return self.spec.advertised

    @property
    def data(self) -> Path:
        return Path(self.spec.data)

    def launch(self) -> None:
        """Starts the next incarnation."""
        assert not self.running, f"{self.name} runs already"
        self.close()
        self.is_ready = False
        pipe = self._pipe = EvidencePipe()
        self.spec = replace(
            self.spec,
            incarnation=self.spec.incarnation + 1,
            evidence_fd=pipe.write_end,
            config={**self.spec.config, **self.changes},
            load_from_us=self.load_from_us,
        )
        self.child = Child(
            self.name,
            [sys.executable, "-m", "chaos.live.node_side.node_process", json.dumps(asdict(self.spec))],
            self.logs / f"{self.name}.log",
            pass_fds=(pipe.write_end,),
        )
        pipe.close_write_end()

    def await_ready(self) -> None:
        """Waits until the node serves. Raises NotBack for a node that was started again and does not, NodeDied,
        SetupError."""
        assert self.child is not None
        if not self.is_ready:
            with self._no_first_start():
                if self.child.said("ready", READY_LIMIT_S) is None:
                    story = f"within {READY_LIMIT_S:g} s; its log: {self.child.log}"
                    if self.spec.incarnation == 0:
                        raise NodeDied(f"{self.name} was not ready {story}")
                    raise NotBack(f"{self.name} did not come back {story}")
            self.is_ready = True

    def look_for_ready(self) -> None:
        """Notes that the node serves, if it does. It does not wait for that, and an announced death is no error."""
        assert self.child is not None
        if self.is_ready or (self.child.exit_status is not None and self.child.expected_end):
            return
        with self._no_first_start():
            self.is_ready = self.child.said("ready", 0.0 if self.child.exit_status is None else 2.0) is not None

    @contextmanager
    def _no_first_start(self) -> Iterator[None]:
        """Raises EndedItself for a node that refuses to start again from its own data. If it refuses its first start,
        the SetupError stays."""
        try:
            yield
        except SetupError as refusal:
            if self.spec.incarnation == 0:
                raise
            raise EndedItself(f"{self.name} could not start again: {refusal}") from refusal

    def load_starts(self, at_us: int) -> None:
        """Tells the node that the load starts. Faults at states may hit from now on. Their times and the interval to
        the next metadata snapshot count from here."""
        self.load_from_us = at_us
        if self.child is not None:
            self.child.order(load_from_us=at_us)

    def disarm(self) -> None:
        """Tells the node that the load is over. No fault at a state hits any more."""
        self.load_from_us = NOT_YET
        if self.child is not None:
            self.child.order(disarm=True)

    def evidence(self) -> list[dict[str, Any]]:
        """Returns the lines that came since the last call."""
        return [] if self._pipe is None else self._pipe.lines()

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.exit_status is None

    def end_cleanly(self) -> None:
        """Waits for the end, which was asked for. Raises NodeDied if the node does not shut down as it should."""
        assert self.child is not None, f"{self.name} was never started"
        how = self.child.terminate()
        if self.child.exit_status != 0:
            raise NodeDied(f"{self.name} did not shut down cleanly: {how}; {self.child.last_words()}")

    def close(self) -> None:
        """Closes the pipes of a process that has ended."""
        if self.child is not None:
            self.child.close()
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
