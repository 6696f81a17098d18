"""``make site``: the pages of every release, and of this checkout, side by side in ``build/site``."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.version import Version

from tests.pages import DOCS, ROOT

SITE = ROOT / "build" / "site"
RELEASES = ROOT / "build" / "releases"
CHECKOUT = "dev"
"""The name of the version that is no release."""


def tags_by_version(tags: list[str]) -> dict[str, str]:
    """Give the tag of each release, such as ``v0.1.0``, by its version, the newest first."""
    found = {tag.removeprefix("v"): tag for tag in tags if re.fullmatch(r"v?\d+(\.\d+)+\w*", tag)}
    return {version: found[version] for version in sorted(found, key=Version, reverse=True)}


def check_out(tag: str, folder: Path) -> Path:
    """Write the files of a release into a folder."""
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", tag], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    subprocess.run(["tar", "--extract", "--directory", folder], input=archive.stdout, check=True)
    return folder


def build(docs: Path, target: Path, pages: Path | None = None) -> None:
    """Build the pages of one version, with the configuration and from the code beside them.

    :param pages: a folder of other pages
    """
    sphinx = (sys.executable, "-m", "sphinx", "--quiet", "--fresh-env", "--conf-dir", docs)
    subprocess.run(
        [*sphinx, pages or docs, target], check=True, env=os.environ | {"PYTHONPATH": str(docs.parent)}
    )
    shutil.rmtree(target / ".doctrees")


def write_root(site: Path, versions: list[str], start: str) -> None:
    """Write what stands beside the versions: their names, for the switcher, and a page that leads to one."""
    (site / "switcher.json").write_text(json.dumps(versions) + "\n")
    (site / "index.html").write_text(
        "<!doctype html>\n<title>airflow-provider-fsm</title>\n"
        f'<meta http-equiv="refresh" content="0; url={start}/index.html">\n'
        f'<a href="{start}/index.html">airflow-provider-fsm {start}</a>\n'
    )


def main() -> None:
    for folder in (SITE, RELEASES):
        shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(["git", "tag"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    tags = tags_by_version(listed.stdout.split())
    build(DOCS, SITE / CHECKOUT)
    for version, tag in tags.items():
        build(check_out(tag, RELEASES / version) / "docs", SITE / version)
    write_root(SITE, [CHECKOUT, *tags], start=next(iter(tags), CHECKOUT))


if __name__ == "__main__":
    main()
