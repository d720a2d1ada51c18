"""Comparisons of mechanisms over many simulated runs: revisions of fetch sessions, metadata epochs, horizons."""
