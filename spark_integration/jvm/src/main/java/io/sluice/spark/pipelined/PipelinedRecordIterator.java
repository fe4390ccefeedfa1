package io.sluice.spark.pipelined;

import io.sluice.client.gate.PipelinedGate;
import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.common.TaskEndAction;
import io.sluice.spark.executor.GateMetrics;
import io.sluice.spark.executor.TaskReader;
import java.io.IOException;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.TaskContext;
import org.apache.spark.serializer.DeserializationStream;
import org.apache.spark.serializer.SerializerInstance;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import scala.Tuple2;
import scala.collection.AbstractIterator;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/**
 * Returns the records of a pipelined gate as they arrive, with a deserializer for each map task,
 * which reads a record only after all its bytes have arrived.
 */
final class PipelinedRecordIterator extends AbstractIterator<Tuple2<Object, Object>> {
    /** Number of records from one update of Spark's metrics to the next. */
    private static final int RECORDS_PER_REPORT = 64;

    private static final ClassTag<Object> ANY = ClassTag$.MODULE$.Any();

    private final TaskContext context;
    private final GateMetrics metrics;
    private final TaskEndAction atTaskEnd;
    private final List<Producer> producers = new ArrayList<>();

    // Null after the last record.
    private volatile PipelinedGate gate;
    private SerializerInstance serializer;

    private PipelinedGate.ReceivedRecord pending;
    private long unreportedRecords;

    PipelinedRecordIterator(
            PipelinedGate gate,
            SerializerInstance serializer,
            TaskContext context,
            ShuffleReadMetricsReporter metrics) {
        this.gate = gate;
        this.serializer = serializer;
        this.context = context;
        this.metrics = new GateMetrics(metrics);
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
        GateMetrics.Changes changes = metrics.report(from, unreportedRecords);
        SluiceMetrics.INSTANCE.pipelinedBytesRead.add(changes.localBytes() + changes.remoteBytes());
        unreportedRecords = 0;
    }

    private void reportEnd(PipelinedGate from) {
        report(from);
        context.taskMetrics().mergeShuffleReadMetrics();
    }

    /** Releases everything after the last record. The gate has closed itself. */
    private void release(PipelinedGate read) {
        gate = null;
        atTaskEnd.cancel();
        reportEnd(read);
        serializer = null;
        producers.clear();
    }

    /** Called at the end of a task that has not read all records. */
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
                // Not earlier, because some serializers read a header when they are made.
                stream = serializer.deserializeStream(input);
            }
            Object key = stream.readKey(ANY);
            return new Tuple2<>(key, stream.readValue(ANY));
        }
    }

    /** The unread bytes: what the serializer left of the previous record, and the next record. */
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
