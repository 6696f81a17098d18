"""Which source was measured: a run in which it changes measures two things as one."""

from __future__ import annotations

import hashlib
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def fingerprint() -> str:
    """Give a digest of the package and of the benchmarks."""
    digest = hashlib.sha256()
    for folder in ("fsm_provider", "tests/benchmarks"):
        for file in sorted((_ROOT / folder).rglob("*.py")):
            digest.update(str(file.relative_to(_ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()[:12]
