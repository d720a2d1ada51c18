"""Test suites of client projects, played on the reference broker and on Apache Kafka."""
