"""Long work that plays and judges: nights, evidence about brokers, suites of client projects, experiments."""
