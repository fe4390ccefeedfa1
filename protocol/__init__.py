"""The sans-I/O core of Sluice: messages, framing, credit arithmetic, connection states.

Nothing here does I/O, reads a clock or draws a random number: bytes come in, messages come out.
``docs/reference/wire.md`` is the specification.
"""
