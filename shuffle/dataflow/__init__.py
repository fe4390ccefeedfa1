"""The dataflow model: operator outputs, stream elements, union gates, the API without asyncio.

Neither a TaskManager nor a Spark client loads it.
"""
