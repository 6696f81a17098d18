"""Atomic files, on a disk, on S3, and where nothing can be renamed, as on Azure."""

import subprocess
import sys
import textwrap
from typing import ClassVar

import pytest
from airflow.providers.common.compat.sdk import ObjectStoragePath
from fsspec.implementations.memory import MemoryFileSystem

from fsm_provider.storage import UPLOAD_BYTES, AtomicFiles
from tests.capabilities import TASK_SDK
from tests.unit.conftest import contents
from tests.unit.state_store import context_for

CONTEXT = context_for(None)
OTHER_TASK = context_for(None, task_id="other")
LARGE = 3 * UPLOAD_BYTES


class LikeAzure(MemoryFileSystem):
    """A rename may be pending there."""

    protocol = "abfs"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]

    def find(self, path, **kwargs):
        return [found.lstrip("/") for found in super().find(path, **kwargs)]

    def mv(self, path1, path2, **kwargs):
        raise AssertionError("a rename")


@TASK_SDK.needed
def test_without_renames_a_file_is_uploaded_once_it_is_complete(tmp_path, monkeypatch):
    from airflow.sdk.io import attach

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    attach("abfs", fs=LikeAzure(skip_instance_cache=True))
    folder = ObjectStoragePath("abfs://container/folder")
    with AtomicFiles(folder, CONTEXT) as files:
        for content in (b"old", b"new"):
            files.store("a/b.csv", not_yet_there(folder, content))
            assert contents(folder) == {"a/b.csv": content}
        for name in ("a/b.csv", "c.csv"):
            with pytest.raises(KeyError):
                write_and_fail(files, name, LARGE)

    assert contents(folder) == {"a/b.csv": b"new"}
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_there_once_it_is_complete(storage):
    with AtomicFiles(storage, CONTEXT) as files:
        for content in (b"complete", b"x" * LARGE):
            files.store("property=7/a.pdf", not_yet_there(storage, content))

            assert contents(storage) == {"property=7/a.pdf": content}


def not_yet_there(folder, content):
    """Yield a file's content, and check that no file has it meanwhile."""
    yield content
    there = contents(folder).items()
    assert content not in [found for name, found in there if not name.startswith(".partial-")]


def write_and_fail(files, name, size):
    def chunks():
        yield b"x" * size
        raise KeyError

    files.store(name, chunks())


@pytest.mark.parametrize("size", [1, LARGE])
def test_a_write_that_fails_leaves_what_was_there(storage, size):
    with AtomicFiles(storage, CONTEXT) as files:
        files.store("a.csv", [b"old"])
        for name in ("a.csv", "b.csv"):
            with pytest.raises(KeyError):
                write_and_fail(files, name, size)

    assert contents(storage) == {"a.csv": b"old"}


def test_what_a_killed_try_left_goes_with_the_next(tmp_path):
    code = f"""
        import os
        from airflow.providers.common.compat.sdk import ObjectStoragePath
        from fsm_provider.storage import AtomicFiles
        from tests.unit.state_store import context_for

        with AtomicFiles(ObjectStoragePath({str(tmp_path)!r}), context_for(None)) as files:
            def chunks():
                yield b"x" * {LARGE}
                os.kill(os.getpid(), 9)

            files.store("deep/a.csv", chunks())
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


def test_a_suspended_try_does_not_name_what_its_retry_has_half_written(tmp_path):
    storage = ObjectStoragePath(str(tmp_path))
    with AtomicFiles(storage, CONTEXT) as suspended:
        old = suspended.open("a.csv")
        old.__enter__().write(b"old")
        with AtomicFiles(storage, CONTEXT) as retry, retry.open("a.csv") as new:
            new.write(b"half")
            with pytest.raises(FileNotFoundError):
                old.__exit__(None, None, None)
            assert not (tmp_path / "a.csv").exists()
            new.write(b" and half")

    assert contents(storage) == {"a.csv": b"half and half"}


def test_a_folder_in_the_place_of_a_file_is_an_error_and_nothing_is_left(tmp_path):
    (tmp_path / "a.csv").mkdir()

    with (
        pytest.raises(IsADirectoryError),
        AtomicFiles(ObjectStoragePath(str(tmp_path)), CONTEXT) as files,
    ):
        files.store("a.csv", [b"x"])

    assert list(tmp_path.rglob("*")) == [tmp_path / "a.csv"]
