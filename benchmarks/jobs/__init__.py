"""What runs inside Spark: the script for spark-submit and the jobs it knows."""
