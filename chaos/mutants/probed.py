"""Play the probe on defective brokers: report which cases of ``crucible probe`` detect each planted defect.

``python -m chaos.mutants.probed`` prints a line for each broker, and then each MUST that no broker fails. With names it
plays only these brokers. With ``--serve NAME HOST:PORT FOLDER`` it is the process of one such broker.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.children import ends_with_me
from bench.ports import free_port
from bench.probe.broker import Address, NotKafka, ProbedBroker, meet
from bench.probe.case import MUST, ProbeCase
from bench.probe.cases import all_cases, chosen
from bench.probe.play import play
from chaos.mutants.mutant import apply
from chaos.mutants.wrong_habits import PLAYED, found

READY_LIMIT_S = 60.0
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
}
"""So that cases about groups need not wait."""
_RESTARTED = "it would need a broker with a defect that the probe can restart"
_TIERED = "it would need a broker with a defect and a tier"
NO_DEFECT_YET: Mapping[str, str] = {
    **{each.id: _RESTARTED for each in chosen(["restarts"], []) if each.level is MUST},
    **{each.id: _TIERED for each in chosen(["tier"], []) if each.level is MUST},
    "groups/fetch/error-in-version-1": "it would need several nodes",
    "fetch/session/preferred-replica": "it would need several nodes",
    "produce/idempotence/expired": "it would need producers that expire soon, which other cases do not stand",
    "handshake/api-versions/beyond-range-goes-on": "it would need a driver that closes a connection after a response",
    "handshake/api-versions/version-0": "without that response the probe meets no broker at all",
    "handshake/unknown/leaves-others": "it would need a driver that closes all connections",
}
"""Cases that no broker here breaks, with the reason."""


def seen_by(name: str) -> list[str]:
    """Return the IDs of the cases that fail on the broker with this defect."""
    with _mutated(name) as broker:
        return [each.case.id for each in play(broker, chosen(PLAYED[name], [])) if each.is_red(True)]


def unproven(seen: Mapping[str, Sequence[str]]) -> list[ProbeCase]:
    """Return the MUST cases that no broker fails. ``seen`` has the failed cases of each broker."""
    red = {each for cases in seen.values() for each in cases}
    return [each for each in all_cases() if each.level is MUST and each.id not in red]


@contextmanager
def _mutated(name: str) -> Iterator[ProbedBroker]:
    address = ("127.0.0.1", free_port())
    with tempfile.TemporaryDirectory() as folder:
        words = ["--serve", name, f"{address[0]}:{address[1]}", folder]
        command = [sys.executable, "-m", "chaos.mutants.probed", *words]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=ends_with_me()
        )
        try:
            yield _met(address, process)
        finally:
            process.kill()
            process.wait()


def _met(address: Address, process: "subprocess.Popen[bytes]") -> ProbedBroker:
    deadline = time.monotonic() + READY_LIMIT_S
    while True:
        try:
            return meet(address)
        except NotKafka:
            assert process.poll() is None, "the broker ended"
            assert time.monotonic() < deadline, "the broker does not respond"
            time.sleep(0.05)


def _serve(name: str, listen: str, folder: str) -> int:
    """The mutant is applied before the node is built."""
    from reference_broker.serve.main import run_broker

    apply(found(name))
    return run_broker(listen, Path(folder) / "data", 0, SETTINGS)


def main(words: list[str]) -> int:
    if words[:1] == ["--serve"]:
        return _serve(*words[1:])
    for name in (name for name in words if name not in PLAYED):
        print(f"there is no broker {name!r}; there are: {', '.join(PLAYED)}", file=sys.stderr)  # noqa: T201
        return 2
    seen = {}
    for name in words or PLAYED:
        seen[name] = seen_by(name)
        print(f"{name}: {', '.join(seen[name]) or 'nothing'}", flush=True)  # noqa: T201
    for each in unproven(seen) if not words else ():
        print(f"no defect turns {each.id} red: {NO_DEFECT_YET.get(each.id, '')}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
