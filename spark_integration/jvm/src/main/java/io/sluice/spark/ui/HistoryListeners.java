package io.sluice.spark.ui;

import org.apache.spark.SparkConf;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.status.ElementTrackingStore;
import scala.collection.Seq;

/**
 * Declares the method of {@link HistoryPlugin} as Spark 3.5 calls it: its sequence is not the
 * immutable one of Spark 4. The compiler makes it call the other.
 */
abstract class HistoryListeners {
    public abstract Seq<SparkListener> createListeners(SparkConf conf, ElementTrackingStore store);
}
