"""The number of Hypothesis examples in this folder, and the seed.

The seed is new in every run and is printed; ``FSM_PROPERTIES_SEED=<seed>``, or pytest's own
``--hypothesis-seed=<seed>``, makes the same run again. Nothing is remembered from run to run, as
that would make two runs of one seed differ.
"""

from __future__ import annotations

import os
import secrets

import pytest
from hypothesis import core, settings

SEED_VARIABLE = "FSM_PROPERTIES_SEED"

# It holds for all tests of a session: how many examples is said at each test of this folder.
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=False,
    database=None,
    print_blob=True,
    # Over a socket it takes minutes to make one failure small.
    report_multiple_bugs=False,
)
settings.load_profile("ci")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed, in the way of Hypothesis' own option."""
    if config.getoption("--hypothesis-seed") is None:
        core.global_force_seed = int(os.environ.get(SEED_VARIABLE) or secrets.randbits(64))


def pytest_report_collectionfinish() -> str:
    """Print the seed.

    In the header it would be missing where pytest is started above this folder, or with --quiet.
    """
    return f"properties: {SEED_VARIABLE}={core.global_force_seed}"
