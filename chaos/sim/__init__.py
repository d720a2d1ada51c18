"""The deterministic simulator: virtual time, network, disks and nodes."""
