package io.sluice.spark;

import io.sluice.spark.driver.DriverRuntime;
import io.sluice.spark.executor.ExecutorRuntime;
import io.sluice.spark.executor.TaskReader;
import io.sluice.spark.pipelined.PipelinedShuffleHandle;
import io.sluice.spark.pipelined.PipelinedShuffleReader;
import io.sluice.spark.pipelined.PipelinedShuffleWriter;
import io.sluice.spark.pipelined.ProducerDirectory;
import io.sluice.spark.registration.NewShuffle;
import io.sluice.spark.registration.ShuffleRegistrar;
import java.util.Optional;
import java.util.OptionalLong;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.rpc.RpcEndpointRef;
import org.apache.spark.shuffle.ShuffleHandle;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;
import org.apache.spark.shuffle.streaming.StreamingShuffleManager;

/**
 * Sends the pipelined shuffles of real-time queries through TaskManagers; those that fall back have
 * Spark's handles. Only Spark 4.3 has them, so no other class refers to this one. It extends
 * Spark's manager, which also runs the tracker that the scheduler needs.
 */
public final class SluiceStreamingShuffleManager extends StreamingShuffleManager {
    private ProducerDirectory.Running running;
    private RpcEndpointRef directory;

    @Override
    public <K, V, C> ShuffleHandle registerShuffle(
            int shuffleId, ShuffleDependency<K, V, C> dependency) {
        ShuffleRegistrar registrar = DriverRuntime.currentRegistrar();
        NewShuffle shuffle =
                NewShuffle.of(shuffleId, dependency, whyNot(dependency), OptionalLong::empty);
        if (!registrar.useSluice(shuffle)) {
            return super.registerShuffle(shuffleId, dependency);
        }
        startedDirectory().register(shuffleId, dependency.rdd().getNumPartitions());
        return new PipelinedShuffleHandle<>(shuffleId, dependency);
    }

    /** Returns why only Spark's own streaming shuffle can take a shuffle; empty if Sluice can. */
    private static Optional<String> whyNot(ShuffleDependency<?, ?, ?> dependency) {
        if (SparkEnv.get().conf().getBoolean("spark.io.encryption.enabled", false)) {
            return Optional.of(
                    "it is pipelined, spark.io.encryption.enabled is true, and records of running"
                            + " tasks are not encrypted");
        }
        if (dependency.aggregator().isDefined() || dependency.keyOrdering().isDefined()) {
            return Optional.of(
                    "it is pipelined and has an aggregator or an order, which need all records"
                            + " before the first");
        }
        return Optional.empty();
    }

    private synchronized ProducerDirectory startedDirectory() {
        if (running == null) {
            running = ProducerDirectory.start();
            directory = running.endpoint();
        }
        return running.directory();
    }

    private synchronized RpcEndpointRef directory() {
        if (directory == null) {
            directory = ProducerDirectory.lookUp();
        }
        return directory;
    }

    @Override
    public <K, V> ShuffleWriter<K, V> getWriter(
            ShuffleHandle handle,
            long mapId,
            TaskContext context,
            ShuffleWriteMetricsReporter metrics) {
        if (!(handle instanceof PipelinedShuffleHandle<?, ?, ?> ours)) {
            return super.getWriter(handle, mapId, context, metrics);
        }
        return new PipelinedShuffleWriter<>(
                ExecutorRuntime.get(), directory(), ours, mapId, context, metrics);
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
        if (!(handle instanceof PipelinedShuffleHandle<?, ?, ?> ours)) {
            return super.getReader(
                    handle,
                    startMapIndex,
                    endMapIndex,
                    startPartition,
                    endPartition,
                    context,
                    metrics);
        }
        return new PipelinedShuffleReader<>(
                ours,
                directory(),
                new TaskReader.Range(startMapIndex, endMapIndex, startPartition, endPartition),
                context,
                metrics);
    }

    @Override
    public boolean unregisterShuffle(int shuffleId) {
        ProducerDirectory.Running here;
        synchronized (this) {
            here = running;
        }
        boolean known = here != null && here.directory().remove(shuffleId);
        return super.unregisterShuffle(shuffleId) || known;
    }

    @Override
    public void stop() {
        ProducerDirectory.Running here;
        synchronized (this) {
            here = running;
            running = null;
        }
        if (here != null) {
            here.stop();
        }
        super.stop();
    }
}
