"""Spark on Sluice: the plugin's settings, its jar, and embedded TaskManagers for local runs."""
