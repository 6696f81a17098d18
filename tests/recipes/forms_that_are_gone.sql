-- DuckDB
CREATE OR REPLACE VIEW gone AS
WITH forms AS (
    SELECT id, "formName", "propertyID", month
    FROM read_parquet(
        '/data/all_forms/*/forms.parquet',
        hive_partitioning = true,
        hive_types_autocast = false
    )
)
SELECT
    id,
    last("formName" ORDER BY month) AS "formName",
    last("propertyID" ORDER BY month) AS "propertyID",
    max(month) AS last_listed
FROM forms
GROUP BY id
HAVING max(month) < (SELECT max(month) FROM forms);
