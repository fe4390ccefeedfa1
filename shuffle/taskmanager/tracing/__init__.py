"""Traces of map outputs and gates; loaded only where ``traces_endpoint`` is set."""
