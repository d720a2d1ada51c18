"""What runs inside a node process of a live run: the interceptor, the trace, checks, and what fetches cost."""
