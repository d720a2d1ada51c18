"""Measure how long the verdicts of histories of several sizes take, and draw it."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from reports.plots import style
from reports.scale.writing import write_history
from reports.schema import history_bytes

_SAMPLE_S = 0.5
LIMIT_S = 300


@dataclass(frozen=True, slots=True)
class Measured:
    """The cost of one verdict."""

    operations: int
    records_read: int
    rows: int
    bytes: int
    wall_s: float
    cpu_s: float
    """Processor time of Python and its Java."""
    rss_bytes: int
    """Peak memory of both."""
    outcome: str


def measure(operations: int, folder: Path, seed: int = 1) -> Measured:
    """Write a clean history, and have it judged by a process of its own, page and all."""
    run_dir = folder / f"operations-{operations}"
    written = write_history(run_dir, operations, seed)
    began_s = time.monotonic()
    with (folder / f"operations-{operations}.log").open("wb") as log:
        words = [sys.executable, "-m", "reports.judge", str(run_dir)]
        judge = subprocess.Popen(words, stdout=log, stderr=log)
        cpu_s, rss_bytes = _followed(judge)
    verdict = run_dir / "report" / "verdict.json"
    return Measured(
        written.operations,
        written.records_read,
        sum(written.rows.values()),
        history_bytes([run_dir]),
        round(time.monotonic() - began_s, 1),
        round(cpu_s, 1),
        rss_bytes,
        json.loads(verdict.read_text(encoding="utf-8"))["outcome"] if verdict.exists() else "none",
    )


def _followed(judge: "subprocess.Popen[bytes]") -> tuple[float, int]:
    """Return the processor time and the most memory of a process and its children, once it has ended."""
    cpu_s: dict[int, float] = {}
    most = 0
    while judge.poll() is None:
        now = 0
        for process in _family(judge.pid):
            try:
                times = process.cpu_times()
                cpu_s[process.pid] = times.user + times.system
                now += process.memory_info().rss
            except psutil.Error:
                continue
        most = max(most, now)
        time.sleep(_SAMPLE_S)
    return sum(cpu_s.values()), most


def _family(pid: int) -> Iterator[psutil.Process]:
    try:
        judge = psutil.Process(pid)
        yield judge
        yield from judge.children(recursive=True)
    except psutil.Error:
        return


def remember(measured: Measured, folder: Path) -> None:
    with (folder / "measured.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(measured)) + "\n")


def remembered(folder: Path) -> list[Measured]:
    """Return the last measurement of each size."""
    lines = (folder / "measured.jsonl").read_text(encoding="utf-8").splitlines()
    last = {measured.operations: measured for measured in (Measured(**json.loads(line)) for line in lines)}
    return sorted(last.values(), key=lambda measured: measured.operations)


def table(rows: Sequence[Measured]) -> str:
    """The rows as a table of Markdown."""
    lines = [
        "| operations | records read | rows | Parquet | time | processor time | memory |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {measured.operations:,} | {measured.records_read:,} | {measured.rows:,} | {measured.bytes / 1e6:,.0f} MB "
        f"| {measured.wall_s:,.0f} s | {measured.cpu_s:,.0f} s | {measured.rss_bytes / 2**30:.1f} GiB |"
        for measured in rows
    ]
    return "\n".join(lines)


def draw(rows: Sequence[Measured], picture: Path) -> None:
    """Time against operations, both logarithmic, beside a line that is as steep as the number of operations."""
    with style.styled():
        figure, (axes,) = style.canvas([3.4])
        x = [row.operations for row in rows]
        axes.plot(x, [row.wall_s for row in rows], "o-", color=style.BLUE, label="time")
        axes.plot(x, [row.cpu_s for row in rows], "o-", color=style.ORANGE, label="processor time")
        last = rows[-1]
        axes.plot(
            x, [last.wall_s * operations / last.operations for operations in x], ":", color=style.MUTED, label="linear"
        )
        axes.axhline(LIMIT_S, color=style.RED, linewidth=1)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("operations judged; twelve records are read for each")
        axes.set_title("seconds until the verdict; the red line is five minutes")
        style.legend(axes, 3)
        style.png(figure, picture)
