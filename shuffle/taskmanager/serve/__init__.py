"""The serving side of a TaskManager: finds partitions and sends them on peer and consumer legs."""
