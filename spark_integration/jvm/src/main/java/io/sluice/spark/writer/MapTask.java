package io.sluice.spark.writer;

import io.sluice.client.output.MapOutputWriter;
import io.sluice.client.wire.Message;
import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.common.TaskEndAction;
import io.sluice.spark.common.TaskManagerIds;
import io.sluice.spark.executor.ExecutorRuntime;
import java.io.IOException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.TaskContext;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.storage.BlockManagerId;

/** A running map attempt: connects a writer to the output that sends its bytes. */
public final class MapTask {
    private static final Map<Long, MapTask> RUNNING = new ConcurrentHashMap<>();

    private final ExecutorRuntime runtime;
    private final int shuffleId;
    private final long mapId;
    private final boolean prefersHost;
    private final int stageId;
    private final ShuffleWriteMetricsReporter metrics;

    /** Null if the task ended before the action was registered. */
    private TaskEndAction atTaskEnd;

    /** Null before {@link #open} and after {@link #end}. */
    private MapOutputWriter output;

    private BlockManagerId location;

    private MapTask(
            ExecutorRuntime runtime,
            int shuffleId,
            long mapId,
            boolean prefersHost,
            int stageId,
            ShuffleWriteMetricsReporter metrics) {
        this.runtime = runtime;
        this.shuffleId = shuffleId;
        this.mapId = mapId;
        this.prefersHost = prefersHost;
        this.stageId = stageId;
        this.metrics = metrics;
    }

    /**
     * Begins a map attempt, which ends with {@link #end} or with the task.
     *
     * @param prefersHost whether the output names its host
     */
    public static MapTask begin(
            ExecutorRuntime runtime,
            int shuffleId,
            long mapId,
            boolean prefersHost,
            TaskContext context,
            ShuffleWriteMetricsReporter metrics) {
        MapTask task =
                new MapTask(runtime, shuffleId, mapId, prefersHost, context.stageId(), metrics);
        RUNNING.put(mapId, task);
        task.atTaskEnd = TaskEndAction.register(context, task::end);
        return task;
    }

    /** Returns a running map attempt; null if its shuffle does not go through Sluice. */
    public static MapTask running(long mapId) {
        return RUNNING.get(mapId);
    }

    long mapId() {
        return mapId;
    }

    /** Returns where the output is; null before its commit. */
    BlockManagerId location() {
        return location;
    }

    MapOutputWriter open(int numPartitions) {
        long task = runtime.nextProducer();
        output =
                new MapOutputWriter(
                        runtime.producerConnections(task),
                        runtime.regions(),
                        runtime.expectedProcess(task),
                        shuffleId,
                        mapId,
                        numPartitions,
                        runtime.settings().writer().blockBytes(),
                        runtime.settings().copies().replicas());
        return output;
    }

    /** Requests the commit, to be awaited by {@link #commit}. */
    void requestCommit() throws IOException {
        long start = System.nanoTime();
        output.requestCommit();
        metrics.incWriteTime(System.nanoTime() - start);
    }

    /** Commits the output; waits for the answer. */
    void commit() throws IOException {
        long start = System.nanoTime();
        Message.HelloAck taskManager = output.commit();
        location =
                TaskManagerIds.location(
                        taskManager,
                        prefersHost ? runtime.preferredHost(taskManager) : null,
                        mapId);
        metrics.incBytesWritten(output.totalBytes());
        metrics.incWriteTime(System.nanoTime() - start);
        SluiceMetrics.INSTANCE.bytesWritten.add(output.totalBytes());
        SluiceMetrics.INSTANCE.mapOutputsCommitted.increment();
        countEnd();
    }

    private void countEnd() {
        SluiceMetrics.INSTANCE.writerCreditWaitNanos.add(output.creditWaitNanos());
        SluiceMetrics.INSTANCE.creditWaits().add(stageId, output.creditWaitNanos());
        SluiceMetrics.INSTANCE.regionAreaBytes.add(output.sharedBytes());
    }

    void addWriteTime(long nanos) {
        metrics.incWriteTime(nanos);
    }

    /** Ends the map attempt, and aborts an output that is not committed; idempotent. */
    public void end() {
        abort();
        output = null;
        RUNNING.remove(mapId, this);
        if (atTaskEnd != null) {
            atTaskEnd.cancel();
        }
    }

    /** Aborts an output that is not committed; idempotent. */
    void abort() {
        if (output != null && location == null) {
            output.abort();
            countEnd();
            output = null;
            SluiceMetrics.INSTANCE.mapOutputsAborted.increment();
        }
    }
}
