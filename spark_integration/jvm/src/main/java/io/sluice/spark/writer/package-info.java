/**
 * Writes map outputs: Sluice's own writer, and the adapter for Spark's writers.
 *
 * <p>{@link io.sluice.spark.writer.MapTask} ties either of them to the output that is sent to a
 * TaskManager.
 */
package io.sluice.spark.writer;
