"""The client conformance suite: what brokers do, and whether a client survives it (``crucible client``)."""
