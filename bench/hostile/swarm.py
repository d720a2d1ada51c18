"""The process of all hostile peers: ``python -m bench.hostile.swarm --ports 9092 --peers 500``.

It prints a line when the peers are there, runs until its stdin ends, and then prints one JSON line: how often each kind
has lived, and how many bytes it sent.
Peers connect to 127.0.0.1 and to nothing else.
"""

import argparse
import asyncio
import json
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random

from bench.children import ends_with_me
from bench.hostile.lives import KINDS, Peer
from bench.peers.node import PeerError

BETWEEN_S = (0.05, 0.5)
"""The pause between two lives of a peer."""
LIFE_LIMIT_S = 30.0
END_LIMIT_S = 20.0
ATTACKS = b"attacks\n"
"""The line that the process prints once its peers are there."""


@dataclass(slots=True)
class KindCounts:
    """Counts of one kind. A life counts once it has sent something."""

    lives: int = 0
    sent_bytes: int = 0


@dataclass(slots=True)
class Swarm:
    """All peers of one process. Peer ``n`` of a kind attacks port ``n`` modulo the number of ports."""

    ports: Sequence[int]
    peers: int
    kinds: Sequence[str]
    seed: int = 1
    counts: dict[str, KindCounts] = field(default_factory=dict)
    ended: bool = False

    async def run(self, ends: "asyncio.Future[object]") -> None:
        tasks = [asyncio.create_task(self._peer(kind, number)) for number in range(self.peers) for kind in self.kinds]
        await ends
        self.ended = True
        pending = set(tasks)
        while pending:  # In Python 3.11, wait_for may lose a cancellation to a life that ends at the same moment.
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=1.0)

    async def _peer(self, kind: str, number: int) -> None:
        counts = self.counts.setdefault(kind, KindCounts())
        random = Random(f"{self.seed}-{kind}-{number}")
        port = self.ports[number % len(self.ports)]
        while not self.ended:
            peer = Peer(port, random)
            try:
                with suppress(OSError, TimeoutError):  # The broker ended it, or is down.
                    await asyncio.wait_for(KINDS[kind](peer), LIFE_LIMIT_S)
            finally:
                counts.lives += peer.sent_bytes > 0 or kind == "flood"
                counts.sent_bytes += peer.sent_bytes
                peer.close()
            await peer.pause(BETWEEN_S)


class SwarmProcess:
    """The swarm in a process of its own, as its parent sees it."""

    def __init__(self, ports: Sequence[int], peers: int, kinds: Sequence[str] = tuple(KINDS), seed: int = 1) -> None:
        words = ["--ports", *map(str, ports), "--peers", str(peers), "--kinds", *kinds, "--seed", str(seed)]
        command = [sys.executable, "-m", "bench.hostile.swarm", *words]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=ends_with_me()
        )

    def await_attack(self) -> None:
        """Wait until the peers are there: on a busy machine that takes seconds. Raise PeerError if they never are."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != ATTACKS:
            raise PeerError("the hostile peers did not start")

    def end(self) -> dict[str, dict[str, int]]:
        """Return what each kind did: its lives, and the bytes that it sent."""
        try:
            printed, _ = self._process.communicate(timeout=END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        done: dict[str, dict[str, int]] = json.loads(printed)
        return done

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@contextmanager
def swarming(process: SwarmProcess) -> Iterator[SwarmProcess]:
    """Run the peers for the time of a block, which no peer outlives."""
    try:
        yield process
    finally:
        process.kill()


async def _until_stdin_ends(swarm: Swarm) -> None:
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: print(ATTACKS.decode(), end="", flush=True))  # noqa: T201
    await swarm.run(loop.run_in_executor(None, sys.stdin.read))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ports", type=int, nargs="+", required=True)
    parser.add_argument("--peers", type=int, default=20, help="Of each kind.")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    swarm = Swarm(args.ports, args.peers, args.kinds, args.seed)
    asyncio.run(_until_stdin_ends(swarm))
    done = {kind: {"lives": count.lives, "sent_bytes": count.sent_bytes} for kind, count in swarm.counts.items()}
    print(json.dumps(done))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
