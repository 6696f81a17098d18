"""How Hypothesis runs in this folder: a failure prints what repeats it, and nothing is remembered."""

from __future__ import annotations

import os

from hypothesis import settings

# Otherwise Hypothesis keeps its caches in the working tree.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", f"{os.environ['AIRFLOW_HOME']}/hypothesis")

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
