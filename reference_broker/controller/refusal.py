"""Why a change is not made: a value, told to whoever asked for it."""

from dataclasses import dataclass

from reference_broker.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Refusal:
    """``message``: one sentence for people, where the API has a place for it."""

    error: ErrorCode
    message: str


NOT_CONTROLLER = Refusal(ErrorCode.not_controller, "This is not the active controller: ask for it and try there.")
