"""Transaction markers as a transaction coordinator would write them. The broker only reads them."""

from struct import Struct

from reference_broker.records.control import ControlType, control_record
from reference_broker.records.record import build

_MARKER_VALUE = Struct(">hi")


def build_marker(
    *, commit: bool, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp_ms: int
) -> bytes:
    """A transaction marker of a data partition."""
    type_ = ControlType.COMMIT if commit else ControlType.ABORT
    record = control_record(type_, _MARKER_VALUE.pack(0, coordinator_epoch), timestamp_ms)
    return build(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, is_control=True, is_transactional=True
    )
