"""Apache Airflow provider for a field-service management API."""

__version__ = "0.1.0"
