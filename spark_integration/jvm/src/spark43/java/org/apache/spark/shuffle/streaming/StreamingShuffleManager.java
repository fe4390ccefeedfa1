package org.apache.spark.shuffle.streaming;

import org.apache.spark.ShuffleDependency;
import org.apache.spark.TaskContext;
import org.apache.spark.shuffle.ShuffleBlockResolver;
import org.apache.spark.shuffle.ShuffleHandle;
import org.apache.spark.shuffle.ShuffleManager;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;

/**
 * Declares the class of that name in Spark 4.3 for the compiler. The jar does not contain it: at
 * run time Spark's own class is there. It is declared here because not every build reaches a Maven
 * repository that has 4.3.
 */
public class StreamingShuffleManager implements ShuffleManager {
    public StreamingShuffleManager() {}

    @Override
    public <K, V, C> ShuffleHandle registerShuffle(
            int shuffleId, ShuffleDependency<K, V, C> dependency) {
        throw onlyDeclared();
    }

    @Override
    public <K, V> ShuffleWriter<K, V> getWriter(
            ShuffleHandle handle,
            long mapId,
            TaskContext context,
            ShuffleWriteMetricsReporter metrics) {
        throw onlyDeclared();
    }

    @Override
    public <K, C> ShuffleReader<K, C> getReader(
            ShuffleHandle handle,
            int startMapIndex,
            int endMapIndex,
            int startPartition,
            int endPartition,
            TaskContext context,
            ShuffleReadMetricsReporter metrics) {
        throw onlyDeclared();
    }

    @Override
    public boolean unregisterShuffle(int shuffleId) {
        throw onlyDeclared();
    }

    /**
     * Satisfies the interface up to 4.2, where the method is abstract. 4.3 does not have it, and
     * nobody calls it.
     */
    @Override
    public ShuffleBlockResolver shuffleBlockResolver() {
        throw onlyDeclared();
    }

    @Override
    public void stop() {
        throw onlyDeclared();
    }

    private static UnsupportedOperationException onlyDeclared() {
        return new UnsupportedOperationException("declared for the compiler only");
    }
}
