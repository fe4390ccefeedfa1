"""Map outputs that moved to the remote tier; sweeps and probes of it."""
