"""APIs of brokers and the cluster."""
