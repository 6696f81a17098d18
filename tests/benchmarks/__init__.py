"""What listing, creating and importing cost beside other clients: ``python -m tests.benchmarks``."""
