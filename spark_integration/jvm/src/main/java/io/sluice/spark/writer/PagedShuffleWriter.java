package io.sluice.spark.writer;

import io.sluice.client.output.MapOutputWriter;
import io.sluice.spark.common.Compat;
import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.executor.ExecutorRuntime;
import java.io.IOException;
import org.apache.spark.Partitioner;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.TaskContext;
import org.apache.spark.scheduler.MapStatus;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;
import scala.Option;
import scala.Product2;
import scala.collection.Iterator;

/**
 * Sluice's own writer, for relocatable serializers without map-side aggregation. Records are
 * gathered by partition ({@link RecordGatherer}) and sent while the map task runs; nothing goes to
 * local disk.
 */
public final class PagedShuffleWriter<K, V> extends ShuffleWriter<K, V> {
    private final MapTask task;
    private final TaskContext context;
    private final Partitioner partitioner;
    private final RowChecksums checksums;
    private final MapOutputWriter output;
    private final RecordGatherer gatherer;

    private boolean ended;
    private MapStatus status;

    /** Returns whether this writer can take a shuffle. */
    public static boolean takes(ShuffleDependency<?, ?, ?> dependency) {
        return !dependency.mapSideCombine()
                && dependency.serializer().supportsRelocationOfSerializedObjects();
    }

    public PagedShuffleWriter(
            ExecutorRuntime runtime,
            MapTask task,
            ShuffleDependency<K, V, ?> dependency,
            TaskContext context,
            ShuffleWriteMetricsReporter metrics) {
        this.task = task;
        this.context = context;
        this.partitioner = dependency.partitioner();
        this.checksums = Compat.hasRowChecksums() ? RowChecksums.of(dependency) : null;
        int numPartitions = partitioner.numPartitions();
        this.output = task.open(numPartitions);
        this.gatherer =
                new RecordGatherer(
                        output,
                        StreamEncoder.of(output, dependency.shuffleId(), task.mapId()),
                        dependency.serializer(),
                        spill -> new ExecutionMemory.Spark(context.taskMemoryManager(), spill),
                        numPartitions,
                        runtime.settings().writer().bufferBytes(numPartitions),
                        metrics,
                        context::killTaskIfInterrupted);
    }

    @Override
    public void write(Iterator<Product2<K, V>> records) throws IOException {
        while (records.hasNext()) {
            // Row and pair may be the same objects every time.
            Product2<K, V> record = records.next();
            K key = record._1();
            V value = record._2();
            int partition = partitioner.getPartition(key);
            if (checksums != null) {
                checksums.update(partition, key, value);
            }
            gatherer.add(partition, key, value);
        }
        gatherer.finish();
        task.requestCommit();
        // Made while the TaskManager commits.
        long rowChecksum = checksums == null ? 0 : checksums.value();
        MapStatus written =
                Compat.mapStatus(null, output.partitionLengths(), task.mapId(), rowChecksum);
        task.commit();
        written.updateLocation(task.location());
        SluiceMetrics.INSTANCE.rawBytesWritten.add(gatherer.rawBytes());
        status = written;
    }

    @Override
    public Option<MapStatus> stop(boolean success) {
        try {
            if (success && status == null) {
                throw new IllegalStateException(
                        "map output " + task.mapId() + " was not committed");
            }
            return success ? Option.apply(status) : Option.empty();
        } finally {
            gatherer.close(task::end);
            if (!ended) {
                ended = true;
                context.taskMetrics().incPeakExecutionMemory(gatherer.peakMemoryBytes());
            }
        }
    }

    @Override
    public long[] getPartitionLengths() {
        return output.partitionLengths();
    }
}
