"""The recipes: each imports, and what the view of forms that are gone says."""

import duckdb
import pyarrow
import pytest
from pyarrow import parquet

from tests.capabilities import APPROVALS, ASSETS
from tests.pages import ROOT

RECIPES = ROOT / "tests" / "recipes"


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.py")), ids=lambda path: path.stem)
def test_a_recipe_imports_and_is_shown(recipe):
    text = recipe.read_text()
    if "completed_forms" in text:
        ASSETS.require()
    if "operators.hitl" in text:
        APPROVALS.require()
    if "providers.common.ai" in text:
        pytest.importorskip("airflow.providers.common.ai", reason="needs common-ai")

    exec(compile(text, recipe.name, "exec"), {})

    page = (ROOT / "docs" / "recipes.md").read_text()
    is_package = recipe.stem == "__init__"
    assert is_package or f"(../tests/recipes/{recipe.name})" in page


def test_a_form_that_the_last_full_export_lacks_is_gone(tmp_path):
    months = {
        "2026-09": {1: "7", 2: "8", 3: "9"},
        "2026-10": {1: "7", 2: "80"},
        "2026-11": {1: "7"},
    }
    for month, forms in months.items():
        folder = tmp_path / "all_forms" / f"month={month}"
        folder.mkdir(parents=True)
        rows = [
            {"id": form_id, "formName": "Record", "propertyID": property_id}
            for form_id, property_id in forms.items()
        ]
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "forms.parquet")
    view = (RECIPES / "forms_that_are_gone.sql").read_text().replace("/data", str(tmp_path))

    with duckdb.connect() as connection:
        connection.execute(view)
        gone = connection.execute("SELECT * FROM gone ORDER BY id").fetchall()

    assert gone == [(2, "Record", "80", "2026-10"), (3, "Record", "9", "2026-09")]
