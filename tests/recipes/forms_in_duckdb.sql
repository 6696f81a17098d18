-- DuckDB
CREATE OR REPLACE VIEW forms AS
SELECT *
FROM read_parquet('/data/forms/*/forms.parquet', hive_partitioning = true, union_by_name = true)
QUALIFY row_number() OVER (
    PARTITION BY id ORDER BY "lastUpdatedOnDateTime" DESC NULLS LAST, window_start DESC
) = 1;
