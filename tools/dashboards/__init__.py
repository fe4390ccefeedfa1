"""Generator of the Grafana dashboards: panels from the declarations of the metrics."""
