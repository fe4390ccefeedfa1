package io.sluice.spark;

import io.sluice.spark.common.Compat;
import io.sluice.spark.driver.DriverRuntime;
import io.sluice.spark.executor.ExecutorRuntime;
import io.sluice.spark.executor.TaskReader;
import io.sluice.spark.reader.SluiceShuffleReader;
import io.sluice.spark.registration.DirectReaders;
import io.sluice.spark.registration.InputSize;
import io.sluice.spark.registration.NewShuffle;
import io.sluice.spark.registration.ShuffleRegistrar;
import io.sluice.spark.settings.SluiceSettings;
import io.sluice.spark.writer.MapTask;
import io.sluice.spark.writer.PagedShuffleWriter;
import io.sluice.spark.writer.SparkWriterAdapter;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.shuffle.ShuffleHandle;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;
import org.apache.spark.shuffle.sort.SortShuffleManager;

/** Sends shuffles through TaskManagers; those that fall back have Spark's handles. */
public final class SluiceShuffleManager extends SortShuffleManager {

    public SluiceShuffleManager(SparkConf conf) {
        super(conf);
        if (!SluiceSettings.isOff(conf)) {
            SluiceSettings.of(conf);
        }
        Compat.check();
    }

    @Override
    public <K, V, C> ShuffleHandle registerShuffle(
            int shuffleId, ShuffleDependency<K, V, C> dependency) {
        ShuffleHandle sparkHandle = super.registerShuffle(shuffleId, dependency);
        if (DriverRuntime.current() == null && SluiceSettings.isOff(SparkEnv.get().conf())) {
            return sparkHandle;
        }
        ShuffleRegistrar registrar = DriverRuntime.currentRegistrar();
        NewShuffle shuffle =
                NewShuffle.of(
                        shuffleId,
                        dependency,
                        DirectReaders.reason(),
                        () -> InputSize.of(dependency));
        return registrar.useSluice(shuffle)
                ? new SluiceShuffleHandle<>(shuffleId, dependency, sparkHandle)
                : sparkHandle;
    }

    @Override
    @SuppressWarnings("unchecked")
    public <K, V> ShuffleWriter<K, V> getWriter(
            ShuffleHandle handle,
            long mapId,
            TaskContext context,
            ShuffleWriteMetricsReporter metrics) {
        if (!(handle instanceof SluiceShuffleHandle<?, ?, ?> ours)) {
            return super.getWriter(handle, mapId, context, metrics);
        }
        ExecutorRuntime runtime = ExecutorRuntime.get();
        MapTask task =
                MapTask.begin(
                        runtime, handle.shuffleId(), mapId, ours.prefersHosts(), context, metrics);
        if (PagedShuffleWriter.takes(ours.dependency())) {
            return new PagedShuffleWriter<>(
                    runtime,
                    task,
                    (ShuffleDependency<K, V, ?>) ours.dependency(),
                    context,
                    metrics);
        }
        ShuffleWriter<K, V> sparkWriter =
                super.getWriter(
                        ours.sparkHandle(),
                        mapId,
                        context,
                        new SparkWriterAdapter.Metrics(metrics));
        return new SparkWriterAdapter<>(sparkWriter, task);
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
        if (!(handle instanceof SluiceShuffleHandle<?, ?, ?> ours)) {
            return super.getReader(
                    handle,
                    startMapIndex,
                    endMapIndex,
                    startPartition,
                    endPartition,
                    context,
                    metrics);
        }
        return new SluiceShuffleReader<>(
                ours,
                new TaskReader.Range(startMapIndex, endMapIndex, startPartition, endPartition),
                context,
                metrics);
    }
}
