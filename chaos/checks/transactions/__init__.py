"""Transactions, their coordinators and markers."""
