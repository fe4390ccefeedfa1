"""Prometheus metrics, made from a snapshot."""
