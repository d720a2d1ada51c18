"""Counters, gauges and histograms under Kafka's MBean names. They are pure values, and cheap on the hot path.

The code that counts keeps the object and updates its attribute (``produced.value += n``). Nothing is looked up by name
while serving. The counters of the hot path, named as Kafka's BrokerTopicMetrics, are fields of ``Traffic``.

``gauge("kafka.server", "FetchSessionCache", "NumIncrementalFetchSessions")`` makes the metric
``kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions``. Prometheus sees it (text format 0.0.4) as
``kafka_server_fetchsessioncache_numincrementalfetchsessions``. Kafka's meters (names ending in PerSec) expose their
count: ``...PerSec`` becomes ``..._total``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

Labels: TypeAlias = tuple[tuple[str, str], ...]

_SUB_BITS = 5
_SUB = 1 << _SUB_BITS


@dataclass(slots=True, eq=False)
class Counter:
    """A number that only grows."""

    value: int = 0


@dataclass(slots=True, eq=False)
class Gauge:
    """A number that goes up and down."""

    value: int = 0


@dataclass(slots=True, eq=False)
class Histogram:
    """A log-linear histogram. It has 32 buckets for each doubling, so a percentile is at most 1/32 too high. Values
    below 64 are exact.

    ``buckets`` maps the number of a bucket to the count of its values. A negative value counts as 0.
    """

    count: int = 0
    sum: int = 0
    largest: int = 0
    buckets: dict[int, int] = field(default_factory=dict)

    def record(self, value: int) -> None:
        value = max(value, 0)
        self.count += 1
        self.sum += value
        if value > self.largest:
            self.largest = value
        shift = max(value.bit_length() - 1 - _SUB_BITS, 0)
        bucket = (shift << _SUB_BITS) + (value >> shift)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def percentile(self, share: float) -> int:
        """Return a value that ``share`` (0..1) of the recorded values do not exceed. It is the upper edge of a bucket,
        but at most the largest value. It is 0 if nothing was recorded."""
        rank, seen = max(1, -int(-share * self.count // 1)), 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                return min(upper_edge(bucket), self.largest)
        return 0


def upper_edge(bucket: int) -> int:
    """The largest value that falls into this bucket."""
    if bucket < 2 * _SUB:
        return bucket
    shift = (bucket >> _SUB_BITS) - 1
    return ((bucket - (shift << _SUB_BITS) + 1) << shift) - 1


Metric: TypeAlias = Counter | Gauge | Histogram
MetricT = TypeVar("MetricT", Counter, Gauge, Histogram)


@dataclass(frozen=True, slots=True)
class Named:
    """A metric with its name."""

    domain: str
    """The MBean's domain, for example kafka.server."""
    kind: str
    """The MBean's type."""
    name: str
    labels: Labels
    """The further keys of its name, such as topic."""
    metric: Metric

    @property
    def mbean(self) -> str:
        """Kafka's name, for example ``kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec,topic=a``."""
        rest = "".join(f",{key}={value}" for key, value in self.labels)
        return f"{self.domain}:type={self.kind},name={self.name}{rest}"

    @property
    def prometheus_name(self) -> str:
        joined = f"{self.domain}_{self.kind}_{self.name}".replace(".", "_").replace("-", "_").lower()
        if isinstance(self.metric, Counter):
            return joined.removesuffix("persec") + "_total"
        return joined


@dataclass(slots=True)
class Metrics:
    """All metrics of a node, in the order in which they were made."""

    named: dict[tuple[str, str, str, Labels], Named] = field(default_factory=dict)
    before_reading: list[Callable[[], None]] = field(default_factory=list)
    """``rows`` calls these first. They update metrics whose values are counted elsewhere."""

    def counter(self, domain: str, kind: str, name: str, **labels: str) -> Counter:
        """Return the counter of this name, and make it at the first call."""
        return self._get(Counter, domain, kind, name, labels)

    def gauge(self, domain: str, kind: str, name: str, **labels: str) -> Gauge:
        return self._get(Gauge, domain, kind, name, labels)

    def histogram(self, domain: str, kind: str, name: str, **labels: str) -> Histogram:
        return self._get(Histogram, domain, kind, name, labels)

    def remove(self, domain: str, kind: str, name: str, **labels: str) -> None:
        """Remove a metric, such as that of a deleted topic. An unknown name is ignored."""
        self.named.pop((domain, kind, name, tuple(labels.items())), None)

    def rows(self) -> Iterator[Named]:
        for refresh in self.before_reading:
            refresh()
        yield from self.named.values()

    def _get(self, what: type[MetricT], domain: str, kind: str, name: str, labels: dict[str, str]) -> MetricT:
        key = (domain, kind, name, tuple(labels.items()))
        named = self.named.get(key)
        if named is None:
            named = self.named[key] = Named(domain, kind, name, key[3], what())
        assert isinstance(named.metric, what), f"{named.mbean} is a {type(named.metric).__name__} elsewhere"
        return named.metric


@dataclass(frozen=True, slots=True)
class Traffic:
    bytes_in: Counter
    bytes_out: Counter
    messages_in: Counter
    failed_produce_requests: Counter
    failed_fetch_requests: Counter

    @staticmethod
    def of(metrics: Metrics) -> "Traffic":
        def meter(name: str) -> Counter:
            return metrics.counter("kafka.server", "BrokerTopicMetrics", name)

        return Traffic(
            meter("BytesInPerSec"),
            meter("BytesOutPerSec"),
            meter("MessagesInPerSec"),
            meter("FailedProduceRequestsPerSec"),
            meter("FailedFetchRequestsPerSec"),
        )


_QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
"""Kafka exposes the same quantiles of its histograms."""


def prometheus_text(metrics: Metrics) -> str:
    """Return the text of all metrics, one family after another. A family has its help and its type first. Histograms
    become summaries with Kafka's quantiles."""
    families: dict[str, list[Named]] = {}
    for named in metrics.rows():
        families.setdefault(named.prometheus_name, []).append(named)
    lines: list[str] = []
    for name, members in families.items():
        lines += (f"# HELP {name} {members[0].mbean}", f"# TYPE {name} {_type(members[0])}")
        for named in members:
            lines += _samples(name, named)
    return "".join(f"{line}\n" for line in lines)


def _type(named: Named) -> str:
    return {Counter: "counter", Gauge: "gauge", Histogram: "summary"}[type(named.metric)]


def _samples(name: str, named: Named) -> list[str]:
    metric = named.metric
    if not isinstance(metric, Histogram):
        return [f"{name}{_labels(named.labels)} {metric.value}"]
    quantiles = [
        f"{name}{_labels((*named.labels, ('quantile', str(share))))} {metric.percentile(share)}" for share in _QUANTILES
    ]
    return [
        *quantiles,
        f"{name}_sum{_labels(named.labels)} {metric.sum}",
        f"{name}_count{_labels(named.labels)} {metric.count}",
    ]


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
