"""How faults at a time begin and end with real processes, links and disks."""
