"""What runs inside a node process of a live run: the interceptor and its faults."""
