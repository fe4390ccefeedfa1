package io.sluice.spark.reader;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.github.luben.zstd.ZstdInputStreamNoFinalizer;
import com.github.luben.zstd.ZstdOutputStreamNoFinalizer;
import io.sluice.Reachable;
import io.sluice.client.gate.InputGate;
import io.sluice.client.output.MapOutputWriter;
import io.sluice.client.support.WrittenOutput;
import io.sluice.spark.TestTask;
import io.sluice.spark.common.TaskEndAction;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.spark.executor.TempShuffleReadMetrics;
import org.apache.spark.serializer.DeserializationStream;
import org.apache.spark.serializer.SerializationStream;
import org.apache.spark.serializer.Serializer;
import org.apache.spark.serializer.SerializerInstance;
import org.apache.spark.sql.execution.UnsafeRowSerializer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import scala.Option;
import scala.reflect.ClassTag;

/** Counts the objects and bytes of its readers that a task holds. */
@Timeout(120)
class RecordIteratorTest {
    private static final int READERS = 4_000;
    private static final int RECORDS = 20;
    private static final int SHUFFLE = 1;
    private static final Serializer ROWS = new UnsafeRowSerializer(1);
    private static final Serializer TEXTS = new TextSerializer();

    private final TestTask context = new TestTask();
    private final TempShuffleReadMetrics metrics = new TempShuffleReadMetrics();
    private final List<InputStream> opened = new ArrayList<>();
    private WrittenOutput written;
    private final AtomicInteger merges = new AtomicInteger();

    @BeforeEach
    void write() throws IOException {
        written = new WrittenOutput(1024 * 1024, 64 * 1024);
        MapOutputWriter output = written.output();
        output.beginPass(true);
        put(output, 0, rows());
        put(output, 1, texts());
        output.commit();
    }

    @AfterEach
    void close() throws IOException {
        written.close();
    }

    private static void put(MapOutputWriter output, int partition, byte[] plain)
            throws IOException {
        ByteArrayOutputStream stored = new ByteArrayOutputStream();
        try (OutputStream codec = new ZstdOutputStreamNoFinalizer(stored)) {
            codec.write(plain);
        }
        output.beginPartition(partition);
        output.write(stored.toByteArray(), 0, stored.size());
        output.endPartition();
    }

