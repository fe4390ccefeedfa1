"""The sans-I/O core of Sluice: messages, framing, credit arithmetic, connection states.

This package does no I/O and uses no clock or random numbers: bytes come in, messages come out.
``docs/reference/wire.md`` is the specification.
"""
