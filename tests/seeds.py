"""What is killed at random: the seed, and how often."""

import os
import random

SEED = int(os.environ.get("FSM_KILLS_SEED", random.randrange(10**6)))
"""Each test that uses it prints it, so that the kills of one that has failed can be repeated."""
ARE_FEW = os.environ.get("FSM_KILLS") == "few"
"""Whether a test kills only as often as shows that it can, as ``make test-system`` asks for."""


def number_of_kills(number: int) -> int:
    """Give how often to kill where all kills are so many."""
    if ARE_FEW:
        return max(2, number // 5)
    return number
