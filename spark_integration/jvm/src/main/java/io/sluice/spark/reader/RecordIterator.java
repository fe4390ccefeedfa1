package io.sluice.spark.reader;

import io.sluice.client.gate.BlockStream;
import io.sluice.client.gate.Gate;
import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.common.TaskEndAction;
import io.sluice.spark.executor.GateMetrics;
import java.io.Closeable;
import java.io.FilterInputStream;
import java.io.IOException;
import java.io.InputStream;
import org.apache.spark.TaskContext;
import org.apache.spark.serializer.DeserializationStream;
import org.apache.spark.serializer.Serializer;
import org.apache.spark.serializer.SerializerInstance;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import scala.Tuple2;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;

/**
 * Returns the records of a gate. If serializer and codec allow it, the deserializer reads all
 * streams of the gate as one, with one set of buffers.
 *
 * <p>Releases everything after the last record, because the task may have thousands of other
 * readers; otherwise at the end of the task.
 */
final class RecordIterator extends AbstractIterator<Tuple2<Object, Object>> {
    private final int shuffleId;
    private final ShuffleReadMetricsReporter metrics;
    private final GateMetrics gateMetrics;
    private final Runnable mergeMetrics;
    private final TaskEndAction atTaskEnd;

    // Null after the last record.
    private volatile Gate<BlockStream> gate;
    private FetchFailures failures;
    private StreamDecoder decoder;
    private SerializerInstance serializer;

    /** Null if the serializer reads the records. */
    private UnsafeRowIterator rows;

    /** The reader of the current stream. */
    private Closeable opened;

    private Iterator<Tuple2<Object, Object>> current;
    private boolean ended;
    private long unreportedRecords;
    private long unreportedRawBytes;

    /**
     * @param mergeMetrics called after the last report to {@code metrics}
     */
    RecordIterator(
            Gate<BlockStream> gate,
            FetchFailures failures,
            Serializer serializer,
            StreamDecoder decoder,
            int shuffleId,
            TaskContext context,
            ShuffleReadMetricsReporter metrics,
            Runnable mergeMetrics) {
        this.gate = gate;
        this.failures = failures;
        this.rows = UnsafeRowIterator.of(serializer);
        this.serializer = serializer.newInstance();
        this.decoder = decoder;
        this.shuffleId = shuffleId;
        this.metrics = metrics;
        this.gateMetrics = new GateMetrics(metrics);
        this.mergeMetrics = mergeMetrics;
        this.atTaskEnd = TaskEndAction.register(context, this::close);
    }

    @Override
    public boolean hasNext() {
        while (current == null || !current.hasNext()) {
            if (ended || !openNext()) {
                release();
                return false;
            }
        }
        return true;
    }

    @Override
    public Tuple2<Object, Object> next() {
        if (!hasNext()) {
            throw new java.util.NoSuchElementException("end of the shuffle's records");
        }
        Tuple2<Object, Object> record = current.next();
        unreportedRecords++;
        return record;
    }

    private boolean openNext() {
        BlockStream stream = nextStream();
        if (stream == null) {
            return false;
        }
        InputStream plain = new RawBytes(decoder.open(shuffleId, stream, new Streams(stream)));
        if (rows != null) {
            rows.open(plain);
            opened = plain;
            current = rows;
        } else {
            DeserializationStream deserialization = serializer.deserializeStream(plain);
            opened = deserialization;
            current = deserialization.asKeyValueIterator();
        }
        return true;
    }

    private BlockStream nextStream() {
        BlockStream stream;
        try {
            stream = gate.next();
        } catch (IOException e) {
            throw failures.thrown(e);
        }
        if (stream == null) {
            ended = true;
        } else {
            // In Spark, a block is a partition of a map output, which may have several streams.
            if (stream.beginsPartition()) {
                if (stream.isLocal()) {
                    metrics.incLocalBlocksFetched(1);
                } else {
                    metrics.incRemoteBlocksFetched(1);
                }
            }
            SluiceMetrics.INSTANCE.streamsRead.increment();
        }
        report(gate);
        return stream;
    }

    /** Reports the counts since the last report. */
    private synchronized void report(Gate<BlockStream> from) {
        GateMetrics.Changes changes = gateMetrics.report(from, unreportedRecords);
        SluiceMetrics.INSTANCE.localBytesRead.add(changes.localBytes());
        SluiceMetrics.INSTANCE.remoteBytesRead.add(changes.remoteBytes());
        SluiceMetrics.INSTANCE.readerWaitNanos.add(changes.waitedNanos());
        SluiceMetrics.INSTANCE.rawBytesRead.add(unreportedRawBytes);
        unreportedRecords = 0;
        unreportedRawBytes = 0;
    }

    private void reportEnd(Gate<BlockStream> from) {
        report(from);
        mergeMetrics.run();
    }

    /** Releases everything after the last record. Gate and streams have closed themselves. */
    private void release() {
        Gate<BlockStream> read = gate;
        if (read == null) {
            return;
        }
        gate = null;
        atTaskEnd.cancel();
        reportEnd(read);
        failures = null;
        decoder = null;
        serializer = null;
        rows = null;
        opened = null;
        current = null;
    }

    /** Called at the end of a task that has not read all records. */
    private void close() {
        Gate<BlockStream> unread = gate;
        if (unread == null) {
            return;
        }
        try {
            if (opened != null && unread.isReadByCaller()) {
                // Frees native memory of a codec, unless another thread may use it.
                closeOpened();
            }
        } finally {
            unread.close();
            ended = true;
        }
        reportEnd(unread);
    }

    private void closeOpened() {
        try {
            opened.close();
        } catch (IOException e) {
            throw failures.thrown(e);
        }
    }

    /** The bytes of one stream or of all that follow. Translates failures into Spark's. */
    private final class Streams extends InputStream {
        private BlockStream stream;

        Streams(BlockStream stream) {
            this.stream = stream;
        }

        @Override
        public int read() {
            while (stream != null) {
                int value;
                try {
                    value = stream.read();
                } catch (IOException e) {
                    throw failures.thrown(e);
                }
                if (value >= 0 || !advance()) {
                    return value;
                }
            }
            return -1;
        }

        @Override
        public int read(byte[] into, int offset, int length) {
            while (stream != null) {
                int n;
                try {
                    n = stream.read(into, offset, length);
                } catch (IOException e) {
                    throw failures.thrown(e);
                }
                if (n >= 0 || !advance()) {
                    return n;
                }
            }
            return -1;
        }

        private boolean advance() {
            stream = decoder.joinStreams() && !ended ? nextStream() : null;
            return stream != null;
        }

        @Override
        public int available() {
            return stream == null ? 0 : stream.available();
        }
    }

    /** Counts the bytes after decompression. */
    private final class RawBytes extends FilterInputStream {
        RawBytes(InputStream plain) {
            super(plain);
        }

        @Override
        public int read() throws IOException {
            int value = in.read();
            if (value >= 0) {
                unreportedRawBytes++;
            }
            return value;
        }

        @Override
        public int read(byte[] into, int offset, int length) throws IOException {
            int n = in.read(into, offset, length);
            if (n > 0) {
                unreportedRawBytes += n;
            }
            return n;
        }

        @Override
        public long skip(long count) throws IOException {
            long skipped = in.skip(count);
            unreportedRawBytes += skipped;
            return skipped;
        }
    }
}
