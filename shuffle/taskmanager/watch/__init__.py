"""Showing a TaskManager at work: status, metrics, HTTP."""
