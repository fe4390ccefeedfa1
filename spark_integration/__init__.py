"""The Spark side of Sluice: finds the plugin's jar and makes the settings that turn it on.

It can be imported without PySpark.
"""

from .conf import configure, jar_path, spark_conf
from .errors import SparkIntegrationError

__all__ = ["SparkIntegrationError", "configure", "jar_path", "spark_conf"]
