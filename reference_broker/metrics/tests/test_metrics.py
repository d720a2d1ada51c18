"""Metrics: names, exactness, percentiles, exposition."""

from hypothesis import given
from hypothesis import strategies as st

from reference_broker.metrics.metrics import Histogram, Metrics, prometheus_text


def test_names_are_kafkas_and_prometheus_gets_them_in_lower_case() -> None:
    metrics = Metrics()
    sessions = metrics.gauge("kafka.server", "FetchSessionCache", "NumIncrementalFetchSessions")
    sessions.value = 3
    metrics.counter("kafka.server", "BrokerTopicMetrics", "MessagesInPerSec", topic='a"b').value += 7
    first, second = metrics.rows()
    assert first.mbean == "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions"
    assert second.mbean == 'kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec,topic=a"b'
    text = prometheus_text(metrics)
    assert "# TYPE kafka_server_fetchsessioncache_numincrementalfetchsessions gauge\n" in text
    assert "kafka_server_fetchsessioncache_numincrementalfetchsessions 3\n" in text
    assert 'kafka_server_brokertopicmetrics_messagesin_total{topic="a\\"b"} 7\n' in text


def test_same_name_is_the_same_metric_until_it_is_removed() -> None:
    metrics = Metrics()
    counter = metrics.counter("d", "k", "n", topic="t")
    assert metrics.counter("d", "k", "n", topic="t") is counter
    metrics.remove("d", "k", "n", topic="t")
    metrics.remove("d", "k", "never")
    assert metrics.counter("d", "k", "n", topic="t") is not counter


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200), st.floats(0, 1))
def test_percentile_is_at_most_a_32nd_too_high(values: list[int], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    rank = max(1, -int(-share * len(values) // 1))
    exact = sorted(values)[rank - 1]
    assert exact <= histogram.percentile(share) <= exact + exact // 32
    assert (histogram.count, histogram.sum, histogram.largest) == (len(values), sum(values), max(values))


def test_histogram_is_exposed_as_a_summary() -> None:
    metrics = Metrics()
    histogram = metrics.histogram("kafka.network", "RequestMetrics", "TotalTimeMs", request="Fetch")
    assert histogram.percentile(0.5) == 0
    for value in (-5, 10, 20):
        histogram.record(value)
    text = prometheus_text(metrics)
    assert 'kafka_network_requestmetrics_totaltimems{request="Fetch",quantile="0.5"} 10\n' in text
    assert 'kafka_network_requestmetrics_totaltimems_sum{request="Fetch"} 30\n' in text
    assert 'kafka_network_requestmetrics_totaltimems_count{request="Fetch"} 3\n' in text
