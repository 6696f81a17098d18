"""An S3-compatible server on this machine, with one empty bucket."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "records"


@contextmanager
def running_s3() -> Iterator[dict[str, str]]:
    """Run the server; gives the environment in which Airflow's ``s3://`` paths reach it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        client = boto3.client(
            "s3",
            endpoint_url=environment["AWS_ENDPOINT_URL"],
            aws_access_key_id="tests",
            aws_secret_access_key="tests",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield environment
    finally:
        server.stop()
