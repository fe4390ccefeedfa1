/**
 * Connects Spark to Sluice (docs/guide/spark.md).
 *
 * <p>Spark loads four classes of this package by name: {@code SluicePlugin}, {@code
 * SluiceShuffleManager}, {@code SluiceShuffleDataIO} and {@code SluiceStreamingShuffleManager}.
 * Only these use the packages below. The other classes are what those packages share: settings,
 * counters, and the runtimes of driver and executors.
 */
package io.sluice.spark;
