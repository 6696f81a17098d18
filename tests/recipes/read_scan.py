from airflow.providers.common.ai.operators.llm_file_analysis import LLMFileAnalysisOperator
from airflow.providers.common.compat.sdk import Param, dag
from pydantic import BaseModel


class GasSafetyRecord(BaseModel):
    appliance: str
    is_safe: bool | None  # None: it does not say


@dag(schedule=None, params={"path": Param("/data/scans/5001.pdf")})
def read_scan():
    LLMFileAnalysisOperator(
        task_id="read_scan",
        llm_conn_id="pydanticai_default",
        prompt="What does this record say? Leave out what it does not say.",
        file_path="{{ params.path }}",
        multi_modal=True,
        output_type=GasSafetyRecord,
        require_approval=True,
    )


read_scan()
