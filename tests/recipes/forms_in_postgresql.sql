-- PostgreSQL
CREATE TABLE form_versions (
    window_start date NOT NULL,
    id bigint NOT NULL,
    "createdOnDateTime" timestamptz,
    "lastUpdatedOnDateTime" timestamptz,
    "createdByType" text,
    "createdByID" text,
    "createdByUser" text,
    "propertyID" text,
    "jobDetails_jobID" bigint,
    "jobDetails_jobDescription" text,
    "jobDetails_jobAddressLine1" text,
    "jobDetails_jobAddressLine2" text,
    "jobDetails_jobAddressLine3" text,
    "jobDetails_jobTown" text,
    "jobDetails_jobProvince" text,
    "jobDetails_jobPostcode" text,
    "formName" text,
    "links_property" text,
    "links_job" text,
    _extra text
);
CREATE INDEX ON form_versions (window_start);
CREATE VIEW forms AS
SELECT DISTINCT ON (id) * FROM form_versions
ORDER BY id, "lastUpdatedOnDateTime" DESC NULLS LAST, window_start DESC;
