package io.sluice.spark.writer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.support.WrittenOutput;
import io.sluice.client.wire.ClientException;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import net.jpountz.lz4.LZ4BlockInputStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Checks what a writer does without memory, with large records, and for other operators. */
@Timeout(60)
class RecordGathererTest {
    private static final int PARTITIONS = 20;
    private static final int REGION_BYTES = 1024 * 1024;
    private static final int BUFFER_BYTES = 16 * 1024 * 1024;
    private static final int PAGE = PartitionPages.PAGE_BYTES;

    /** Memory that cached blocks have left. */
    private static final long NO_PAGE = 70 * 1024;

    private final List<Attempt> attempts = new ArrayList<>();
    private Random random;

    @BeforeEach
    void start() {
        random = new Random(20261125);
    }

    @AfterEach
    void stop() throws IOException {
        for (Attempt attempt : attempts) {
            attempt.close();
        }
    }

    private static TaskMemory.Pool memory(long bytes) {
        return new TaskMemory.Pool(bytes);
    }

    /** A map attempt whose output goes to a mock daemon. */
    private final class Attempt implements AutoCloseable {
        final WrittenOutput written = new WrittenOutput(REGION_BYTES, 256 * 1024);
        final TestRecords.Metrics metrics = new TestRecords.Metrics();
        final TaskMemory manager;
        final RecordGatherer gatherer;
        final Map<Integer, ByteArrayOutputStream> expected = new TreeMap<>();
        long records;

        Attempt(TaskMemory.Pool memory) throws IOException {
            manager = new TaskMemory(memory);
            gatherer =
                    new RecordGatherer(
                            written.output(),
                            new Lz4Encoder(written.output(), 32 * 1024),
                            new TestRecords.Bytes(),
                            manager::operator,
                            PARTITIONS,
                            BUFFER_BYTES,
                            metrics,
                            () -> {});
            synchronized (attempts) {
                attempts.add(this);
            }
        }

        void add(int partition, byte[] record) throws IOException {
            gatherer.add(partition, null, record);
            expect(partition, record);
        }

        void expect(int partition, byte[] record) throws IOException {
            expected.computeIfAbsent(partition, key -> new ByteArrayOutputStream()).write(record);
            records++;
        }

        void addMany(int count, int most, Random from) throws IOException {
            for (int i = 0; i < count; i++) {
                byte[] record = new byte[1 + from.nextInt(most)];
                from.nextBytes(record);
                add(from.nextInt(PARTITIONS), record);
            }
        }

        /** Commits, and compares all stored and reported records. */
        void check() throws IOException {
            gatherer.finish();
            Map<Integer, byte[]> stored = written.read();
            assertEquals(expected.keySet(), stored.keySet());
            long bytes = 0;
            for (Map.Entry<Integer, ByteArrayOutputStream> each : expected.entrySet()) {
                byte[] content = each.getValue().toByteArray();
                bytes += content.length;
                LZ4BlockInputStream decoded =
                        new LZ4BlockInputStream(
                                new ByteArrayInputStream(stored.get(each.getKey())), false);
                assertArrayEquals(content, decoded.readAllBytes(), "partition " + each.getKey());
            }
            assertEquals(bytes, gatherer.rawBytes());
            assertEquals(records, metrics.records);
            assertNoLeak();
        }

        /** Checks what Spark checks with {@code spark.unsafe.exceptionOnMemoryLeak}. */
        void assertNoLeak() {
            gatherer.close(() -> {});
            assertEquals(0, manager.used());
        }

        @Override
        public void close() throws IOException {
            gatherer.close(written.output()::abort);
            written.close();
        }
    }

    private byte[] bytes(int length) {
        byte[] bytes = new byte[length];
        random.nextBytes(bytes);
        return bytes;
    }

