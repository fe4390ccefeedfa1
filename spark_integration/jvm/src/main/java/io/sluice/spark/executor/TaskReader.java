package io.sluice.spark.executor;

import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.TaskContext;
import org.apache.spark.shuffle.BaseShuffleHandle;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;

/** Reads a shuffle that goes through TaskManagers, for one task. */
public abstract class TaskReader<K, C> implements ShuffleReader<K, C> {

    /** The range to read, with exclusive ends; {@code endMapIndex} may be {@code MAX_VALUE}. */
    public record Range(int startMapIndex, int endMapIndex, int startPartition, int endPartition) {}

    protected final ExecutorRuntime runtime = ExecutorRuntime.get();
    protected final ShuffleDependency<?, ?, ?> dependency;
    protected final Range range;
    protected final TaskContext context;
    protected final ShuffleReadMetricsReporter metrics;

    protected TaskReader(
            BaseShuffleHandle<?, ?, ?> handle,
            Range range,
            TaskContext context,
            ShuffleReadMetricsReporter metrics) {
        this.dependency = handle.dependency();
        this.range = range;
        this.context = context;
        this.metrics = metrics;
    }

    /**
     * Makes the exception that fails the task. It is not an IOException, which PySpark would take
     * for the end of its Python worker.
     */
    public static RuntimeException taskFailure(IOException error) {
        return new UncheckedIOException(error);
    }
}
