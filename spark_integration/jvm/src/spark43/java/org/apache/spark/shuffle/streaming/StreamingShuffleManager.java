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
 * What the compiler has to know of the class of that name in Spark 4.3. It is not in the jar:
 * Spark's own is there at run time. It stands here because 4.3 is in no Maven repository that every
 * build reaches.
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

    /** Abstract in the interface up to 4.2; there is no such method in 4.3, and nobody calls it. */
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
