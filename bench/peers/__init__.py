"""Other clients and brokers to compare with."""
