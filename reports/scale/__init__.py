"""Made histories of any size, to measure the judge."""
