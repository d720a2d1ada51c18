"""Replicas of partitions, their leaders and in-sync replicas."""
