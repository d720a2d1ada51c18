"""Apache Kafka's settings in measurements, where they differ from those of ``bench/targets/kafka.toml``."""

HEAP = "-Xms1g -Xmx1g -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35"
"""Kafka's own start script: kafka-server-start.sh and kafka-run-class.sh."""

SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
"""All else stays at Kafka's defaults (8 I/O threads, 3 network threads, no forced flush)."""
