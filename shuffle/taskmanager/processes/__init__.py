"""Several data processes as one TaskManager: starts, restarts and asks them."""
