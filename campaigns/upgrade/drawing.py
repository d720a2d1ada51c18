"""The drawing of the ablation: bytes that each way reads, and producers that its snapshot lacks."""

from collections.abc import Mapping, Sequence
from io import StringIO

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FuncFormatter

from bench.drawing import STYLE, WIDTH_IN
from campaigns.upgrade.ablation import MIB, WAYS, AblationCase

COLOURS = {"everything": "#777777", "last segment": "#c4552d", "P-9": "#0b6e99"}
LABELS = {
    "length": "log length, MiB",
    "expiration": "producer.id.expiration.ms, hours",
    "rate": "new producers per hour",
}
HEIGHT_IN = 4.6


def drawn(found: Mapping[str, Sequence[AblationCase]]) -> str:
    """Return an SVG. Above: MiB that the newest segment's snapshot takes. Below: producers that it lacks or has wrong,
    in percent of those that it must have."""
    with rc_context(STYLE):
        picture = Picture(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        rows = picture.subplots(2, len(found), sharex="col", sharey="row")
        for column, (name, cases) in enumerate(found.items()):
            places = [_place(name, each) for each in cases]
            cost, fault = rows[0][column], rows[1][column]
            for way in WAYS:
                of_way = [each.figures[way] for each in cases]
                _line(cost, way, places, [each.read_bytes / MIB for each in of_way])
                faults = [
                    100 * (each.missing + each.wrong) / case.known for each, case in zip(of_way, cases, strict=True)
                ]
                _line(fault, way, places, faults)
            cost.set_yscale("log")
            fault.set_xscale("log", base=2)
            fault.set_xlabel(LABELS[name])
            fault.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            cost.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        rows[0][0].set_ylabel("MiB read for one snapshot")
        rows[1][0].set_ylabel("producers missing or wrong, %")
        rows[0][0].legend(frameon=False)
        text = StringIO()
        picture.savefig(text, format="svg", metadata={"Date": None})
        return text.getvalue()[text.getvalue().index("<svg") :]


def _line(axes: Axes, way: str, places: Sequence[float], values: Sequence[float]) -> None:
    axes.plot(places, values, color=COLOURS[way], label=way, marker="o", markersize=4, linewidth=1.4)


def _place(name: str, case: AblationCase) -> float:
    wanted = case.wanted
    by_name = {
        "length": wanted.size_bytes / MIB,
        "expiration": wanted.expiration_hours,
        "rate": wanted.producers_per_hour,
    }
    return by_name[name]
