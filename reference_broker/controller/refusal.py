"""The reason why a change is not made, as a value for whoever asked for the change."""

from dataclasses import dataclass

from reference_broker.wire.errors import ErrorCode, bounded_message


@dataclass(frozen=True, slots=True)
class Refusal:
    """``message`` is one sentence for people. Some APIs have no place for it. What a request made too long is cut, so
    that every version of an answer can hold it."""

    error: ErrorCode
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", bounded_message(self.message))


UNKNOWN_TOPIC = Refusal(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
NO_AUTHORIZER = Refusal(ErrorCode.security_disabled, "No Authorizer is configured on the broker")
NOT_CONTROLLER = Refusal(ErrorCode.not_controller, "This is not the active controller: ask for it and try there.")
