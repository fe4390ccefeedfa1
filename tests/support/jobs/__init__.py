"""The code that runs inside Spark: the script for spark-submit and its jobs."""
