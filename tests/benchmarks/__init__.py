"""What the provider costs beside other clients: ``python -m tests.benchmarks``."""
