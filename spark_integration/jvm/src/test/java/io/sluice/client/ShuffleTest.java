package io.sluice.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Map outputs and gates against the mock daemon. */
@Timeout(60)
class ShuffleTest {
    private MockDaemon daemon;
    private ConnectionPool pool;
    private RegionPool regions;
    private ChunkPool chunks;
    private int blockBytes = Blocks.MAX_STORED_BYTES;
    private TestConnections readers;

    @BeforeEach
    void start() throws IOException {
        daemon = new MockDaemon();
        chunks = new ChunkPool(64);
        pool = new ConnectionPool(new ClientOptions("app", "test", 2_000, 2_000, chunks), 4);
        regions = new RegionPool(64 * 1024, 2, 0);
    }

    @AfterEach
    void stop() throws IOException {
        pool.close();
        daemon.close();
    }

    private MapOutputWriter writer(long attempt) {
        return new MapOutputWriter(
                new TestConnections(pool, daemon.endpoint(), Message.ROLE_PRODUCER),
                regions,
                1,
                attempt,
                100,
                blockBytes);
    }

    private Map<Integer, byte[]> write(long attempt, int seed, int... sizes) throws IOException {
        Random random = new Random(seed);
        Map<Integer, byte[]> streams = new TreeMap<>();
        MapOutputWriter writer = writer(attempt);
        for (int partition = 0; partition < sizes.length; partition++) {
            byte[] bytes = new byte[sizes[partition]];
            random.nextBytes(bytes);
            writer.beginPartition(partition);
            if (bytes.length > 0) {
                writer.write(bytes[0]);
                writer.write(bytes, 1, bytes.length - 1);
                streams.put(partition, bytes);
            }
            assertEquals(bytes.length > 0, writer.endPartition() > 0);
        }
        assertEquals(MockDaemon.ID, writer.commit().taskManagerId());
        return streams;
    }

    private InputGate gate(int start, int end, int credit, long[] attempts, int[] streams)
            throws IOException {
        Source source = new Source(MockDaemon.ID, "127.0.0.1", 1, attempts, streams);
        readers = new TestConnections(pool, daemon.endpoint(), Message.ROLE_CONSUMER);
        return new InputGate(readers, 1, start, end, credit, List.of(source));
    }

    private static Map<String, byte[]> readAll(InputGate gate) throws IOException {
        Map<String, byte[]> streams = new TreeMap<>();
        for (BlockStream stream = gate.next(); stream != null; stream = gate.next()) {
            byte[] bytes = stream.readAllBytes();
            assertTrue(bytes.length > 0, "an empty stream is not worth a decoder");
            streams.merge(
                    stream.mapAttemptId() + "/" + stream.subpartition(),
                    bytes,
                    ShuffleTest::joined);
        }
        return streams;
    }

    private static byte[] joined(byte[] first, byte[] second) {
        byte[] both = Arrays.copyOf(first, first.length + second.length);
        System.arraycopy(second, 0, both, first.length, second.length);
        return both;
    }

    private static void assertStreams(
            Map<Integer, byte[]> written, long attempt, Map<String, byte[]> read) {
        written.forEach(
                (partition, bytes) ->
                        assertArrayEquals(bytes, read.get(attempt + "/" + partition)));
    }

