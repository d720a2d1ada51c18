"""Results of workers and of a run."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from bench.load.backlog import Backlog
from bench.load.faults import FaultFigures, FiredFault, figures
from bench.load.ledger import Findings, Range, Read, Sent, judge
from bench.load.measures import Measures, merged, quantile_us
from bench.load.workload import Workload
from bench.locust.clock import SAME_CLOCK, ClockOffset

BUSY_PERMILLE: Final = 900
LATE_US: Final = 100_000
LIMITED_SHARE: Final = 0.1
"""A worker is the limit in a second in which it wanted nearly all processor time and its own timer was late as well
(the limits of ``reports.read_tables``). A worker that is only busy still sends in time."""
NEAR_SHARE: Final = 0.8
"""A run that reaches this share of what the generator reaches against a sink has measured the generator."""
STARVED_PERMILLE: Final = 500
"""A worker that waits for a processor for half of a second has too little of it."""
LOW_PERMILLE: Final = 500
"""A starved worker that ran for less than this left the rest of its processor to other programs: more workers would
have to share what it got."""
BUSY_SHARE: Final = 0.5
"""A worker that never sleeps, or is starved, in more than this share of the seconds does not wait for brokers."""
UNVERIFIED: Final = "UNVERIFIED"
REACHED_SHARE: Final = 0.98
MIN_SAMPLES_BEYOND: Final = 10
"""The least number of samples beyond a percentile that is shown."""


def has_percentile(samples: int, share: float) -> bool:
    """Return whether enough of the samples lie beyond a percentile."""
    return samples * (1 - share) >= MIN_SAMPLES_BEYOND - 1e-6


class CatchUp(msgspec.Struct, frozen=True):
    """Progress of readers that began at the start of the log."""

    seconds: float  # until they had no more than ``DRAINED_RECORDS`` to read
    records: int  # that they read in this time


class WorkerResult(msgspec.Struct):
    """The result that one worker writes at its end. Ranges are those of ``ledger``."""

    measures: Measures
    sent: dict[str, tuple[list[Range], list[Range], list[Range], dict[str, int]]]  # ok, info, fail, errors by producer
    reads: list[tuple[int, dict[str, list[Range]], int, int, int]]
    """of each reader: its subscription, what it read by writer, repeated, reordered and damaged records"""
    read_errors: dict[str, int]
    cpu_s: float = 0.0  # processor time since the start of the load
    rss_bytes: int = 0  # the most memory
    clock: ClockOffset = SAME_CLOCK
    rebalances: int = 0  # assignments of members during the load
    catch_ups: list[CatchUp] = []  # of each reader that has caught up
    incomplete: str = ""  # why the run has not all of the worker; empty if it has


def result_path(folder: Path, index: int) -> Path:
    return folder / f"load-worker-{index}.json"


class Stated(msgspec.Struct, frozen=True, kw_only=True):
    """Figures that other tools report of a run, whose records were not verified."""

    sent: int
    sent_per_s: float
    read: int
    read_per_s: float
    mean_ms: float
    max_ms: float
    quantiles_ms: dict[float, float]  # of the publish latency, by share


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a workload on one target."""

    workload: Workload
    target: str
    client: str = "native"  # the library of producers and readers
    acks: int = -1
    first: int  # the first second that counts
    end: int  # the second after the last that counts
    measures: Measures
    findings: Findings
    errors: dict[str, int]  # batches and fetches by error
    unfinished: str  # why not all was read; empty if it was
    incomplete: str = ""  # why the run has not all of a worker; empty if it has
    wanted_records_per_s: float  # by the schedule; 0: as much as responses allow
    brokers_cpu_s: float  # in the seconds that count; -1: not known
    brokers_rss_bytes: int  # at their end; -1: not known
    generator_cpu_permille: int  # of the busiest worker, in its busiest second
    generator_cpu_s: float = 0.0  # of all workers, from the start to the end of the load
    generator_rss_bytes: int = 0  # of all workers
    backlog: Backlog | None = None  # None: none was wanted, or it was not drained
    rebalances: int = 0  # assignments of members of groups during the load
    catch_up: CatchUp | None = None  # of the last reader, and all records; None: none was wanted, or none has caught up
    generator_capacity: float = 0.0
    """Records a second that the generator reaches against a sink, with such batches; 0: not known."""
    clocks: list[ClockOffset] = []  # of the workers, in their order
    faults: list[FiredFault] = []
    stated: Stated | None = None
    """Figures of Kafka's perf tests, which take the place of ``measures``; None: they were measured here."""

    @property
    def fault_figures(self) -> list[FaultFigures]:
        """Return what each fault cost, in the order of their times."""
        return list(figures(self.faults, self.measures, self.first, self.end))

    @property
    def has_fired(self) -> bool:
        """Whether there is evidence of each fault."""
        return all(fault.evidence for fault in self.faults)

    @property
    def clock_error_ms(self) -> float:
        """End-to-end latencies are right to within this. Two workers may be part of one; a single worker has one
        clock."""
        worst = sorted((clock.error_us for clock in self.clocks), reverse=True)[:2]
        return sum(worst) / 1000 if len(worst) == 2 else 0.0

    @property
    def clock_warning(self) -> str:
        """Return one sentence if the clocks are less certain than the end-to-end latencies are long; else nothing."""
        median_ms = self.quantile_ms("end_to_end", 0.5)
        if not self.samples("end_to_end") or self.clock_error_ms <= median_ms:
            return ""
        return (
            f"The end-to-end latencies say little: their median is {median_ms:,.1f} ms, and the workers' clocks are "
            f"known only to within {self.clock_error_ms:,.1f} ms."
        )

    def rate(self, name: str) -> float:
        """Return records a second: offered, sent, acknowledged, failed or read."""
        if self.stated is not None:
            sent, read = self.stated.sent_per_s, self.stated.read_per_s
            return {"sent": sent, "acknowledged": sent, "read": read}.get(name, 0.0)
        seconds = [self.measures.seconds.get(at) for at in range(self.first, self.end)]
        records: int = sum(getattr(second, name) for second in seconds if second is not None)
        return records / len(seconds)

    @property
    def acknowledged(self) -> int:
        """Records that were written (``written_rate``), also before and after the seconds that count."""
        if self.stated is not None:
            return self.stated.sent
        return sum(getattr(second, self.written) for second in self.measures.seconds.values())

    @property
    def written(self) -> str:
        """The count of records that were written, as far as is known: with acks=0 nothing is acknowledged."""
        return "acknowledged" if self.acks else "sent"

    @property
    def written_rate(self) -> float:
        """Records a second that were acknowledged, or with acks=0 that were sent."""
        return self.rate(self.written)

    @property
    def offered_rate(self) -> float:
        """Records a second that the schedule wanted; what was sent, where there is none."""
        return self.wanted_records_per_s or self.rate("sent")

    @property
    def reached(self) -> bool:
        """Whether the brokers acknowledged what the schedule wanted."""
        return self.settled_rate >= REACHED_SHARE * self.offered_rate

    @property
    def settled_rate(self) -> float:
        """Records a second that were acknowledged, or that the plan aborted."""
        return self.written_rate + self.rate("aborted")

    @property
    def generator_was_the_limit(self) -> bool:
        return bool(self.generator_limit)

    @property
    def generator_limit(self) -> str:
        """Return why the run measured the generator, and so says nothing of the brokers; nothing if it did not.

        A worker that was busy and late in more than a tenth of the seconds adds its own delays. If the rate was not
        reached, one that never slept did not wait for responses, and neither did one that waited for a processor. And
        what it reaches alone is its limit, whatever it waited for.
        """
        seconds = [self.measures.seconds.get(at) for at in range(self.first, self.end)]
        busy = [second for second in seconds if second is not None and second.wanted_permille >= BUSY_PERMILLE]
        if sum(second.lag_us >= LATE_US for second in busy) > LIMITED_SHARE * len(seconds):
            return "it was busy and late"
        if not self.wanted_records_per_s or not self.reached:
            known = [second for second in seconds if second is not None]
            starved = sum(second.wanted_permille - second.cpu_permille >= STARVED_PERMILLE for second in known)
            if starved > BUSY_SHARE * len(seconds):
                return "it waited for a processor, and the rate was not reached"
            if len(busy) > BUSY_SHARE * len(seconds):
                return "it never slept, and the rate was not reached"
        if self.generator_capacity and self.written_rate >= NEAR_SHARE * self.generator_capacity:
            return f"it reaches {self.generator_capacity:,.0f} records/s against a sink that keeps nothing"
        return ""

    @property
    def others_had_the_processor(self) -> bool:
        """Whether the busiest worker was starved in most seconds that count, and ran for less than half of them."""
        seconds = [self.measures.seconds.get(at) for at in range(self.first, self.end)]
        known = [second for second in seconds if second is not None]
        starved = [
            second
            for second in known
            if second.wanted_permille - second.cpu_permille >= STARVED_PERMILLE and second.cpu_permille < LOW_PERMILLE
        ]
        return len(starved) > BUSY_SHARE * len(known)

    @property
    def wanted_permille(self) -> float:
        """Return how much of a processor the busiest worker wanted, as the median of the seconds that count."""
        seconds = [self.measures.seconds.get(at) for at in range(self.first, self.end)]
        return median(0 if second is None else second.wanted_permille for second in seconds)

    @property
    def batch_records(self) -> int:
        """Return the mean number of records in a batch; 0 without batches."""
        samples = self.samples("delay")
        return round(sum(self.measures.histogram("delay", self.first, self.end).values()) / samples) if samples else 0

    @property
    def outcome(self) -> str:
        """FAILED: a record was lost, repeated, reordered or damaged. INVALID: the run proves nothing of the broker.
        UNVERIFIED: tools that verify nothing have sent and read, or there are no readers."""
        if self.stated is not None:
            return UNVERIFIED if self.stated.sent and self.has_fired else "INVALID"
        if not self.findings.is_clean:
            return "FAILED"
        is_invalid = self.generator_was_the_limit or self.unfinished or self.incomplete
        if is_invalid or not self.written_rate or not self.has_fired:
            return "INVALID"
        return "PASSED" if self.workload.subscriptions_per_topic else UNVERIFIED

    @property
    def reason(self) -> str:
        """Return one sentence on the outcome; empty if there is nothing to say."""
        found = self.findings
        if self.stated is not None:
            return (
                "Kafka's perf tests have sent and read, so no record was verified; the figures are theirs, of all "
                "records, and latencies count from the call of send."
            )
        if not found.is_clean:
            counts = {
                "lost": found.lost,
                "repeated": found.repeated,
                "reordered": found.reordered,
                "damaged": found.damaged,
                "refused but read": found.refused_but_read,
            }
            listed = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
            return f"Of {found.acknowledged:,} acknowledged records: {listed}. {found.first_lost}".strip()
        if self.generator_was_the_limit:
            advice = (
                "Other programs (or brokers here) had the processor: free it, or take a lower rate."
                if self.others_had_the_processor
                else "Give it more workers or a lower rate."
            )
            return f"The load generator was the limit: {self.generator_limit}. {advice}"
        if not self.has_fired:
            return "Nothing proves that all faults fired."
        if self.unfinished:
            return f"Not all was read: {self.unfinished}."
        if self.incomplete:
            return f"{self.incomplete[0].upper()}{self.incomplete[1:]}."
        if not self.written_rate:
            worst = max(self.errors, key=self.errors.__getitem__, default="no response")
            return f"No record was acknowledged in the seconds that count ({worst})."
        if not self.reached:
            return f"The rate was not reached: {self._cause_of_slowness()}."
        if not self.workload.subscriptions_per_topic:
            return "The workload has no readers, so no record was verified."
        if not self.acks:
            return (
                f"With acks=0 nothing is acknowledged, so there is no publish latency, and a loss is no violation: of "
                f"{found.unknown:,} records sent, {found.unread:,} were never read."
            )
        return ""

    def _cause_of_slowness(self) -> str:
        """Return why less was acknowledged than was offered, where the generator was not the limit."""
        seconds = [self.measures.seconds.get(at) for at in range(self.first, self.end)]
        known = [second for second in seconds if second is not None]
        unreachable = sum(bool(second.waits_for_leaders) for second in known)
        if unreachable > LIMITED_SHARE * len(seconds):
            worst = max(self.errors, key=self.errors.__getitem__, default="")
            named = f" ({worst})" if worst else ""
            return f"partitions had no connected leader or sent again in {unreachable} of {len(seconds)} seconds{named}"
        full = sum(bool(second.waits_for_responses) for second in known)
        if full > LIMITED_SHARE * len(seconds):
            return (
                f"the brokers respond too slowly, and all requests were in flight in {full} of {len(seconds)} seconds"
            )
        return "the brokers acknowledge less than is offered"

    def quantile_ms(self, measure: str, share: float) -> float:
        return quantile_us(self.measures.histogram(measure, self.first, self.end), share) / 1000

    def samples(self, measure: str) -> int:
        """Return the number of batches behind a latency's percentiles."""
        return self.measures.samples(measure, self.first, self.end)

    def percentile_ms(self, measure: str, share: float) -> float | None:
        """Return a percentile; None if fewer than MIN_SAMPLES_BEYOND batches lie beyond it."""
        if self.stated is not None:
            return self.stated.quantiles_ms.get(share) if measure == "publish" else None
        return self.quantile_ms(measure, share) if has_percentile(self.samples(measure), share) else None


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all workers."""

    measures: Measures
    findings: Findings
    errors: dict[str, int]  # batches and fetches by error
    cpu_s: float
    rss_bytes: int
    clocks: list[ClockOffset]
    rebalances: int
    catch_up: CatchUp | None
    incomplete: str


def collect(folder: Path, workers: int, exactly_once: bool, compacted_keys: int = 0) -> Collected:
    """Read what all workers wrote, and judge it, as ``ledger.judge``."""
    results = [
        msgspec.json.decode(result_path(folder, index).read_bytes(), type=WorkerResult) for index in range(workers)
    ]
    sent: dict[str, Sent] = {}
    subscriptions: dict[int, list[Read]] = {}
    errors: dict[str, int] = {}
    for result in results:
        for writer, (ok, info, fail, own) in result.sent.items():
            sent[writer] = Sent(ok, info, fail)
            for name, count in own.items():
                errors[name] = errors.get(name, 0) + count
        for number, writers, repeated, reordered, damaged in result.reads:
            subscriptions.setdefault(number, []).append(Read(writers, repeated, reordered, damaged))
        for name, count in result.read_errors.items():
            errors[name] = errors.get(name, 0) + count
    ups = [up for each in results for up in each.catch_ups]
    rebalances = sum(each.rebalances for each in results)
    readers: Sequence[Sequence[Read]] = [subscriptions[subscription] for subscription in sorted(subscriptions)]
    return Collected(
        measures=merged(each.measures for each in results),
        # After a rebalance, members read again what was not committed.
        findings=judge(sent, readers, exactly_once and not rebalances, compacted_keys),
        errors=errors,
        cpu_s=sum(each.cpu_s for each in results),
        rss_bytes=sum(each.rss_bytes for each in results),
        clocks=[each.clock for each in results],
        rebalances=rebalances,
        incomplete="; ".join(each.incomplete for each in results if each.incomplete),
        catch_up=CatchUp(max(each.seconds for each in ups), sum(each.records for each in ups)) if ups else None,
    )


def backlog_of(result: LoadResult) -> list[int]:
    """Return at each second's end how many acknowledged records some subscription has not read."""
    backlog, found = 0, []
    for at in range(result.end):
        second = result.measures.seconds.get(at)
        if second is not None:
            backlog += getattr(second, result.written) * result.workload.subscriptions_per_topic - second.read
        if at >= result.first:
            found.append(max(0, backlog))
    return found
