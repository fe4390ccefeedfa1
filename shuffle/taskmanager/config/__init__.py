"""Configuration: its sections, and how they are loaded."""