    @ParameterizedTest
    @EnumSource(
            names = {"NORMAL", "BYTE_BY_BYTE", "LARGE_PAYLOADS"},
            value = MockDaemon.Mode.class)
    void whatIsWrittenIsRead(MockDaemon.Mode mode) throws IOException {
        daemon.mode = mode;
        Map<Integer, byte[]> first = write(7, 1, 10, 0, 3000, 1, 0, 70_000, 64 * 1024 - 28, 5);
        Map<Integer, byte[]> second = write(8, 2, 0, 0, 5, 2);
        InputGate gate = gate(0, 8, 2, new long[] {7, 8}, new int[] {6, 2});
        Map<String, byte[]> read = readAll(gate);
        assertEquals(8, read.size());
        assertStreams(first, 7, read);
        assertStreams(second, 8, read);
        assertTrue(gate.localBytes() > 138_000);
        assertEquals(0, gate.remoteBytes());
        assertNull(gate.next());
        gate.close();
        assertEquals(2, pool.idleConnections(), "both connections are clean again");
        assertEquals(2, daemon.connections.get(), "two map outputs shared one connection");
        assertTrue(daemon.received.stream().anyMatch(m -> m.equals(new Message.Pong(-1L))));
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3, 16})
    void blocksLargerThanTheCreditAreReadable(int credit) throws IOException {
        regions = new RegionPool(1024 * 1024, 2, 0);
        Map<Integer, byte[]> written = write(7, 3, 2_000_000);
        assertStreams(written, 7, readAll(gate(0, 1, credit, new long[] {7}, new int[] {1})));
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 3, 16})
    void largePayloadsGoBothWays(int credit) throws IOException {
        daemon.mode = MockDaemon.Mode.LARGE_PAYLOADS;
        regions = new RegionPool(1024 * 1024, 2, 0);
        Map<Integer, byte[]> written = write(7, 3, 10, 2_000_000, 0, 300_000, 70_000);
        assertEquals(100_000, daemon.largestPayload, "what RegionOpened said");
        assertStreams(written, 7, readAll(gate(0, 5, credit, new long[] {7}, new int[] {4})));
        assertEquals(2, pool.idleConnections());
    }

    /**
     * Writes {@code sizes[pass][partition]} bytes; the same in the order in which they belong
     * together.
     */
    private Map<Integer, byte[]> writePasses(long attempt, boolean inPlace, int[]... sizes)
            throws IOException {
        Random random = new Random(attempt);
        Map<Integer, byte[]> streams = new TreeMap<>();
        MapOutputWriter writer = writer(attempt);
        long[] lengths = new long[100];
        for (int pass = 0; pass < sizes.length; pass++) {
            writer.beginPass(pass == sizes.length - 1);
            for (int partition = 0; partition < sizes[pass].length; partition++) {
                if (sizes[pass][partition] > 0) {
                    byte[] bytes = new byte[sizes[pass][partition]];
                    random.nextBytes(bytes);
                    writer.beginPartition(partition);
                    if (inPlace) {
                        writeInPlace(writer, bytes);
                    } else {
                        writer.write(bytes, 0, bytes.length);
                    }
                    lengths[partition] += writer.endPartition();
                    streams.merge(partition, bytes, ShuffleTest::joined);
                }
            }
        }
        writer.commit();
        for (int partition = 0; partition < 100; partition++) {
            assertEquals(streams.containsKey(partition), writer.partitionLengths()[partition] > 0);
            assertTrue(writer.partitionLengths()[partition] >= lengths[partition]);
        }
        assertEquals(writer.totalBytes(), Arrays.stream(writer.partitionLengths()).sum());
        return streams;
    }

    private void writeInPlace(MapOutputWriter writer, byte[] bytes) throws IOException {
        int done = 0;
        while (done < bytes.length) {
            int n = Math.min(5000, bytes.length - done);
            int place = writer.reserve(n);
            assertTrue(place >= 0);
            writer.region().put(place, bytes, done, n);
            writer.advance(n);
            done += n;
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void severalPassesAreOneOutput(boolean inPlace) throws IOException {
        blockBytes = 8 * 1024;
        int[][] sizes = {{10, 0, 70_000, 5}, {0, 3, 0, 5}, {}, {1, 0, 9_000, 0, 4}, {0, 0, 1}};
        Map<Integer, byte[]> written = writePasses(7, inPlace, sizes);
        Map<String, byte[]> read = readAll(gate(0, 5, 2, new long[] {7}, new int[] {5}));
        assertEquals(5, read.size());
        assertStreams(written, 7, read);
        for (int partition = 0; partition < 5; partition++) {
            Map<String, byte[]> one =
                    readAll(gate(partition, partition + 1, 2, new long[] {7}, new int[] {1}));
            assertArrayEquals(written.get(partition), one.get("7/" + partition));
        }
    }

    @Test
    void anEmptyLastPassEndsAll() throws IOException {
        Map<Integer, byte[]> written = writePasses(7, false, new int[] {10, 0, 3000}, new int[] {});
        assertStreams(written, 7, readAll(gate(0, 3, 2, new long[] {7}, new int[] {2})));
    }

    @Test
    void theEndOfAPartitionIsMissed() throws IOException {
        // Partition 0 is ended by a block of the last region, whose 28 bytes are not served.
        writePasses(7, false, new int[] {101}, new int[] {});
        daemon.outputs.get(7L).remove(1);
        InputGate gate = gate(0, 1, 2, new long[] {7}, new int[] {1});
        SourceFailure failure = assertThrows(SourceFailure.class, () -> readAll(gate));
        assertTrue(failure.getMessage().contains("no last block"), failure.getMessage());
        gate.close();
    }

    @Test
    void aRegionInTheMiddleIsMissed() throws IOException {
        writePasses(7, false, new int[] {101}, new int[] {102}, new int[] {103});
        daemon.outputs.get(7L).remove(1);
        InputGate gate = gate(0, 1, 2, new long[] {7}, new int[] {1});
        SourceFailure failure = assertThrows(SourceFailure.class, () -> readAll(gate));
        assertTrue(
                failure.getMessage().contains("block 2 of partition 0 came, 1 was due"),
                failure.getMessage());
        gate.close();
    }

    @Test
    void aRegionHasLeftWhenTheTaskGoesOn() throws Exception {
        // More than sockets hold, to a TaskManager that reads slower than we write.
        daemon.mode = MockDaemon.Mode.SLOW_READER;
        regions = new RegionPool(16 * 1024 * 1024, 1, 0);
        MapOutputWriter writer = writer(7);
        writer.beginPass(false);
        writer.beginPartition(0);
        byte[] bytes = new byte[15 * 1024 * 1024];
        writer.write(bytes, 0, bytes.length);
        writer.endPartition();
        writer.beginPass(true);
        // The writer does nothing now, as in a task that computes.
        assertTrue(
                daemon.regionsReceived.tryAcquire(20, TimeUnit.SECONDS),
                "a frame is stuck in the executor");
        writer.commit();
    }

    @Test
    void noRoomForMoreThanABlock() throws IOException {
        MapOutputWriter writer = writer(7);
        writer.beginPartition(0);
        assertEquals(-1, writer.reserve(blockBytes + 1));
        assertEquals(
                -1, writer.reserve(64 * 1024 - Blocks.HEADER_BYTES + 1), "the region is smaller");
        assertTrue(writer.reserve(64 * 1024 - Blocks.HEADER_BYTES) >= 0);
        writer.abort();
    }

    @Test
    void commitNeedsTheLastPass() throws IOException {
        MapOutputWriter writer = writer(7);
        writer.beginPass(false);
        assertThrows(IllegalStateException.class, writer::commit);
        writer.beginPass(true);
        assertThrows(
                IllegalStateException.class,
                () -> {
                    writer.beginPartition(0);
                    writer.beginPass(false);
                });
        writer.abort();
    }

    @Test
    void emptyOutputAndEmptyRange() throws IOException {
        assertTrue(write(7, 1).isEmpty());
        assertTrue(write(8, 1, 0, 0).isEmpty());
        assertEquals(2, daemon.outputs.size());
        InputGate none =
                new InputGate(
                        new TestConnections(pool, daemon.endpoint(), Message.ROLE_CONSUMER),
                        1,
                        0,
                        2,
                        2,
                        List.of());
        assertTrue(readAll(none).isEmpty());
    }

    @Test
    void unreadStreamsAreSkippedAndChecked() throws IOException {
        write(7, 1, 5000, 6000, 7000);
        InputGate gate = gate(0, 3, 2, new long[] {7}, new int[] {3});
        int streams = 0;
        while (gate.next() != null) {
            streams++;
        }
        assertEquals(3, streams);
    }

    @Test
    void earlyCloseGivesTheConnectionBack() throws IOException {
        write(7, 1, 50_000, 50_000);
        InputGate gate = gate(0, 2, 4, new long[] {7}, new int[] {2});
        assertEquals(5, gate.next().readNBytes(5).length);
        gate.close();
        gate.close();
        assertEquals(2, pool.idleConnections());
        assertStreams(write(9, 4, 100), 9, readAll(gate(0, 1, 4, new long[] {9}, new int[] {1})));
    }

    @Test
    void abortedOutputIsNotThere() throws IOException {
        MapOutputWriter writer = writer(7);
        writer.beginPartition(0);
        writer.write(new byte[200_000], 0, 200_000);
        writer.abort();
        writer.abort();
        assertTrue(daemon.outputs.isEmpty());
        assertEquals(1, pool.idleConnections(), "the abort was confirmed");
        assertThrows(IOException.class, () -> writer.write(new byte[10], 0, 10));
    }

    /**
     * A map output of several regions, whose connection is lost at each of its messages in turn,
     * with the answer or before.
     */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aMapOutputGoesOnWhereverItsConnectionIsLost(boolean answerOnly) throws IOException {
        daemon.cutAfter = answerOnly;
        int messages = 0;
        for (long attempt = 100; ; attempt++) {
            AtomicInteger left = new AtomicInteger(messages++);
            daemon.cut.set(
                    m ->
                            !(m instanceof Message.Pong)
                                    && !(m instanceof Message.Hello)
                                    && left.getAndDecrement() == 0);
            int before = daemon.connections.get();
            Map<Integer, byte[]> written = write(attempt, 1, 5000, 0, 150_000, 60_000, 20_000);
            boolean lost = daemon.cut.getAndSet(null) == null;
            assertStreams(
                    written, attempt, readAll(gate(0, 5, 2, new long[] {attempt}, new int[] {4})));
            if (!lost) {
                break; // There is no such message any more.
            }
            assertTrue(daemon.connections.get() > before);
        }
        assertTrue(messages > 200, messages + " messages");
    }

    @Test
    void whatATaskManagerHasLostFailsTheMapOutput() throws IOException {
        daemon.cut.set(m -> m instanceof Message.BeginRegion begin && begin.region() == 2);
        daemon.forgetsSecured = true;
        IOException error = assertThrows(IOException.class, () -> write(7, 1, 300_000));
        assertTrue(error.getMessage().contains("cannot go on"), error.getMessage());
    }

    @ParameterizedTest
    @ValueSource(
            classes = {
                Message.OpenPartition.class,
                Message.RegionData.class,
                Message.FinishPartition.class
            })
    void aMapOutputOfOneRegionIsSentAgainWhenItsConnectionIsLost(Class<?> where)
            throws IOException {
        daemon.cut.set(where::isInstance);
        Map<Integer, byte[]> written = write(7, 1, 5000, 0, 20_000);
        assertEquals(2, daemon.connections.get());
        assertStreams(written, 7, readAll(gate(0, 3, 2, new long[] {7}, new int[] {2})));
    }

    @ParameterizedTest
    @EnumSource(
            names = {"FLIP_A_BIT", "PARTITION_NOT_FOUND", "OMIT_LAST_BLOCK"},
            value = MockDaemon.Mode.class)
    void aBadMapOutputIsNamed(MockDaemon.Mode mode) throws IOException {
        write(7, 1, 5000, 101);
        daemon.mode = mode;
        InputGate gate = gate(0, 2, 2, new long[] {7}, new int[] {2});
        SourceFailure failure = assertThrows(SourceFailure.class, () -> readAll(gate));
        assertEquals(7L, failure.mapAttemptId());
        assertFalse(failure.isUnreachable());
        gate.close();
    }

    @Test
    void streamsThatSparkKnowsOfMustCome() throws IOException {
        write(7, 1, 5000);
        InputGate gate = gate(0, 2, 2, new long[] {7}, new int[] {2});
        SourceFailure failure = assertThrows(SourceFailure.class, () -> readAll(gate));
        assertTrue(failure.getMessage().contains("1 of the 2"), failure.getMessage());
    }

    @Test
    void wrongTotalsFailTheSource() throws IOException {
        write(7, 1, 5000);
        daemon.mode = MockDaemon.Mode.WRONG_TOTALS;
        InputGate gate = gate(0, 1, 2, new long[] {7}, new int[] {1});
        SourceFailure failure = assertThrows(SourceFailure.class, () -> readAll(gate));
        assertEquals(ErrorCode.END_OF_PARTITION_MISMATCH, failure.code());
    }

    @Test
    void aConnectionThatIsLostAgainAndAgainEndsTheRead() throws IOException {
        write(7, 1, 5000);
        daemon.mode = MockDaemon.Mode.DISCONNECT_IN_DATA;
        InputGate gate = gate(0, 1, 4, new long[] {7}, new int[] {1});
        readers.returnTimeoutMillis = 300;
        assertThrows(ClientException.ConnectionLost.class, () -> readAll(gate));
        assertTrue(readers.reconnected.get() >= 2, readers.reconnected.toString());
        gate.close();
        assertEquals(1, pool.idleConnections(), "only the producer's");
    }

    @Test
    void anIdleConnectionThatIsLostBeforeItsFirstMessageIsReplaced() throws IOException {
        Map<Integer, byte[]> written = write(7, 1, 5000, 300);
        readers = new TestConnections(pool, daemon.endpoint(), Message.ROLE_CONSUMER);
        readers.onLease = daemon::resetConnections;
        Source source = new Source(MockDaemon.ID, "127.0.0.1", 1, new long[] {7}, new int[] {2});
        InputGate gate = new InputGate(readers, 1, 0, 2, 4, List.of(source));
        assertStreams(written, 7, readAll(gate));
        assertTrue(readers.reconnected.get() >= 1);
    }

    /**
     * Three map outputs with many blocks each, read while something goes wrong once at any of their
     * buffers.
     */
    @ParameterizedTest
    @EnumSource(
            names = {"FLIP_A_BIT", "DISCONNECT_IN_DATA", "SKIP_A_BUFFER", "CONNECTION_LOST"},
            value = MockDaemon.Mode.class)
    void whateverGoesWrongOnceIsReadOnceMore(MockDaemon.Mode mode) throws IOException {
        Map<Long, Map<Integer, byte[]>> written = new TreeMap<>();
        for (long attempt = 7; attempt < 10; attempt++) {
            written.put(attempt, write(attempt, (int) attempt, 700, 0, 3000, 1, 70_000, 4000));
        }
        int buffers = 0;
        for (int at = 0; ; at += at < 10 ? 1 : 7) {
            daemon.mode = mode;
            daemon.modeFromBuffer = at;
            daemon.modeTimes.set(1);
            InputGate gate = gate(0, 6, 3, new long[] {7, 8, 9}, new int[] {5, 5, 5});
            Map<String, byte[]> read = readAll(gate);
            assertEquals(15, read.size());
            written.forEach((attempt, streams) -> assertStreams(streams, attempt, read));
            if (daemon.modeTimes.get() == 1) {
                break; // Behind the last buffer there is nothing to go wrong.
            }
            buffers++;
            int asked = readers.refetched.get() + readers.reconnected.get();
            assertEquals(1, asked, mode + " at buffer " + at);
        }
        assertTrue(buffers > 40, buffers + " buffers");
    }

    @Test
    void silenceEndsAtTheDeadline() throws IOException {
        write(7, 1, 5000);
        daemon.mode = MockDaemon.Mode.SILENT;
        InputGate gate = gate(0, 1, 2, new long[] {7}, new int[] {1});
        ClientException.Deadline error =
                assertThrows(ClientException.Deadline.class, () -> readAll(gate));
        assertTrue(error.getMessage().contains("spark.sluice.io.timeout"));
        gate.close();
    }

    @Test
    void aSourceThatStandsStillIsBlamedAndNotTheOwnTaskManager() throws IOException {
        write(7, 1, 5000);
        daemon.mode = MockDaemon.Mode.SILENT;
        daemon.answersPings = true;
        Source other = new Source("tm-other", "127.0.0.9", 1, new long[] {7}, new int[] {1});
        readers = new TestConnections(pool, daemon.endpoint(), Message.ROLE_CONSUMER);
        InputGate gate = new InputGate(readers, 1, 0, 1, 2, List.of(other));
        SourceFailure failure = assertThrows(SourceFailure.class, () -> readAll(gate));
        assertEquals("tm-other", failure.source().taskManagerId());
        assertTrue(failure.isUnreachable());
        gate.close();
    }

    @Test
    void anInterruptEndsTheWait() throws Exception {
        write(7, 1, 5000);
        daemon.mode = MockDaemon.Mode.SILENT;
        InputGate gate = gate(0, 1, 2, new long[] {7}, new int[] {1});
        Thread.currentThread().interrupt();
        assertThrows(ClientException.Interrupted.class, () -> readAll(gate));
        assertTrue(Thread.interrupted(), "the interrupt is left for the task");
        gate.close();
    }

    @Test
    void closeFromAnotherThreadEndsTheWait() throws Exception {
        write(7, 1, 5000);
        daemon.mode = MockDaemon.Mode.SILENT;
        InputGate gate = gate(0, 1, 2, new long[] {7}, new int[] {1});
        java.util.concurrent.FutureTask<Throwable> reader =
                new java.util.concurrent.FutureTask<>(
                        () -> assertThrows(ClientException.Interrupted.class, () -> readAll(gate)));
        Thread thread = new Thread(reader);
        thread.start();
        while (gate.isIdle()) {
            Thread.onSpinWait();
        }
        gate.close();
        assertTrue(reader.get() instanceof ClientException.Interrupted);
    }

    @Test
    void nobodyListens() throws IOException {
        Endpoint gone = daemon.endpoint();
        daemon.close();
        ClientException.ConnectFailed error =
                assertThrows(
                        ClientException.ConnectFailed.class,
                        () -> pool.lease(gone, Message.ROLE_DRIVER));
        assertTrue(error.getMessage().contains("spark.sluice.endpoints"), error.getMessage());
        assertThrows(
                ClientException.ConnectFailed.class,
                () ->
                        pool.lease(
                                new Endpoint("/nonexistent/socket", null, 0), Message.ROLE_DRIVER));
    }
}
