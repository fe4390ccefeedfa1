package io.sluice.spark.reader;

import io.sluice.client.BlockStream;
import io.sluice.client.InputGate;
import io.sluice.spark.SluiceMetrics;
import java.io.Closeable;
import java.io.FilterInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.io.CompressionCodec$;
import org.apache.spark.serializer.DeserializationStream;
import org.apache.spark.serializer.Serializer;
import org.apache.spark.serializer.SerializerInstance;
import org.apache.spark.serializer.SerializerManager;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.storage.ShuffleBlockId;
import scala.Tuple2;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;

/**
 * Returns the records of a gate and updates Spark's read metrics.
 *
 * <p>If serializer and codec allow it, the deserializer reads all streams of the gate as one. Its
 * buffers are then made once for a task instead of once for each of perhaps a thousand tiny
 * streams.
 */
final class RecordIterator extends AbstractIterator<Tuple2<Object, Object>> {
    private final InputGate gate;
    private final FetchFailures failures;
    private final SerializerInstance serializer;
    private final SerializerManager serializerManager = SparkEnv.get().serializerManager();
    private final boolean joinStreams;
    private final int shuffleId;
    private final TaskContext context;
    private final ShuffleReadMetricsReporter metrics;

    /** Null if the serializer reads the records. */
    private final UnsafeRowIterator rows;

    /** The reader of the current stream. */
    private Closeable opened;

    private Iterator<Tuple2<Object, Object>> current;
    private boolean ended;
    private long unreportedRecords;
    private long reportedLocalBytes;
    private long reportedRemoteBytes;
    private long reportedWaitMillis;
    private long reportedWaitNanos;
    private long unreportedRawBytes;

    RecordIterator(
            InputGate gate,
            FetchFailures failures,
            Serializer serializer,
            int shuffleId,
            TaskContext context,
            ShuffleReadMetricsReporter metrics) {
        this.gate = gate;
        this.failures = failures;
        this.rows = UnsafeRowIterator.of(serializer);
        this.serializer = serializer.newInstance();
        this.joinStreams = canJoinStreams(serializer, serializerManager);
        this.shuffleId = shuffleId;
        this.context = context;
        this.metrics = metrics;
    }

    /** Checks Spark's own condition for fetching several blocks as one. */
    private static boolean canJoinStreams(Serializer serializer, SerializerManager manager) {
        SparkConf conf = SparkEnv.get().conf();
        return serializer.supportsRelocationOfSerializedObjects()
                && !manager.encryptionEnabled()
                && (!conf.getBoolean("spark.shuffle.compress", true)
                        || CompressionCodec$.MODULE$.supportsConcatenationOfSerializedStreams(
                                CompressionCodec$.MODULE$.createCodec(conf)));
    }

    @Override
    public boolean hasNext() {
        while (current == null || !current.hasNext()) {
            if (ended || !openNext()) {
                reportRest();
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
        ShuffleBlockId blockId =
                new ShuffleBlockId(shuffleId, stream.mapAttemptId(), stream.subpartition());
        InputStream plain =
                new RawBytes(serializerManager.wrapStream(blockId, new Streams(stream)));
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
            // A block in Spark's sense is a partition of a map output, whatever the number of its
            // streams.
            if (stream.beginsPartition()) {
                if (stream.isLocal()) {
                    metrics.incLocalBlocksFetched(1);
                } else {
                    metrics.incRemoteBlocksFetched(1);
                }
            }
            SluiceMetrics.INSTANCE.streamsRead.increment();
        }
        report();
        return stream;
    }

    /** Reports what deserializer and codec still held when the last stream had been taken. */
    private void reportRest() {
        if (unreportedRecords > 0 || unreportedRawBytes > 0) {
            report();
        }
    }

    /** Reports the counts since the last report. */
    private void report() {
        long local = gate.localBytes();
        long remote = gate.remoteBytes();
        long waitedNanos = gate.waitedNanos();
        long waited = TimeUnit.NANOSECONDS.toMillis(waitedNanos);
        metrics.incRecordsRead(unreportedRecords);
        metrics.incLocalBytesRead(local - reportedLocalBytes);
        metrics.incRemoteBytesRead(remote - reportedRemoteBytes);
        metrics.incFetchWaitTime(waited - reportedWaitMillis);
        SluiceMetrics.INSTANCE.localBytesRead.add(local - reportedLocalBytes);
        SluiceMetrics.INSTANCE.remoteBytesRead.add(remote - reportedRemoteBytes);
        SluiceMetrics.INSTANCE.rawBytesRead.add(unreportedRawBytes);
        SluiceMetrics.INSTANCE.readerWaitNanos.add(waitedNanos - reportedWaitNanos);
        unreportedRecords = 0;
        unreportedRawBytes = 0;
        reportedWaitNanos = waitedNanos;
        reportedLocalBytes = local;
        reportedRemoteBytes = remote;
        reportedWaitMillis = waited;
        if (ended) {
            context.taskMetrics().mergeShuffleReadMetrics();
        }
    }

    /** Called at the end of the task, whatever its outcome. */
    void close() {
        boolean unread = !ended;
        try {
            if (unread && opened != null && gate.isReadByCaller()) {
                // Frees a codec's native memory, unless another thread may be using it.
                closeOpened();
            }
        } finally {
            gate.close();
            ended = true;
        }
        if (unread) {
            report();
        } else {
            reportRest();
        }
    }

    private void closeOpened() {
        try {
            opened.close();
        } catch (IOException e) {
            throw failures.thrown(e);
        }
    }

    /**
     * Returns the bytes of one stream or, joined, of all streams that follow. Translates failures
     * for Spark here, below decompression and deserialization.
     */
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
            stream = joinStreams && !ended ? nextStream() : null;
            return stream != null;
        }

        @Override
        public int available() {
            return stream == null ? 0 : stream.available();
        }
    }

    /** Counts the bytes that the deserializer reads, after decompression. */
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
