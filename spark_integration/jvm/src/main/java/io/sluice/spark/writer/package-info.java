/**
 * Writes map outputs: Sluice's own writer, and the adapter for the writers of Spark.
 *
 * <p>{@link io.sluice.spark.writer.MapTask} ties either of them to the output that a TaskManager
 * takes in.
 */
package io.sluice.spark.writer;
