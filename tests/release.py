"""What a release is checked for once it is built: ``make release`` runs this in an environment of
its own.

The wheel is installed as a user would, without any extra, and that environment is looked at.
"""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
INSTALLED = ROOT / "build" / "wheel-venv"
TOOLS = Path(sys.executable).parent
PACKAGE = "airflow-provider-fsm"
CONSTRAINTS = "constraints/airflow.txt"
UNTYPED = ("providers/common/compat", "sdk/_shared/dagnode", "sdk/_shared/plugins_manager")
"""Packages of Airflow under folders without ``__init__.py``, into which its ``py.typed`` does not
reach.
"""


def run(*command: str | Path, **kwargs) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), text=True, cwd=ROOT, check=True, **kwargs)


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
    return f"{bill.relative_to(ROOT)}, {len(json.loads(bill.read_text())['components'])} components"


def check_licences() -> str:
    """Check that all that is installed has a licence that pyproject.toml lists."""
    licences = run(
        *(TOOLS / "pip-licenses", "--python", INSTALLED / "bin" / "python", "--format", "json"),
        stdout=subprocess.PIPE,
    )
    return f"{len(json.loads(licences.stdout))} packages, all of a licence that is allowed"


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
        if symbol["isExported"] and not symbol["isTypeKnown"]:
            print(
                symbol["name"], *(f"  {one['message']}" for one in symbol["diagnostics"]), sep="\n"
            )
    response.check_returncode()
    return f"{report['typeCompleteness']['completenessScore']:.1%} complete"


def audit() -> str:
    """Ask for known vulnerabilities of what is installed, and say how many packages were answered
    for.
    """
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
        return f"NOT DONE: {response.stderr.strip().splitlines()[-1]}"
    packages = [
        one for one in json.loads(response.stdout)["dependencies"] if one["name"] != PACKAGE
    ]
    audited = [one for one in packages if "vulns" in one]
    vulnerable = [one for one in audited if one["vulns"]]
    if vulnerable:
        sys.exit(f"pip-audit: {json.dumps(vulnerable, indent=2)}")
    if not audited:
        return f"NOT DONE: pip-audit had no data on any of the {len(packages)} packages"
    return f"{len(audited)} of {len(packages)} packages audited, no known vulnerability"


def main() -> None:
    """Run the checks; the first that fails ends it."""
    checks = {
        "sbom": write_bill_of_materials,
        "licences": check_licences,
        "types": check_types,
        "audit": audit,
    }
    try:
        install()
        for title, check in checks.items():
            print(f"== {title}: {check()}", flush=True)
    except subprocess.CalledProcessError as error:
        sys.exit(f"{Path(error.cmd[0]).name} failed")


if __name__ == "__main__":
    main()
