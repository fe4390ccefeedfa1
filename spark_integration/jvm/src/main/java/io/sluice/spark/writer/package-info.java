/** Writes map outputs, with Sluice's own writer or one of Spark's. */
package io.sluice.spark.writer;
