package io.sluice.spark.pipelined;

import io.sluice.client.gate.PipelinedGate;
import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.common.TaskEndAction;
import io.sluice.spark.executor.TaskReader;
import java.io.IOException;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.spark.TaskContext;
import org.apache.spark.serializer.DeserializationStream;
import org.apache.spark.serializer.SerializerInstance;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import scala.Tuple2;
import scala.collection.AbstractIterator;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/**
 * Returns the records of a pipelined gate as they arrive, and updates Spark's read metrics. The
 * records of each map task go to a deserializer of their own, which is asked for a record only
 * after all its bytes have arrived.
 */
final class PipelinedRecordIterator extends AbstractIterator<Tuple2<Object, Object>> {
    /** Number of records that Spark's metrics are told of at once. */
    private static final int RECORDS_PER_REPORT = 64;

    private static final ClassTag<Object> ANY = ClassTag$.MODULE$.Any();

    private final TaskContext context;
    private final ShuffleReadMetricsReporter metrics;
    private final TaskEndAction atTaskEnd;
    private final List<Producer> producers = new ArrayList<>();

    // Null after the last record.
    private volatile PipelinedGate gate;
    private SerializerInstance serializer;

    private PipelinedGate.ReceivedRecord pending;
    private long unreportedRecords;
    private long reportedLocalBytes;
    private long reportedRemoteBytes;
    private long reportedWaitNanos;

    PipelinedRecordIterator(
            PipelinedGate gate,
            SerializerInstance serializer,
            TaskContext context,
            ShuffleReadMetricsReporter metrics) {
        this.gate = gate;
        this.serializer = serializer;
        this.context = context;
        this.metrics = metrics;
        this.atTaskEnd = TaskEndAction.register(context, this::close);
    }

    @Override
    public boolean hasNext() {
        PipelinedGate open = gate;
        if (pending == null && open != null) {
            try {
                pending = open.next();
            } catch (IOException e) {
                throw TaskReader.taskFailure(e);
            }
            if (pending == null) {
                release(open);
            } else if (unreportedRecords >= RECORDS_PER_REPORT) {
                report(open);
            }
        }
        return pending != null;
    }

    @Override
    public Tuple2<Object, Object> next() {
        if (!hasNext()) {
            throw new java.util.NoSuchElementException("end of the shuffle's records");
        }
        Producer producer = producer(pending.source());
        producer.input.append(pending);
        pending = null;
        unreportedRecords++;
        return producer.read();
    }

    private Producer producer(int index) {
        while (producers.size() <= index) {
            producers.add(new Producer());
        }
        return producers.get(index);
    }

    private synchronized void report(PipelinedGate from) {
        long local = from.localBytes();
        long remote = from.remoteBytes();
        long waited = from.waitedNanos();
        metrics.incRecordsRead(unreportedRecords);
        metrics.incLocalBytesRead(local - reportedLocalBytes);
        metrics.incRemoteBytesRead(remote - reportedRemoteBytes);
        metrics.incFetchWaitTime(
                TimeUnit.NANOSECONDS.toMillis(waited)
                        - TimeUnit.NANOSECONDS.toMillis(reportedWaitNanos));
        SluiceMetrics.INSTANCE.pipelinedBytesRead.add(
                local - reportedLocalBytes + remote - reportedRemoteBytes);
        unreportedRecords = 0;
        reportedLocalBytes = local;
        reportedRemoteBytes = remote;
        reportedWaitNanos = waited;
    }

    private void reportEnd(PipelinedGate from) {
        report(from);
        context.taskMetrics().mergeShuffleReadMetrics();
    }

    /** Releases everything after the last record, when the gate has closed itself. */
    private void release(PipelinedGate read) {
        gate = null;
        atTaskEnd.cancel();
        reportEnd(read);
        serializer = null;
        producers.clear();
    }

    /** Called at the end of a task that has not read all records, whatever its outcome. */
    private void close() {
        PipelinedGate unread = gate;
        if (unread != null) {
            unread.close();
            reportEnd(unread);
        }
    }

    /** The stream of one map task. */
    private final class Producer {
        final RecordInput input = new RecordInput();
        private DeserializationStream stream;

        Tuple2<Object, Object> read() {
            if (stream == null) {
                // Not before the first record, because some serializers read a header as soon as
                // they are made.
                stream = serializer.deserializeStream(input);
            }
            Object key = stream.readKey(ANY);
            return new Tuple2<>(key, stream.readValue(ANY));
        }
    }

    /**
     * The bytes that have arrived and are unread: those of a record, behind the bytes that the
     * serializer left of the previous one.
     */
    private static final class RecordInput extends InputStream {
        private byte[] bytes = new byte[0];
        private int position;
        private int end;

        void append(PipelinedGate.ReceivedRecord record) {
            if (position == end) {
                bytes = record.bytes();
                position = record.offset();
                end = record.offset() + record.length();
                return;
            }
            int left = end - position;
            byte[] joined = Arrays.copyOfRange(bytes, position, position + left + record.length());
            System.arraycopy(record.bytes(), record.offset(), joined, left, record.length());
            bytes = joined;
            position = 0;
            end = joined.length;
        }

        @Override
        public int read() {
            return position < end ? bytes[position++] & 0xFF : -1;
        }

        @Override
        public int read(byte[] into, int offset, int length) {
            if (position == end) {
                return length == 0 ? 0 : -1;
            }
            int n = Math.min(length, end - position);
            System.arraycopy(bytes, position, into, offset, n);
            position += n;
            return n;
        }

        @Override
        public int available() {
            return end - position;
        }
    }
}
