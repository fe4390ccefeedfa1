/** Spark's side of Sluice: plugin, shuffle manager, writer, reader (docs/spark.md). */
package io.sluice.spark;
