"""The seed of whatever a test kills at random."""

import os
import random

SEED = int(os.environ.get("FSM_KILLS_SEED", random.randrange(10**6)))
"""Each test that uses it prints it, so that the kills of one that has failed can be repeated."""
