"""The Spark side of Sluice: finds the plugin's jar and makes the settings that turn it on.

Needs no PySpark to be imported.
"""

from sluice.spark_integration.conf import SparkIntegrationError, configure, jar_path, spark_conf

__all__ = ["SparkIntegrationError", "configure", "jar_path", "spark_conf"]
