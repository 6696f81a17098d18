"""What a release is checked for once it is built: ``make release``.

It runs in an environment of its own. The wheel is installed as a user would, without any extra, and
that environment is looked at. Where ``RELEASE_TAG`` is set, that tag is about to be published.
"""

import json
import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
INSTALLED = ROOT / "build" / "wheel-venv"
TOOLS = Path(sys.executable).parent
PACKAGE = "airflow-provider-fsm"
CONSTRAINTS = "constraints/airflow.txt"
UNTYPED = ("providers/common/compat", "sdk/_shared/dagnode", "sdk/_shared/plugins_manager")
"""Packages of Airflow under folders without ``__init__.py``, which its ``py.typed`` misses."""


def check_tag() -> str:
    """Check that a tag is that of this version, and that the project has an address by then."""
    tag = os.environ.get("RELEASE_TAG")
    if not tag:
        return "none"
    (wheel,) = DIST.glob("*.whl")
    version = wheel.name.split("-")[1]
    if tag != f"v{version}":
        sys.exit(f"RELEASE_TAG is {tag}, but the version is {version}: it should be v{version}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if not project.get("urls"):
        sys.exit("pyproject.toml has no [project.urls]: set it before a release")
    return tag


def run(*command: str | Path, **kwargs) -> subprocess.CompletedProcess[str]:
    arguments = [str(argument) for argument in command]
    return subprocess.run(arguments, text=True, cwd=ROOT, check=True, **kwargs)


def install() -> None:
    """Install the wheel into an empty environment."""
    (wheel,) = DIST.glob("*.whl")
    venv.create(INSTALLED, clear=True, with_pip=True)
    pip = (INSTALLED / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "-qq", "-c", CONSTRAINTS, wheel)
    run(*pip, "uninstall", "-qq", "--yes", "pip", "setuptools", stderr=subprocess.DEVNULL)


def write_bill_of_materials() -> str:
    """Write the SBOM beside the wheel."""
    bill = DIST / "sbom.cdx.json"
    options = ("--pyproject", "pyproject.toml", "--mc-type", "library", "--output-reproducible")
    run(TOOLS / "cyclonedx-py", "environment", *options, "-o", bill, INSTALLED / "bin" / "python")
    components = json.loads(bill.read_text())["components"]
    return f"{bill.relative_to(ROOT)}, {len(components)} components"


def check_licences() -> str:
    """Check that all that is installed has a licence that pyproject.toml lists."""
    command = (
        TOOLS / "pip-licenses",
        "--python",
        INSTALLED / "bin" / "python",
        "--format",
        "json",
    )
    licences = run(*command, stdout=subprocess.PIPE)
    packages = json.loads(licences.stdout)
    return f"{len(packages)} packages, all of a licence that is allowed"


def check_types() -> str:
    """Check that each public symbol has a type that every type checker sees alike."""
    (site_packages,) = INSTALLED.glob("lib/python*/site-packages")
    for folder in UNTYPED:
        (site_packages / "airflow" / folder / "py.typed").touch()
    # pyright looks for packages with the Python that it finds first.
    path = f"{INSTALLED / 'bin'}{os.pathsep}{os.environ['PATH']}"
    command = (
        TOOLS / "pyright",
        "--verifytypes",
        "fsm_provider",
        "--ignoreexternal",
        "--outputjson",
    )
    response = subprocess.run(
        command,
        env={**os.environ, "PATH": path},
        cwd=ROOT / "build",
        text=True,
        stdout=subprocess.PIPE,
    )
    report = json.loads(response.stdout)
    for symbol in report["typeCompleteness"]["symbols"]:
        is_typed = symbol["isTypeKnown"] or not symbol["isExported"]
        if not is_typed:
            print(symbol["name"])
            for diagnostic in symbol["diagnostics"]:
                print(f"  {diagnostic['message']}")
    response.check_returncode()
    return f"{report['typeCompleteness']['completenessScore']:.1%} complete"


def audit() -> str:
    """Ask for known vulnerabilities of what is installed, and say for how many packages."""
    (site_packages,) = INSTALLED.glob("lib/python*/site-packages")
    command = (
        TOOLS / "pip-audit",
        "--path",
        site_packages,
        "--format",
        "json",
        "--progress-spinner",
        "off",
    )
    response = subprocess.run(command, text=True, capture_output=True)
    if not response.stdout:
        last_error = response.stderr.strip().splitlines()[-1]
        return f"NOT DONE: {last_error}"
    count = 0
    audited = 0
    vulnerable = []
    for package in json.loads(response.stdout)["dependencies"]:
        if package["name"] == PACKAGE:
            continue
        count += 1
        if "vulns" in package:
            audited += 1
        if package.get("vulns"):
            vulnerable.append(package)
    if vulnerable:
        sys.exit(f"pip-audit: {json.dumps(vulnerable, indent=2)}")
    if not audited:
        return f"NOT DONE: pip-audit had no data on any of the {count} packages"
    return f"{audited} of {count} packages audited, no known vulnerability"


def main() -> None:
    """Run the checks; the first that fails ends it."""
    checks = {
        "sbom": write_bill_of_materials,
        "licences": check_licences,
        "types": check_types,
        "audit": audit,
    }
    try:
        print(f"== tag: {check_tag()}", flush=True)
        install()
        for title, check in checks.items():
            print(f"== {title}: {check()}", flush=True)
    except subprocess.CalledProcessError as error:
        sys.exit(f"{Path(error.cmd[0]).name} failed")


if __name__ == "__main__":
    main()
