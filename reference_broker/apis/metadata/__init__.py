"""APIs that describe the cluster and its topics."""
