"""Selects the fault for each call."""

from __future__ import annotations

import re
import threading
from collections.abc import Container
from fnmatch import fnmatchcase

from fsm_provider.testing.faults.base import Fault


def matches(method: str, path: str, *, method_pattern: str, path_pattern: str) -> bool:
    """Compare a request with patterns, where ``*`` matches anything: ``/properties/*/jobs``."""
    if not fnmatchcase(method, method_pattern.upper()):
        return False
    return fnmatchcase(path, path_pattern)


ROUTES = (
    ("GET", "/assetDynamicFieldValues"),
    ("GET", "/forms"),
    ("GET", "/forms/{form_id}/pdf"),
    ("GET", "/jobs"),
    ("GET", "/jobs/{job_id}"),
    ("POST", "/properties/{property_id}/jobs"),
    ("POST", "/settings/webhooks"),
)
"""The requests that the fake answers: method, and path below the base URL."""


def may_match(method: str, path: str, *, method_pattern: str, path_pattern: str) -> bool:
    """Return whether patterns match any request of a route.

    :param path: of the route; a name in braces stands for any part.
    """
    # The pattern with only its stars: a character stands for each set and each question mark.
    stars_only = re.sub(r"\[!?(.)[^]]*\]", r"\1", path_pattern).replace("?", "0")
    # For the names in braces: each part that the pattern spells out, or any other.
    parts = {"0", *re.findall(r"[^/*]+", stars_only)}
    for part in parts:
        concrete = re.sub(r"\{\w+\}", part.replace("\\", ""), path)
        if matches(method, concrete, method_pattern=method_pattern, path_pattern=stars_only):
            return True
    return False


class ScriptedFault:
    """A fault and the calls it is played at.

    :param hits: how often it was played so far.
    """

    def __init__(self, method: str, path: str, fault: Fault, calls: Container[int] | None) -> None:
        self.fault = fault
        self.hits = 0
        self._method = method
        self._path = path
        self._calls = calls
        self._count = 0

    def __repr__(self) -> str:
        hits = f"{self.hits} hits in {self._count} calls"
        return f"<{self._method} {self._path}: {self.fault}, {hits}>"

    @property
    def patterns(self) -> tuple[str, str]:
        """Of method and path."""
        return self._method, self._path

    def count(self, method: str, path: str) -> bool:
        """Count a request if it matches; return whether the fault is due."""
        if not matches(method, path, method_pattern=self._method, path_pattern=self._path):
            return False
        self._count += 1
        return self._calls is None or self._count in self._calls


class Script:
    """The scripted faults of a service.

    :param changed: held while calls are counted, and notified of each fault played.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._faults: list[ScriptedFault] = []

    def add(self, fault: ScriptedFault) -> None:
        """Script a fault, with priority over earlier ones."""
        with self._changed:
            self._faults.insert(0, fault)

    @property
    def faults(self) -> list[ScriptedFault]:
        """The faults, in the order in which they were scripted."""
        with self._changed:
            return self._faults[::-1]

    def clear(self) -> None:
        """Remove all faults."""
        with self._changed:
            self._faults.clear()

    def next_fault(self, method: str, path: str) -> Fault | None:
        """Count a request and return its fault, if any."""
        with self._changed:
            due: ScriptedFault | None = None
            for scripted in self._faults:  # to the end, as each that matches counts the call
                is_due = scripted.count(method, path)
                if is_due and due is None:
                    due = scripted
            if due is None:
                return None
            due.hits += 1
            self._changed.notify_all()
            return due.fault
