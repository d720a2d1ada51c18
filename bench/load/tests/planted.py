"""Planted runs: results whose figures a test chooses."""

from bench.load.ledger import Findings
from bench.load.measures import LoadSecond, Measures
from bench.load.results import LoadResult
from bench.load.workload import Workload

CLEAN = Findings(100, 100, 0, 0, 0, 0, 0)


def result(
    rate: float = 1_000.0,
    *,
    acknowledged: float | None = None,
    read: float | None = None,
    latency_us: int = 5_000,
    wanted_permille: int = 100,
    lag_us: int = 0,
    findings: Findings = CLEAN,
    target: str = "reference",
    seconds: int = 4,
    unfinished: str = "",
    records_in_a_batch: int = 1,
    workload: str = "w",
    cpu_permille: int = 200,
) -> LoadResult:
    """A run whose first second is its warm-up."""
    written = int(rate if acknowledged is None else acknowledged)
    measures = Measures()
    for at in range(1 + seconds):
        taken = int(written if read is None else read)
        processor = (cpu_permille, wanted_permille, lag_us)
        measures.seconds[at] = LoadSecond(int(rate), int(rate), written, 0, taken, 0, *processor)
        for measure in ("publish", "delay", "response", "end_to_end"):
            measures.latency(measure, at, latency_us, written)
            measures.batches[measure][at] = max(1, written // records_in_a_batch)
    return LoadResult(
        workload=Workload(name=workload),
        target=target,
        first=1,
        end=1 + seconds,
        measures=measures,
        findings=findings,
        errors={},
        unfinished=unfinished,
        wanted_records_per_s=rate,
        brokers_cpu_s=2.0,
        brokers_rss_bytes=50 * 2**20,
        generator_cpu_permille=200,
    )
