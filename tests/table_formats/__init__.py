"""Delta Lake and Iceberg for the tests (`make test-table-formats`)."""
