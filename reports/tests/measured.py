"""Measurements of load workers, computed from a history's operations: histograms of latency, and counts of the load."""

from reports.tests.history import History


def add_histograms(history: History) -> None:
    counts: dict[tuple[str, str, str, int, int], int] = {}
    for row in history.tables["operations"]:
        worker = f"worker-{sum(map(ord, str(row['process']))) % history.shape.workers}"
        for measure, start in (("service", "invoke_us"), ("response", "intended_us")):
            value = int(row["complete_us"]) - int(row[start])  # type: ignore[call-overload]
            second = int(row["complete_us"]) // 1_000_000  # type: ignore[call-overload]
            key = (str(row["f"]), measure, worker, second, bucket_of(value))
            counts[key] = counts.get(key, 0) + 1
    for (operation, measure, worker, second, bucket), count in sorted(counts.items()):
        low, high = bounds_of(bucket)
        history.tables["latency"].append(
            {
                "operation": operation,
                "measure": measure,
                "worker": worker,
                "second": second,
                "bucket": bucket,
                "low_us": low,
                "high_us": high,
                "count": count,
            }
        )


def add_load(history: History) -> None:
    zero = {"offered": 0, "sent": 0, "completed": 0, "failed": 0, "max_slip_us": 0}
    seconds: dict[int, dict[str, int]] = {}
    for row in history.tables["operations"]:
        if row["f"] not in ("fetch", "produce"):
            continue
        intended, invoke, complete = (int(row[key]) for key in ("intended_us", "invoke_us", "complete_us"))  # type: ignore[call-overload]
        for at, what in (
            (intended, "offered"),
            (invoke, "sent"),
            (complete, "completed" if row["type"] == "ok" else "failed"),
        ):
            seconds.setdefault(at // 1_000_000, dict(zero))[what] += 1
        slot = seconds[invoke // 1_000_000]
        slot["max_slip_us"] = max(slot["max_slip_us"], invoke - intended)
    for second, counts in sorted(seconds.items()):
        history.tables["load"].append(
            {
                "worker": "worker-0",
                "second": second,
                **counts,
                "cpu_permille": 310,
                "wanted_permille": 400,
                "lag_us": 2_000,
            }
        )


def bucket_of(value_us: int) -> int:
    """Log-linear buckets, 128 to an octave: width below 1 %."""
    if value_us < 128:
        return max(0, value_us)
    octave = value_us.bit_length() - 8
    return octave * 128 + (value_us >> octave)


def bounds_of(bucket: int) -> tuple[int, int]:
    if bucket < 256:
        return bucket, bucket + 1
    octave = bucket // 128 - 1
    low = (bucket - octave * 128) << octave
    return low, low + (1 << octave)
