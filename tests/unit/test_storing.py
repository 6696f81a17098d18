"""Files that are there whole or not at all, on a disk and on S3."""

import subprocess
import sys
import textwrap

import pytest
from airflow.providers.common.compat.sdk import ObjectStoragePath

from fsm_provider.storing import BLOCK_SIZE, WholeFiles
from tests.unit.conftest import contents
from tests.unit.state_store import context_of

CONTEXT = context_of(None)
OTHER_TASK = context_of(None, task_id="other")
LARGE = 3 * BLOCK_SIZE


def test_a_file_is_there_once_the_block_has_ended(storage):
    with WholeFiles(storage, CONTEXT) as files:
        with files.create("property=7/a.pdf") as file:
            file.write(b"whole")
            assert "property=7/a.pdf" not in contents(storage)

        assert contents(storage) == {"property=7/a.pdf": b"whole"}


def write_and_fail(files, name, size):
    with files.create(name) as file:
        file.write(b"x" * size)
        raise KeyError


@pytest.mark.parametrize("size", [1, LARGE])
def test_a_block_that_fails_leaves_what_was_there(storage, size):
    with WholeFiles(storage, CONTEXT) as files:
        with files.create("a.csv") as file:
            file.write(b"old")
        for name in ("a.csv", "b.csv"):
            with pytest.raises(KeyError):
                write_and_fail(files, name, size)

    assert contents(storage) == {"a.csv": b"old"}


def test_a_large_file_replaces_an_older_one(storage):
    with WholeFiles(storage, CONTEXT) as files:
        for content in (b"old", b"x" * LARGE):
            with files.create("a.csv") as file:
                file.write(content)

    assert contents(storage) == {"a.csv": b"x" * LARGE}


def test_what_a_killed_try_left_goes_with_the_next(tmp_path):
    code = f"""
        import os
        from airflow.providers.common.compat.sdk import ObjectStoragePath
        from fsm_provider.storing import WholeFiles
        from tests.unit.state_store import context_of

        with WholeFiles(ObjectStoragePath({str(tmp_path)!r}), context_of(None)) as files:
            with files.create("deep/a.csv") as file:
                file.write(b"x" * {LARGE})
                os.kill(os.getpid(), 9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert list(tmp_path.glob(".partial-*/*"))
    storage = ObjectStoragePath(str(tmp_path))

    with WholeFiles(storage, OTHER_TASK):
        pass
    assert list(tmp_path.glob(".partial-*/*")), "another task's file is not ours to remove"
    with WholeFiles(storage, CONTEXT):
        assert not list(tmp_path.glob(".partial-*/*"))

    assert not list(tmp_path.glob(".partial*"))
