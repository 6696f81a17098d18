"""Atomic files, on a disk and on S3."""

import subprocess
import sys
import textwrap

import pytest
from airflow.providers.common.compat.sdk import ObjectStoragePath

from fsm_provider.storage.atomic_files import BLOCK_SIZE, AtomicFiles
from tests.unit.conftest import contents
from tests.unit.state_store import context_for

CONTEXT = context_for(None)
OTHER_TASK = context_for(None, task_id="other")
LARGE = 3 * BLOCK_SIZE


def test_a_file_is_there_once_the_block_has_ended(storage):
    with AtomicFiles(storage, CONTEXT) as files:
        with files.create("property=7/a.pdf") as file:
            file.write(b"complete")
            assert "property=7/a.pdf" not in contents(storage)

        assert contents(storage) == {"property=7/a.pdf": b"complete"}


def write_and_fail(files, name, size):
    with files.create(name) as file:
        file.write(b"x" * size)
        raise KeyError


@pytest.mark.parametrize("size", [1, LARGE])
def test_a_block_that_fails_leaves_what_was_there(storage, size):
    with AtomicFiles(storage, CONTEXT) as files:
        with files.create("a.csv") as file:
            file.write(b"old")
        for name in ("a.csv", "b.csv"):
            with pytest.raises(KeyError):
                write_and_fail(files, name, size)

    assert contents(storage) == {"a.csv": b"old"}


def test_a_large_file_replaces_an_older_one(storage):
    with AtomicFiles(storage, CONTEXT) as files:
        for content in (b"old", b"x" * LARGE):
            with files.create("a.csv") as file:
                file.write(content)

    assert contents(storage) == {"a.csv": b"x" * LARGE}


def test_what_a_killed_try_left_goes_with_the_next(tmp_path):
    code = f"""
        import os
        from airflow.providers.common.compat.sdk import ObjectStoragePath
        from fsm_provider.storage.atomic_files import AtomicFiles
        from tests.unit.state_store import context_for

        with AtomicFiles(ObjectStoragePath({str(tmp_path)!r}), context_for(None)) as files:
            with files.create("deep/a.csv") as file:
                file.write(b"x" * {LARGE})
                os.kill(os.getpid(), 9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert list(tmp_path.glob(".partial-*/*"))
    storage = ObjectStoragePath(str(tmp_path))

    with AtomicFiles(storage, OTHER_TASK):
        pass
    assert list(tmp_path.glob(".partial-*/*")), "another task's file is not ours to remove"
    with AtomicFiles(storage, CONTEXT):
        assert not list(tmp_path.glob(".partial-*/*"))

    assert not list(tmp_path.glob(".partial*"))
