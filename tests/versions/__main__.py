"""The versions that the matrix runs, as a CI's matrix: ``make versions``.

It needs no environment: the standard library is enough.
"""

import json
import tomllib
from pathlib import Path

VERSIONS = Path(__file__).with_name("versions.toml")


def runs() -> list[dict[str, str]]:
    """Give each version of Airflow with each Python, and the session of nox that tests it."""
    found: list[dict[str, str]] = []
    for airflow, version in tomllib.loads(VERSIONS.read_text()).items():
        for python in version["pythons"]:
            session = f"airflow({airflow}-py{python})"
            found.append({"airflow": airflow, "python": python, "session": session})
    return found


if __name__ == "__main__":
    print(json.dumps(runs()))
