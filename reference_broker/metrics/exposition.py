"""Metrics as Prometheus reads them (text format 0.0.4)."""

from reference_broker.metrics.metrics import Counter, Gauge, Histogram, Labels, Metrics, Named

_QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
"""Kafka exposes the same quantiles of its histograms."""


def prometheus_text(metrics: Metrics) -> str:
    """Returns the text of all metrics, one family after another. A family has its help and its type first. Histograms
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
