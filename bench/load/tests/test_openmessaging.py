"""OpenMessaging Benchmark's JSON: all of its fields and no others, and published files on our page."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.load.comparison import Entry, compared, series_of
from bench.load.openmessaging import PERCENTILES, PublishedError, document_of, read_published
from bench.load.page import lines, write
from bench.load.tests.planted import result

LATENCIES = ("publishLatency", "publishDelayLatency", "endToEndLatency")
OWN = [Entry(result())]
STATISTICS = ("Avg", *PERCENTILES, "Max")
FIELDS = {
    *("workload", "driver", "messageSize", "topics", "partitions", "producersPerTopic", "consumersPerTopic"),
    *("publishRate", "publishErrorRate", "consumeRate", "backlog"),
    *(f"{name}{statistic}" for name in LATENCIES for statistic in STATISTICS),
    *(
        f"aggregated{name[0].upper()}{name[1:]}{statistic}"
        for name in LATENCIES
        for statistic in (*STATISTICS, "Quantiles")
    ),
}
"""Those of TestResult.java. Its reader refuses others."""


def document(**changed: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(document_of(result(1_000, latency_us=5_400, seconds=25))))
    return found | changed


def stored(path: Path, found: object) -> Path:
    path.write_text(json.dumps(found))
    return path


def test_file_has_the_fields_of_openmessaging_and_no_others() -> None:
    assert len(FIELDS) == 11 + 3 * 9 + 3 * 10
    assert document().keys() == FIELDS


def test_there_is_a_value_for_each_ten_seconds() -> None:
    found = document()
    assert found["publishRate"] == found["consumeRate"] == [1_000.0] * 3
    assert found["backlog"] == [0] * 3
    assert {len(found[f"{name}{statistic}"]) for name in LATENCIES for statistic in STATISTICS} == {3}


def test_latencies_are_milliseconds_and_delays_whole_microseconds() -> None:
    found = document()
    assert found["aggregatedPublishLatency99pct"] == pytest.approx(5.4, rel=0.01)
    assert found["endToEndLatency9999pct"] == pytest.approx([5.4] * 3, rel=0.01)
    assert found["aggregatedPublishDelayLatency99pct"] == pytest.approx(5_400, rel=0.01)
    delays = [found["aggregatedPublishDelayLatencyMax"], *found["publishDelayLatency50pct"]]
    assert {type(delay) for delay in (*delays, *found["aggregatedPublishDelayLatencyQuantiles"].values())} == {int}


def test_published_file_is_read_with_its_units(tmp_path: Path) -> None:
    published = read_published(stored(tmp_path / "r.json", document(driver="Pulsar")))
    assert (published.driver, published.publish_rate, published.records) == ("Pulsar", 1_000, 30_000)
    for measure in ("publish", "delay", "end_to_end"):
        assert published.percentile_ms(measure, 0.99) == pytest.approx(5.4, rel=0.01)
        assert published.percentile_ms(measure, 0.9999) is None, "3 of 30,000 records are beyond it"


def test_older_files_lack_delays(tmp_path: Path) -> None:
    old = {key: value for key, value in document().items() if "Delay" not in key and "99999" not in key}
    assert read_published(stored(tmp_path / "r.json", old)).percentile_ms("delay", 0.5) is None


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "truncated"),
        ("[1]", "Expected `object`"),
        ('{"version": 1}', "required field `workload`"),
        (json.dumps(document(publishRate=[])), "rates are missing"),
        (json.dumps(document(consumeRate=[-1.0])), "rates are missing or negative"),
        (json.dumps(document(publishRate="fast")), "at `.publishRate`"),
        (json.dumps(document(aggregatedPublishLatencyQuantiles={"most": 1})), "a percentile is no number"),
    ],
)
def test_another_file_is_refused_with_one_sentence(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(PublishedError) as refused:
        read_published(path)
    assert str(refused.value).startswith("r.json: is no result file of OpenMessaging Benchmark: ")
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(PublishedError, match=r"none.json: cannot be read: No such file"):
        read_published(tmp_path / "none.json")


@pytest.mark.thorough
def test_page_of_published_results_has_their_figures_and_names_them_as_not_verified(tmp_path: Path) -> None:
    published = [read_published(stored(tmp_path / "r.json", document(driver="<Pulsar>")))]
    text = write([], tmp_path / "p.html", "./c", "m", published).read_text()
    assert "&lt;Pulsar&gt; (published)" in text
    assert "nothing there was verified" in text
    cells = {line.name: line.cells[0].text for line in lines([], published)}
    assert (cells["acknowledged"], cells["publish latency p99"]) == ("1,000", "5.4")
    assert cells["samples: publish latency, delay"] == "30,000 records"
    assert "records verified" not in cells
    beside = {line.name: [cell.text for cell in line.cells] for line in lines(compared(series_of(OWN)), published)}
    assert beside["acknowledged"] == ["1,000", "1,000"]
    assert beside["records verified"] == ["100", "–"]
    assert not any(name.startswith(("commit", "samples: commit")) for name in beside)
