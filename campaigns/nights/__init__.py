"""``crucible nightly``: hours of search, live plays, probes and measurements, kept as one folder for each night."""
