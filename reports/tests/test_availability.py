"""The availability figure, second by second."""

from reports.plots.operations import _availability_states


def test_each_second_shows_success_of_its_kind() -> None:
    rows = [
        ("fetch", "ok", 0, 2),
        ("fetch", "info", 1, 1),
        ("fetch", "ok", 1, 3),
        ("fetch", "fail", 2, 1),
        ("produce", "ok", 3, 1),
        ("fetch", "ok", 4, 0),
        ("fetch", "fail", 9, 1),
    ]
    throughput = [{"f": f, "type": kind, "second": second, "operations": count} for f, kind, second, count in rows]
    assert _availability_states(throughput, "fetch", 5) == [0, 1, 2, 3, 3]
    assert _availability_states(throughput, "produce", 5) == [3, 3, 3, 0, 3]
