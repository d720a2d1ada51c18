"""Providers of targets: they fetch or build a broker on first use."""