    /** Returns the most passes in which a writer sends {@code bytes} with only its reserve. */
    private static int passes(long bytes) {
        // Half of the last chunks is empty.
        return (int) (bytes / (RecordMemory.RESERVED_PAGES / 2 * PAGE)) + 1;
    }

    // ---- no memory

    @Test
    void recordsAreGatheredIfSparkHasNoPage() throws Exception {
        Attempt attempt = new Attempt(memory(NO_PAGE));
        attempt.addMany(50_000, 100, random);
        attempt.check();
        assertTrue(
                attempt.written.regionsReceived() <= passes(attempt.gatherer.rawBytes()),
                "regions: " + attempt.written.regionsReceived());
        assertEquals(0, attempt.gatherer.peakMemoryBytes());
    }

    @Test
    void theLargestGatheredRecordFitsIntoTheReserve() throws Exception {
        Attempt attempt = new Attempt(memory(NO_PAGE));
        for (int i = 0; i < 3; i++) {
            attempt.addMany(100, 100, random);
            attempt.add(3, bytes(RecordFormat.MAX_GATHERED_BYTES));
        }
        attempt.check();
        // The small records before a large record that does not fit go with the previous large one.
        assertTrue(attempt.written.regionsReceived() <= 3);
    }

    @Test
    void everyTaskOfAnExecutorHasItsOwnReserve() throws Exception {
        TaskMemory.Pool memory = memory(3 * PAGE);
        List<FutureTask<Void>> tasks = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            Attempt attempt = new Attempt(memory);
            Random from = new Random(i);
            FutureTask<Void> task =
                    new FutureTask<>(
                            () -> {
                                attempt.addMany(30_000, 100, from);
                                attempt.check();
                                return null;
                            });
            tasks.add(task);
            start(task);
        }
        for (FutureTask<Void> task : tasks) {
            task.get();
        }
        for (Attempt attempt : attempts) {
            assertTrue(
                    attempt.written.regionsReceived() <= passes(attempt.gatherer.rawBytes()),
                    "regions: " + attempt.written.regionsReceived());
        }
    }

    @Test
    void otherOperatorsGetTheMemoryOfARunningWriter() throws Exception {
        Attempt attempt = new Attempt(memory(8L * PAGE));
        TaskMemory.Operator other = attempt.manager.operator(() -> 0);
        attempt.addMany(20_000, 100, random);
        long held = attempt.manager.used();
        assertTrue(held >= 3L * PAGE);
        assertEquals(8L * PAGE, other.acquire(8L * PAGE));
        // Spark has no memory left now, and cannot take the reserve.
        attempt.addMany(20_000, 100, random);
        assertEquals(8L * PAGE, attempt.manager.used());
        other.release(8L * PAGE);
        // The writer uses Spark's memory again as soon as there is some.
        attempt.addMany(40_000, 100, random);
        assertTrue(attempt.manager.used() > 0);
        attempt.check();
    }

    // ---- large records

    @ParameterizedTest
    @ValueSource(ints = {1, 5000, 3_000_000})
    void aLargeRecordIsSentWhileItIsSerialized(int piece) throws Exception {
        Attempt attempt = new Attempt(memory(8L * PAGE));
        TaskMemory.Operator other = attempt.manager.operator(() -> 0);
        attempt.add(5, bytes(10));
        attempt.add(7, bytes(10));
        byte[] large = bytes(6_000_000);
        TestRecords.Source source =
                out -> {
                    for (int done = 0; done < large.length; ) {
                        int n = Math.min(piece, large.length - done);
                        if (n == 1) {
                            out.write(large[done]);
                        } else {
                            out.write(large, done, n);
                        }
                        done += n;
                    }
                    // Most of it has arrived, and its pages are free for others meanwhile.
                    attempt.written.awaitRegions(4);
                    assertEquals(8L * PAGE, other.acquire(8L * PAGE));
                    other.release(8L * PAGE);
                };
        attempt.gatherer.add(5, null, source);
        attempt.expect(5, large);
        attempt.add(5, bytes(10));
        attempt.add(0, bytes(10));
        attempt.check();
    }

    @Test
    void aFailedLargeRecordIsReportedAsTheFailureToSend() throws Exception {
        Attempt attempt = new Attempt(memory(8L * PAGE));
        attempt.written.withholdCredit();
        FutureTask<Void> task =
                new FutureTask<>(
                        () -> {
                            attempt.gatherer.add(1, null, bytes(6_000_000));
                            return null;
                        });
        Thread thread = start(task);
        attempt.written.awaitWithheldCredit();
        thread.interrupt();
        Throwable failure = assertThrows(ExecutionException.class, task::get).getCause();
        assertInstanceOf(ClientException.Interrupted.class, failure);
        attempt.gatherer.close(attempt.written.output()::abort);
        attempt.assertNoLeak();
    }

    @Test
    void aSerializerThatIgnoresAFailureLosesNoRecord() throws Exception {
        Attempt attempt = new Attempt(memory(8L * PAGE));
        attempt.written.refuseRegions();
        TestRecords.Source source =
                out -> {
                    try {
                        out.write(bytes(6_000_000));
                    } catch (IOException e) {
                        assertInstanceOf(ClientException.Remote.class, e);
                    }
                };
        assertThrows(IOException.class, () -> attempt.gatherer.add(1, null, source));
        assertThrows(IOException.class, () -> attempt.gatherer.add(1, null, bytes(10)));
        assertThrows(IOException.class, attempt.gatherer::finish);
    }

    @Test
    void aFailureOfTheSerializerPartwayEndsTheRecord() throws Exception {
        Attempt attempt = new Attempt(memory(8L * PAGE));
        IOException own = new IOException("not serializable");
        TestRecords.Source source =
                out -> {
                    out.write(bytes(600_000));
                    throw own;
                };
        Exception thrown =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> attempt.gatherer.add(1, null, source));
        assertSame(own, thrown.getCause());
        attempt.gatherer.close(attempt.written.output()::abort);
        attempt.assertNoLeak();
    }

    // ---- spills for others

    @Test
    void aKilledTaskIsNotOutOfMemory() throws Exception {
        Attempt attempt = new Attempt(memory(8L * PAGE));
        TaskMemory.Operator other = attempt.manager.operator(() -> 0);
        attempt.addMany(35_000, 100, random);
        attempt.written.withholdCredit();
        FutureTask<Long> task = new FutureTask<>(() -> other.acquire(8L * PAGE));
        Thread thread = start(task);
        attempt.written.awaitWithheldCredit();
        thread.interrupt();
        Throwable failure = assertThrows(ExecutionException.class, task::get).getCause();
        // Spark counts the task as killed for an exception, and as failed for an error.
        assertInstanceOf(RuntimeException.class, failure);
        other.release(other.used());
        attempt.gatherer.close(attempt.written.output()::abort);
        attempt.assertNoLeak();
    }

    @Test
    void aFailureToSendForAnotherOperatorFailsTheNextRecord() throws Exception {
        Attempt attempt = new Attempt(memory(8L * PAGE));
        TaskMemory.Operator other = attempt.manager.operator(() -> 0);
        attempt.addMany(35_000, 100, random);
        attempt.written.refuseRegions();
        assertEquals(8L * PAGE, other.acquire(8L * PAGE), "it gets its memory");
        other.release(8L * PAGE);
        IOException failure =
                assertThrows(IOException.class, () -> attempt.gatherer.add(1, null, bytes(10)));
        assertInstanceOf(ClientException.Remote.class, failure.getCause());
        assertThrows(IOException.class, attempt.gatherer::finish);
        attempt.gatherer.close(attempt.written.output()::abort);
        attempt.assertNoLeak();
    }

    private static Thread start(FutureTask<?> task) {
        Thread thread = new Thread(task, "test-task");
        thread.setDaemon(true);
        thread.start();
        return thread;
    }
}
