"""Checks of runs in the simulator, by subject. Those that need one node only also run inside live nodes."""
