"""Which topic names are allowed (Kafka's Topic.validate), and which of them are internal."""

import re

MAX_NAME_LENGTH = 249
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
REMOTE_LOG_METADATA_TOPIC = "__remote_log_metadata"
"""Not internal, as in Kafka."""
INTERNAL_TOPICS = (OFFSETS_TOPIC, TRANSACTION_TOPIC, "__share_group_state")
METADATA_TOPIC = "__cluster_metadata"

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def name_problem(name: str) -> str | None:
    """One sentence that says what is wrong, or None if the name is allowed."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return "Topic name is invalid: '.' or '..' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return f"Topic name is invalid: its length {len(name)} is above {MAX_NAME_LENGTH}: {name}"
    if not _LEGAL.fullmatch(name):
        return f"Topic name is invalid: '{name}' contains characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def is_internal(name: str) -> bool:
    return name in INTERNAL_TOPICS
