"""``crucible probe``: plays cases against a target and reports their outcomes."""

import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.peers.cluster import PeerCluster, launched
from bench.peers.node import PeerError
from bench.ports import stranger_at
from bench.probe import kafka_responses
from bench.probe.broker import Address, NotKafka, ProbedBroker, Target, meet
from bench.probe.case import CaseOutcome, CaseVerdict, ProbeCase
from bench.probe.cases import chosen
from bench.probe.comparison import differences, read_baseline, worse
from bench.probe.play import GONE, play
from bench.probe.reporters import (
    case_line,
    in_full,
    json_document,
    junit_document,
    outcome_line,
    outcome_summary,
    page_document,
    repeat_command,
)
from bench.targets.loader import bundled, find
from bench.targets.model import Chosen, TargetError
from reports.ci_results import annotation

PASSED, FAILED = 0, 1


class UsageError(Exception):
    """The words of the command do not fit together."""


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """The options of the command line."""

    target: str  # see the function ``target``
    sections: Sequence[str] = ()
    cases: Sequence[str] = ()
    strict: bool = False
    dry_run: bool = False
    hostile: bool = False
    oracle: str | None = None  # the second broker, see the function ``target``
    baseline: Path | None = None
    json: Path | None = None
    junit: Path | None = None
    page: Path | None = None
    annotates: bool = False  # print what is red as annotations of GitHub
    config: Mapping[str, str] = field(default_factory=dict)  # settings of a target that the probe starts

    @property
    def words(self) -> str:
        """The target as somebody types it."""
        return " ".join([self.target, *(f"--config {key}={value}" for key, value in self.config.items())])


def run(options: ProbeOptions, say: Callable[[str], None]) -> int:
    """Return the exit code: 0 if no MUST failed (with ``strict``: and no SHOULD differs), else 1. With a baseline it
    is 1 if something got worse. It is 1 if a case itself stumbles, too. ``say`` takes a line for people.

    Raise UsageError, UnknownCase, NoBaseline, NotKafka and PeerError, which are one sentence each.
    """
    cases = chosen(options.sections, options.cases)
    if options.dry_run:
        for case in cases:
            say(case_line(case))
        say(f"{len(cases)} cases")
        return PASSED
    _writable(options)
    before = read_baseline(options.baseline) if options.baseline else None
    with ExitStack() as started:
        first = _met(started.enter_context(target(options.target, options.config)))
        second = _met(started.enter_context(target(options.oracle))) if options.oracle else None
        return _played(options, cases, before, first, second, say)


def _met(own: Target) -> tuple[ProbedBroker, Target]:
    """Raise NotKafka."""
    if stranger := stranger_at(*own.address):
        raise NotKafka(stranger)
    return meet(own.address), own


def _played(
    options: ProbeOptions,
    cases: Sequence[ProbeCase],
    before: Mapping[str, CaseVerdict] | None,
    first: tuple[ProbedBroker, Target],
    second: tuple[ProbedBroker, Target] | None,
    say: Callable[[str], None],
) -> int:
    began = time.monotonic()
    outcomes = play(first[0], cases, options.hostile, say, first[1])
    summary = outcome_summary(outcomes, time.monotonic() - began)
    red = (
        [outcome for outcome in outcomes if outcome.is_red(options.strict)]
        if before is None
        else worse(before, outcomes)
    )
    red += [outcome for outcome in outcomes if outcome.is_ours]
    _report(options, outcomes, red, say)
    if second is not None:
        differ = list(differences(outcomes, play(second[0], cases, options.hostile, say, second[1])))
        for line in differ:
            say(f"differs from the oracle: {line}")
        say(f"{len(cases) - len(differ)} of {len(cases)} cases get the responses of {options.oracle}")
    say(summary + ("" if before is None else f"; {len(red)} worse than {options.baseline}"))
    _write(options, outcomes, red, summary)
    for each in red if options.annotates else ():
        repeat = repeat_command(options.words, each.case.id)
        say(annotation(each.case.id, f"{each.verdict.value}: {each.reason}\n{each.case.words}\nagain: {repeat}"))
    return FAILED if red else PASSED


