"""Early signs of a violated guarantee. A load worker reports them while the load runs; the verdict comes later.

Only signs that nothing later can excuse are looked for: a value that nobody sent (corrupt-value), and two values at one
offset (inconsistent-offsets). A worker sees only what its own clients read, so it may miss what the judge finds.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from reports.rows import SpanRow

SIGNS_OF: Final = "signs of "
"""Begins the names of a report's counts of signs. The guarantee's name follows."""
MAX_SPANS: Final = 2_000
"""Number of spans of one partition that are kept. Those of the lowest offsets are forgotten first."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of offsets that contains one writer's values."""

    first: int  # first offset
    last: int  # last offset
    writer: str
    shift: int  # number of a value minus its offset

    def agrees(self, other: "Span") -> bool:
        return (self.writer, self.shift) == (other.writer, other.shift)

    def meets(self, other: "Span") -> bool:
        return self.first <= other.last and other.first <= self.last


class EarlySigns:
    """``seen`` counts the signs of each guarantee. One read costs a search among the spans of its partition."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {"corrupt-value": 0, "inconsistent-offsets": 0}
        self._spans: dict[tuple[str, int], list[Span]] = {}

    def read(self, row: SpanRow) -> None:
        """Take a span of records that was read."""
        if not row.valid or not row.writer:
            self.seen["corrupt-value"] += 1
            return
        last = row.first_offset + row.count - 1
        shift = row.first_sequence - row.first_offset
        self._place(
            self._spans.setdefault((row.topic, row.partition), []), Span(row.first_offset, last, row.writer, shift)
        )

    def _place(self, spans: list[Span], new: Span) -> None:
        """Keep the spans in order and apart. Those that agree with the new one and touch it become one with it."""
        place = bisect_right(spans, new.first, key=lambda span: span.first)
        start = end = place
        while start and spans[start - 1].last >= new.first - 1:
            start -= 1
        while end < len(spans) and spans[end].first <= new.last + 1:
            end += 1
        near = spans[start:end]
        if any(span.meets(new) and not span.agrees(new) for span in near):
            self.seen["inconsistent-offsets"] += 1
            return
        same = [span for span in near if span.agrees(new)]
        others = [span for span in near if not span.agrees(new)]
        whole = Span(
            min([new.first, *(span.first for span in same)]),
            max([new.last, *(span.last for span in same)]),
            new.writer,
            new.shift,
        )
        spans[start:end] = sorted([whole, *others], key=lambda other: other.first)
        del spans[:-MAX_SPANS]
