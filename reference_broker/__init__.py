"""A Kafka broker to read: a deterministic core and its drivers."""