    private static byte[] rows() throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        for (int number = 0; number < RECORDS; number++) {
            out.writeInt(16);
            out.writeLong(0);
            out.writeLong(number);
        }
        return bytes.toByteArray();
    }

    private static byte[] texts() throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        for (int number = 0; number < RECORDS; number++) {
            out.writeUTF("key " + number);
            out.writeUTF("value " + number);
        }
        return bytes.toByteArray();
    }

    /** A serializer whose records are read through its streams, one stream at a time. */
    private static final class TextSerializer extends Serializer {
        @Override
        public SerializerInstance newInstance() {
            return new SerializerInstance() {
                @Override
                public DeserializationStream deserializeStream(InputStream in) {
                    return new TextStream(new DataInputStream(in));
                }

                @Override
                public SerializationStream serializeStream(OutputStream out) {
                    throw new UnsupportedOperationException();
                }

                @Override
                public <T> ByteBuffer serialize(T value, ClassTag<T> type) {
                    throw new UnsupportedOperationException();
                }

                @Override
                public <T> T deserialize(ByteBuffer bytes, ClassTag<T> type) {
                    throw new UnsupportedOperationException();
                }

                @Override
                public <T> T deserialize(ByteBuffer bytes, ClassLoader loader, ClassTag<T> type) {
                    throw new UnsupportedOperationException();
                }
            };
        }
    }

    @SuppressWarnings("unchecked")
    private static <E extends Throwable> RuntimeException unchecked(Throwable error) throws E {
        throw (E) error;
    }

    private static final class TextStream extends DeserializationStream {
        private final DataInputStream in;

        TextStream(DataInputStream in) {
            this.in = in;
        }

        @Override
        @SuppressWarnings("unchecked")
        public <T> T readObject(ClassTag<T> type) {
            try {
                return (T) in.readUTF();
            } catch (IOException e) {
                // As Scala, which has no checked exceptions: Spark waits for an EOFException.
                throw RecordIteratorTest.<RuntimeException>unchecked(e);
            }
        }

        @Override
        public void close() {
            try {
                in.close();
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
    }

    /** A stream that knows whether it was closed. */
    private static final class Zstd extends ZstdInputStreamNoFinalizer {
        boolean closed;

        Zstd(InputStream stored) throws IOException {
            super(stored);
        }

        @Override
        public synchronized void close() throws IOException {
            closed = true;
            super.close();
        }
    }

    private InputStream decode(InputStream stored) {
        try {
            opened.add(new Zstd(stored));
            return opened.get(opened.size() - 1);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private RecordIterator reader(Serializer serializer) throws IOException {
        return new RecordIterator(
                written.gate(serializer == ROWS ? 0 : 1),
                new FetchFailures(null, SHUFFLE, 0, null),
                serializer,
                new StreamDecoder(serializer == ROWS, (blockId, stored) -> decode(stored)),
                SHUFFLE,
                context,
                metrics,
                merges::incrementAndGet);
    }

    private static int readAll(RecordIterator reader) {
        int records = 0;
        while (reader.hasNext()) {
            reader.next();
            records++;
        }
        return records;
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void fourThousandFinishedReadersLeaveOneSmallObjectEach(boolean rows) throws IOException {
        Reachable before = Reachable.from(context);
        for (int number = 0; number < READERS; number++) {
            assertEquals(RECORDS, readAll(reader(rows ? ROWS : TEXTS)));
            assertTrue(((Zstd) opened.remove(0)).closed);
        }
        assertEquals(READERS * RECORDS, metrics.recordsRead());
        Reachable after = Reachable.from(context);
        assertEquals(READERS, after.count(TaskEndAction.class));
        assertEquals(0, after.count(RecordIterator.class));
        assertEquals(0, after.count(InputGate.class));
        assertEquals(before.objects() + READERS, after.objects());
        assertEquals(before.arrayBytes(), after.arrayBytes());
        assertEquals(2, written.idleConnections());
        context.markTaskCompleted(Option.empty());
        assertEquals(READERS * RECORDS, metrics.recordsRead());
        assertEquals(READERS, merges.get());
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void aFinishedReaderHoldsNoBuffers(boolean rows) throws IOException {
        RecordIterator reader = reader(rows ? ROWS : TEXTS);
        readAll(reader);
        Reachable held = Reachable.from(reader);
        assertEquals(0, held.count(InputGate.class));
        assertEquals(0, held.count(UnsafeRowIterator.class));
        assertEquals(0, held.count(Zstd.class));
        assertFalse(reader.hasNext());
    }

    @Test
    void aReaderHoldsNoBuffersBeforeItsFirstRecord() throws IOException {
        reader(ROWS);
        long one = Reachable.from(context).arrayBytes();
        reader(ROWS);
        long two = Reachable.from(context).arrayBytes();
        // Its connection has some.
        assertTrue(two - one < 32 * 1024, two - one + " bytes");
        assertEquals(0, opened.size());
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void aReaderThatIsNotReadToItsEndClosesWithTheTask(boolean rows) throws IOException {
        RecordIterator reader = reader(rows ? ROWS : TEXTS);
        for (int number = 0; number < RECORDS; number++) {
            // All records, but not the end, which only hasNext finds.
            reader.next();
        }
        assertFalse(((Zstd) opened.get(0)).closed);
        context.markTaskCompleted(Option.empty());
        assertTrue(((Zstd) opened.get(0)).closed);
        assertEquals(2, written.idleConnections());
        assertEquals(RECORDS, metrics.recordsRead());
        assertEquals(0, Reachable.from(context).count(InputGate.class));
    }
}
