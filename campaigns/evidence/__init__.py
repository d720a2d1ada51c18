"""Evidence about brokers: the probe and scenarios on bundled targets, and the pages of ``docs/evidence``."""