def _writable(options: ProbeOptions) -> None:
    """Raise UsageError before anything is played if what is found could not be written afterwards."""
    for option, file in (("--json", options.json), ("--junit", options.junit), ("--page", options.page)):
        try:
            if file is not None:
                file.open("a").close()
        except OSError as error:
            raise UsageError(f"{option} {file}: {error.strerror}") from None


def _report(
    options: ProbeOptions, outcomes: Sequence[CaseOutcome], red: Sequence[CaseOutcome], say: Callable[[str], None]
) -> None:
    """One line for each case; all about those that are red, and about those that were selected by ID."""
    kafka = kafka_responses.in_words()
    for outcome in outcomes:
        name = outcome.case.id
        if outcome.reason.startswith(GONE):
            continue
        if outcome in red or name in options.cases:
            for line in in_full(outcome, repeat_command(options.words, name), kafka.get(name, "")):
                say(line)
        else:
            say(outcome_line(outcome))
    missing = [case_outcome.reason for case_outcome in outcomes if case_outcome.reason.startswith(GONE)]
    if missing:
        say(f"{missing[0]}; {len(missing)} of {len(outcomes)} cases were not played")


def _write(options: ProbeOptions, outcomes: Sequence[CaseOutcome], red: Sequence[CaseOutcome], summary: str) -> None:
    kafka = kafka_responses.in_words()
    if options.json is not None:
        options.json.write_text(json_document(options.target, outcomes, kafka), encoding="utf-8")
    if options.junit is not None:
        options.junit.write_text(junit_document(options.words, outcomes, options.strict, kafka), encoding="utf-8")
    if options.page is not None:
        options.page.write_text(page_document(options.words, outcomes, red, summary, kafka), encoding="utf-8")


@contextmanager
def target(text: str, settings: Mapping[str, str] | None = None) -> Iterator[Target]:
    """A broker that runs, given as HOST:PORT, or one that is started from a target file (``bench.targets``) and ended
    afterwards, with one node unless another number is given. ``settings``: those of a broker that is started, by
    Kafka's names. Raise UsageError and PeerError."""
    try:
        chosen = find(text)
    except TargetError as wrong:
        raise UsageError(str(wrong)) from wrong
    if settings and chosen.file.node is None:
        raise UsageError(f"{text} runs already, so it cannot get settings: leave --config out")
    if chosen.file.addresses:
        yield Target(address_of(chosen.file.addresses[0]))
        return
    if "/" not in text.rpartition(".toml")[2]:
        chosen = replace(chosen, nodes=1)
    with started(chosen, settings) as own:
        yield own


@contextmanager
def started(chosen: Chosen, settings: Mapping[str, str] | None = None) -> Iterator[Target]:
    """The target with as many nodes as were wanted, ended at the end of the block. Raise PeerError."""
    with tempfile.TemporaryDirectory() as folder, launched(chosen, Path(folder), settings) as cluster:
        yield of_cluster(cluster, "disk" not in chosen.file.lacks)


def of_cluster(cluster: PeerCluster, keeps_data: bool = True) -> Target:
    return Target(("127.0.0.1", cluster.ports[0]), _Nodes(cluster), keeps_data)


@dataclass(frozen=True, slots=True)
class _Nodes:
    """All nodes of a cluster, as ``bench.probe.broker.Processes``."""

    cluster: PeerCluster

    def ended(self) -> str:
        return next(filter(None, (member.ended() for member in self.cluster.members)), "")

    def restart(self) -> None:
        for member in self.cluster.members:
            if not member.ended():
                member.send_signal(signal.SIGKILL)
        try:
            for member in self.cluster.members:
                member.reap()
            self.cluster.launch()
            self.cluster.await_ready()
        except PeerError as error:
            raise TargetError(str(error)) from error


def address_of(target: str) -> Address:
    """``HOST:PORT``, also with an IPv6 host in brackets. Raise UsageError."""
    host, separator, port = target.rpartition(":")
    is_number = port.isascii() and port.isdigit()
    if not separator or not is_number or not 0 < int(port) < 65536 or not host.strip("[]"):
        raise UsageError(f"{target!r} is neither HOST:PORT nor a target file ({', '.join(bundled())})")
    return host.strip("[]"), int(port)
