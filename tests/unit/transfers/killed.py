"""A task in a process of its own, which is quickly there and can be killed."""

import logging
import os
import tempfile
from collections.abc import Mapping
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from airflow.providers.amazon.aws.fs import s3 as s3_files
from airflow.providers.amazon.aws.hooks import s3 as s3_hook
from airflow.providers.common.compat.sdk import ObjectStoragePath

from fsm_provider import storage
from fsm_provider.transfers import pdfs
from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator
from tests.unit.state_store import context_for

_ = pdfs, storage, s3_files, s3_hook, ObjectStoragePath(tempfile.gettempdir()).fs
"""What takes a process its first second is done before it is forked."""


def started(processes: BaseContext, arguments: dict[str, Any], environment: Mapping[str, str]) -> BaseProcess:
    """Start an attempt of the task."""
    process = processes.Process(target=_execute, args=(arguments, dict(environment)), daemon=True)
    process.start()
    return process


def _execute(arguments: dict[str, Any], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    logging.disable()
    FsmFormPdfsToObjectStorageOperator(task_id="pdfs", **arguments).execute(context_for(None))
