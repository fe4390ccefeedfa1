"""The command line ``sluice``, the top layer."""
