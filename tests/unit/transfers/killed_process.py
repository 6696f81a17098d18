"""A transfer in a process of its own, which is quickly there and can be killed."""

import logging
import os
import tempfile
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from airflow.providers.amazon.aws.fs import s3 as s3_files
from airflow.providers.amazon.aws.hooks import s3 as s3_hook
from airflow.providers.common.compat.sdk import ObjectStoragePath

from fsm_provider import storage
from fsm_provider.transfers import pdfs
from tests.unit.state_store import context_for

_ = pdfs, storage, s3_files, s3_hook, ObjectStoragePath(tempfile.gettempdir()).fs
"""What takes a process its first second is done before it is forked."""


def start_process(processes: BaseContext, operator: Any, **arguments: Any) -> BaseProcess:
    """Start an attempt of a task of this operator."""
    target_arguments = (operator, arguments, dict(os.environ))
    process = processes.Process(  # type: ignore[attr-defined]
        target=execute,
        args=target_arguments,
        daemon=True,
    )
    process.start()
    return process


def execute(operator: Any, arguments: dict[str, Any], environment: dict[str, str]) -> None:
    """Run the task, with the logs of none."""
    os.environ.update(environment)
    logging.disable()
    operator(task_id="t", **arguments).execute(context_for(None))
