package io.sluice.spark.writer;

import io.sluice.client.output.MapOutputWriter;
import io.sluice.client.wire.ClientException;
import io.sluice.spark.common.SluiceMetrics;
import java.io.IOException;
import java.io.InterruptedIOException;
import org.apache.spark.serializer.Serializer;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.unsafe.Platform;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Gathers the records of a map task by partition, and sends them in passes over the partitions when
 * the pages are full or another operator of the task needs their memory. A record of more than
 * {@link RecordFormat#MAX_GATHERED_BYTES} is sent as a pass of its own while it is serialized.
 *
 * <p>The task's thread adds records. Spark calls {@link #spill} on any thread.
 */
final class RecordGatherer implements RecordFormat.Overflow {
    private static final Logger LOG = LoggerFactory.getLogger(RecordGatherer.class);
    private static final int COPY_BYTES = 64 * 1024;

    private final MapOutputWriter output;
    private final StreamEncoder encoder;
    private final RecordFormat format;
    private final ShuffleWriteMetricsReporter metrics;
    private final Runnable killCheck;
    private final SpillGate gate = new SpillGate();
    private final RecordMemory memory;
    private final PartitionPages pages;

    // Used by the task's thread only.
    private int partition;
    private boolean inGate;
    private boolean largeIsOpen;
    private byte[] copyBuffer;
    private long rawBytes;

    // Used inside the gate.
    private long unreportedRecords;
    private Exception failure;
    private boolean closed;

    /**
     * @param killCheck throws if Spark has killed the task
     */
    RecordGatherer(
            MapOutputWriter output,
            StreamEncoder encoder,
            Serializer serializer,
            ExecutionMemory.Factory memoryFactory,
            int numPartitions,
            int bufferBytes,
            ShuffleWriteMetricsReporter metrics,
            Runnable killCheck) {
        this.output = output;
        this.encoder = encoder;
        this.metrics = metrics;
        this.killCheck = killCheck;
        this.format = RecordFormat.of(serializer, this);
        this.memory = new RecordMemory(memoryFactory.create(this::spill));
        this.pages = new PartitionPages(numPartitions, bufferBytes, memory);
    }

    /** Adds a record; the caller may then change key and value. */
    void add(int recordPartition, Object key, Object value) throws IOException {
        partition = recordPartition;
        try {
            // Outside of the gate: serializing may need memory. Large records enter it partway.
            serialize(key, value);
            if (largeIsOpen) {
                endLarge();
            } else {
                enterGate();
                checkFailure();
                store();
            }
            unreportedRecords++;
            rawBytes += format.storedBytes();
        } finally {
            leaveGate();
        }
    }

    private void serialize(Object key, Object value) throws IOException {
        try {
            format.serialize(key, value);
        } catch (RuntimeException e) {
            // A serializer may wrap what the output throws, as Kryo does.
            if (inGate && failure instanceof IOException cause) {
                throw cause;
            }
            throw e;
        }
        if (inGate) {
            // A serializer may ignore a failure of the output.
            checkFailure();
        }
    }

    private void enterGate() throws IOException {
        gate.beginRecord();
        inGate = true;
    }

    private void leaveGate() {
        if (inGate) {
            inGate = false;
            gate.endRecord();
        }
    }

    private void checkFailure() throws IOException {
        if (failure != null) {
            throw new IOException(
                    "records of this map output could not be sent: " + failure.getMessage(),
                    failure);
        }
    }

    private void store() throws IOException {
        if (format.length <= RecordFormat.MAX_GATHERED_BYTES) {
            if (append()) {
                return;
            }
            killCheck.run();
            send(false);
            // Fails if the record is larger than all pages together.
            if (append()) {
                return;
            }
        }
        sendStored();
    }

    private boolean append() {
        return format.isSized()
                ? pages.appendSized(partition, format.base, format.offset, format.length)
                : pages.append(partition, format.base, format.offset, format.length);
    }

    /** Sends all records in the pages, as a pass over the partitions. Called inside the gate. */
    private void send(boolean last) throws IOException {
        long start = System.nanoTime();
        try {
            if (last || !pages.isEmpty()) {
                output.beginPass(last);
                pages.drainTo(encoder);
                pages.clear();
            }
        } catch (IOException | RuntimeException e) {
            // A spill of another thread must fail the task's thread, too.
            failure = e;
            throw e;
        }
        metrics.incRecordsWritten(unreportedRecords);
        unreportedRecords = 0;
        metrics.incWriteTime(System.nanoTime() - start);
    }

    // ---- large records

    /** Begins a pass with the current record alone, after all earlier records. */
    private void beginLarge() throws IOException {
        killCheck.run();
        send(false);
        // Spills get no memory until the record has been sent.
        pages.release();
        long start = System.nanoTime();
        output.beginPass(false);
        encoder.begin(partition);
        largeIsOpen = true;
        metrics.incWriteTime(System.nanoTime() - start);
    }

    /** Sends bytes of a large record while it is being serialized. */
    @Override
    public void write(byte[] bytes, int offset, int length) throws IOException {
        if (!inGate) {
            enterGate();
        }
        checkFailure();
        try {
            if (!largeIsOpen) {
                beginLarge();
            }
            long start = System.nanoTime();
            encoder.write(bytes, offset, length);
            metrics.incWriteTime(System.nanoTime() - start);
        } catch (IOException | RuntimeException e) {
            failure = e;
            throw e;
        }
    }

    private void endLarge() throws IOException {
        encoder.end();
        largeIsOpen = false;
    }

    /** Sends a whole record. Called inside the gate. */
    private void sendStored() throws IOException {
        if (copyBuffer == null) {
            copyBuffer = new byte[COPY_BYTES];
        }
        if (format.isSized()) {
            PartitionPages.putInt(copyBuffer, 0, format.length);
            write(copyBuffer, 0, Integer.BYTES);
        }
        if (format.base instanceof byte[] bytes) {
            write(bytes, (int) (format.offset - Platform.BYTE_ARRAY_OFFSET), format.length);
        } else {
            for (int done = 0; done < format.length; ) {
                int n = Math.min(format.length - done, COPY_BYTES);
                Platform.copyMemory(
                        format.base,
                        format.offset + done,
                        copyBuffer,
                        Platform.BYTE_ARRAY_OFFSET,
                        n);
                write(copyBuffer, 0, n);
                done += n;
            }
        }
        endLarge();
    }

    // ---- end

    /** Sends the rest and releases all memory; the output can then be committed. */
    void finish() throws IOException {
        format.finish();
        try {
            // Inside the gate no spill can begin.
            enterGate();
            checkFailure();
            send(true);
            release();
        } finally {
            leaveGate();
        }
    }

    /**
     * Releases all memory at the end of the task; idempotent.
     *
     * @param before runs first, inside the gate
     */
    void close(Runnable before) {
        gate.beginEnd();
        try {
            before.run();
            release();
        } finally {
            gate.endRecord();
        }
    }

    private void release() {
        if (!closed) {
            closed = true;
            pages.release();
            encoder.close();
        }
    }

    /** Returns the size of all records as the reader gets them. */
    long rawBytes() {
        return rawBytes;
    }

    long peakMemoryBytes() {
        return memory.peakBytes();
    }

    /**
     * Sends the records because another operator of the task needs memory. A failure to send fails
     * the next record: Spark would turn an IOException here into a SparkOutOfMemoryError.
     *
     * @throws InterruptedIOException if the task is being killed
     */
    private long spill() throws InterruptedIOException {
        if (!gate.tryBeginSpill()) {
            return 0;
        }
        try {
            long before = memory.used();
            if (closed || before == 0) {
                return 0;
            }
            if (failure == null) {
                sendForOther();
            }
            pages.release();
            return before;
        } finally {
            gate.endSpill();
        }
    }

    private void sendForOther() throws InterruptedIOException {
        try {
            send(false);
            SluiceMetrics.INSTANCE.writerSpills.increment();
        } catch (ClientException.Interrupted e) {
            InterruptedIOException interrupted = new InterruptedIOException(e.getMessage());
            interrupted.initCause(e);
            throw interrupted;
        } catch (IOException e) {
            LOG.warn("Could not send records to free memory; their task fails", e);
        }
    }
}
