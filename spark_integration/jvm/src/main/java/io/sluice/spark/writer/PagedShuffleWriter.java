package io.sluice.spark.writer;

import io.sluice.client.MapOutputWriter;
import io.sluice.spark.Compat;
import io.sluice.spark.ExecutorRuntime;
import io.sluice.spark.SluiceMetrics;
import java.io.IOException;
import org.apache.spark.Partitioner;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.TaskContext;
import org.apache.spark.scheduler.MapStatus;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;
import org.apache.spark.unsafe.Platform;
import scala.Option;
import scala.Product2;
import scala.collection.Iterator;

/**
 * Sluice's own writer, for shuffles whose serialized records can be moved and are not combined by
 * the map task.
 *
 * <p>Records are serialized once and gathered by partition in pages. While the map task runs, the
 * records go to the TaskManager whenever the pages are full or Spark needs their memory. Nothing
 * goes to local disk.
 */
public final class PagedShuffleWriter<K, V> extends ShuffleWriter<K, V> {
    private static final int COPY_BYTES = 64 * 1024;

    private final MapTask task;
    private final TaskContext context;
    private final ShuffleWriteMetricsReporter metrics;
    private final Partitioner partitioner;
    private final RowChecksums checksums;
    private final RecordFormat format;
    private final SpillGate gate = new SpillGate();
    private final RecordMemory memory;
    private final PartitionPages pages;
    private final MapOutputWriter output;
    private final StreamEncoder encoder;

    private byte[] copyBuffer;
    private long unreportedRecords;
    private long rawBytes;
    private Exception failure;
    private boolean closed;
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
        this.metrics = metrics;
        this.partitioner = dependency.partitioner();
        this.checksums = Compat.hasRowChecksums() ? RowChecksums.of(dependency) : null;
        this.format = RecordFormat.of(dependency.serializer());
        this.memory = new RecordMemory(context.taskMemoryManager(), this::spill);
        int numPartitions = partitioner.numPartitions();
        this.pages =
                new PartitionPages(
                        numPartitions, runtime.settings().writer().bufferBytes(), memory);
        this.output = task.open(numPartitions);
        this.encoder = StreamEncoder.of(output, dependency.shuffleId(), task.mapId());
    }

    @Override
    public void write(Iterator<Product2<K, V>> records) throws IOException {
        while (records.hasNext()) {
            // Row and pair may be the same objects every time, so the record is stored before the
            // next one is asked for.
            Product2<K, V> record = records.next();
            K key = record._1();
            V value = record._2();
            int partition = partitioner.getPartition(key);
            if (checksums != null) {
                checksums.update(partition, key, value);
            }
            format.serialize(key, value);
            gate.beginRecord();
            try {
                if (!append(partition)) {
                    makeRoomAndAppend(partition);
                }
                unreportedRecords++;
                rawBytes += format.storedBytes();
            } finally {
                gate.endRecord();
            }
        }
        finish();
    }

    private boolean append(int partition) {
        return format.isSized()
                ? pages.appendSized(partition, format.base, format.offset, format.length)
                : pages.append(partition, format.base, format.offset, format.length);
    }

    private void makeRoomAndAppend(int partition) throws IOException {
        context.killTaskIfInterrupted();
        send(false);
        if (!append(partition)) {
            sendRecord(partition);
        }
    }

    private void finish() throws IOException {
        format.finish();
        // No spill can begin from here on: the pages are being sent, and are released after that.
        gate.beginRecord();
        try {
            send(true);
            release();
        } finally {
            gate.endRecord();
        }
        task.requestCommit();
        // Made while the TaskManager commits: it takes a step for each partition.
        long rowChecksum = checksums == null ? 0 : checksums.value();
        MapStatus written =
                Compat.mapStatus(null, output.partitionLengths(), task.mapId(), rowChecksum);
        task.commit();
        written.updateLocation(task.location());
        SluiceMetrics.INSTANCE.rawBytesWritten.add(rawBytes);
        status = written;
    }

    /** Sends all records in the pages, as a pass over the partitions. Called inside the gate. */
    private void send(boolean last) throws IOException {
        if (failure != null) {
            throw new IOException(
                    "earlier records of map output " + task.mapId() + " could not be sent",
                    failure);
        }
        long start = System.nanoTime();
        try {
            if (last || !pages.isEmpty()) {
                output.beginPass(last);
                pages.drainTo(encoder);
                pages.clear();
            }
        } catch (IOException | RuntimeException e) {
            // If another thread's request for memory sent them, the task's own thread must learn of
            // the failure.
            failure = e;
            throw e;
        }
        metrics.incRecordsWritten(unreportedRecords);
        unreportedRecords = 0;
        task.addWriteTime(System.nanoTime() - start);
    }

    /**
     * Sends a record that does not fit into pages: it is larger than they may be, or Spark has no
     * memory left.
     */
    private void sendRecord(int partition) throws IOException {
        long start = System.nanoTime();
        if (copyBuffer == null) {
            copyBuffer = new byte[COPY_BYTES];
        }
        output.beginPass(false);
        encoder.begin(partition);
        if (format.isSized()) {
            PartitionPages.putInt(copyBuffer, 0, format.length);
            encoder.write(copyBuffer, 0, Integer.BYTES);
        }
        int done = 0;
        while (done < format.length) {
            int n = Math.min(format.length - done, copyBuffer.length);
            Platform.copyMemory(
                    format.base, format.offset + done, copyBuffer, Platform.BYTE_ARRAY_OFFSET, n);
            encoder.write(copyBuffer, 0, n);
            done += n;
        }
        encoder.end();
        task.addWriteTime(System.nanoTime() - start);
    }

    /**
     * Sends the records because Spark needs memory for another consumer of the task, perhaps on
     * another thread.
     */
    private long spill() throws IOException {
        if (!gate.tryBeginSpill()) {
            return 0;
        }
        try {
            if (closed || pages.pageCount() == 0) {
                return 0;
            }
            long before = memory.getUsed();
            send(false);
            SluiceMetrics.INSTANCE.writerSpills.increment();
            pages.release();
            return before - memory.getUsed();
        } finally {
            gate.endSpill();
        }
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
            gate.beginEnd();
            task.end();
            release();
            gate.endRecord();
        }
    }

    /** Gives all memory back; idempotent. Called inside the gate. */
    private void release() {
        if (!closed) {
            closed = true;
            context.taskMetrics().incPeakExecutionMemory(memory.peakBytes());
            pages.release();
            encoder.close();
        }
    }

    @Override
    public long[] getPartitionLengths() {
        return output.partitionLengths();
    }
}
