"""How each example is run on every version of Airflow."""

from typing import Any

from tests.system.examples import EXAMPLES

CASES: dict[tuple[str, str], dict[str, Any]] = {
    # first_form waits for a form that comes after it has begun.
    ("quickstart", "first_job"): {},
    ("work_order_roundtrip", "work_order_roundtrip"): {},
    ("planned_maintenance_jobs", "planned_maintenance_jobs"): {
        "due_list": str(EXAMPLES / "data" / "planned_maintenance.csv"),
        "due_on": "2026-01-06",
    },
    ("compliance_gap_report", "compliance_gap_report"): {
        "portfolio": str(EXAMPLES / "data" / "portfolio.csv"),
        "reports": "{folder}/reports",
    },
    ("certificate_by_mail", "certificate_by_mail"): {
        "records": "{folder}",
    },
    ("form_answers", "form_answers"): {
        "folder": "{folder}/answers",
        "warehouse": "{folder}/answers.duckdb",
    },
    ("forms_since_watermark", "forms_since_watermark"): {},
    ("forms_to_warehouse", "forms_to_warehouse"): {
        "folder": "{folder}/forms",
        "warehouse": "{folder}/forms.duckdb",
    },
    ("gas_safety_pdf_delivery", "gas_safety_pdf_delivery"): {
        "records": "{folder}",
    },
    ("invoice_on_signoff", "invoice_on_signoff"): {
        "due_list": str(EXAMPLES / "data" / "planned_maintenance.csv"),
        "invoices": "{folder}/invoices",
    },
    ("remedial_from_answers", "remedial_from_answers"): {
        "folder": "{folder}/pdfs",
    },
}
"""The conf of each DAG that ``dag.test()`` runs, by module and DAG: test_examples.py."""
STARTED_BY_FORMS = ["gas_safety_forms"]
"""Run by test_form_runs.py."""
NOT_BY_DAG_TEST = {
    "webhook_bootstrap": "deliveries to an API server start it",
}
