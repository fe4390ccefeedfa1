package io.sluice.client.gate;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.Reachable;
import io.sluice.client.connection.ClientOptions;
import io.sluice.client.connection.ConnectionPool;
import io.sluice.client.failover.ReplicaLocator;
import io.sluice.client.failover.TaskManagerAddress;
import io.sluice.client.output.RegionPool;
import io.sluice.client.support.MockDaemon;
import io.sluice.client.support.ShuffleTestCase;
import io.sluice.client.support.TestConnections;
import io.sluice.client.wire.Blocks;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Reads through gates from the mock daemon. */
@Timeout(60)
class InputGateTest extends ShuffleTestCase {
    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3, 16})
    void blocksLargerThanTheCreditAreReadable(int credit) throws IOException {
        regions = new RegionPool(1024 * 1024, 2, 0);
        Map<Integer, byte[]> written = write(7, 3, 2_000_000);
        assertStreams(written, 7, readAll(gate(0, 1, credit, new long[] {7}, new int[] {1})));
    }

    @Test
    void aLargeStreamIsReadWithBoundedMemory() throws IOException {
        regions = new RegionPool(1024 * 1024, 2, 0);
        byte[] written = write(7, 3, 8_000_000).get(0);
        InputGate gate = gate(0, 1, 16, new long[] {7}, new int[] {1});
        BlockStream stream = gate.next();
        byte[] piece = new byte[2_000_000];
        long before = Reachable.from(gate).arrayBytes();
        for (int done = 0; done < written.length; done += piece.length) {
            assertEquals(piece.length, stream.readNBytes(piece, 0, piece.length));
            assertArrayEquals(Arrays.copyOfRange(written, done, done + piece.length), piece);
            long more = Reachable.from(gate).arrayBytes() - before;
            assertTrue(more < 1_000_000, more + " bytes");
        }
        assertEquals(-1, stream.read());
        gate.close();
    }

    @Test
    void theBlockBufferReturnsToThePool() throws IOException {
        write(7, 3, 50_000);
        readAll(gate(0, 1, 2, new long[] {7}, new int[] {1}));
        int idle = chunks.idleChunks();
        // The daemon sends small buffers only, so the large one was a block's.
        chunks.take(Blocks.MAX_STORED_BYTES);
        assertEquals(idle - 1, chunks.idleChunks());
    }

    @Test
    void aMissingEndOfAPartitionIsDetected() throws IOException {
        // A block of the last region, whose 28 bytes are not served, ends partition 0.
        writePasses(7, false, new int[] {101}, new int[] {});
        daemon.outputs.get(7L).remove(1);
        InputGate gate = gate(0, 1, 2, new long[] {7}, new int[] {1});
        SourceFailure failure = assertThrows(SourceFailure.class, () -> readAll(gate));
        assertTrue(failure.getMessage().contains("no last block"), failure.getMessage());
        gate.close();
    }

    @Test
    void aMissingRegionIsDetected() throws IOException {
        writePasses(7, false, new int[] {101}, new int[] {102}, new int[] {103});
        daemon.outputs.get(7L).remove(1);
        InputGate gate = gate(0, 1, 2, new long[] {7}, new int[] {1});
        SourceFailure failure = assertThrows(SourceFailure.class, () -> readAll(gate));
        assertTrue(
                failure.getMessage().contains("received block 2 of partition 0, expected block 1"),
                failure.getMessage());
        gate.close();
    }

    @Test
    void emptyOutputsAndEmptyRangesWork() throws IOException {
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
                        false,
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

    @ParameterizedTest
    @EnumSource(
            names = {"FLIP_A_BIT", "PARTITION_NOT_FOUND", "OMIT_LAST_BLOCK"},
            value = MockDaemon.Mode.class)
    void theFailureNamesTheBadMapOutput(MockDaemon.Mode mode) throws IOException {
        write(7, 1, 5000, 101);
        daemon.mode = mode;
        InputGate gate = gate(0, 2, 2, new long[] {7}, new int[] {2});
        SourceFailure failure = assertThrows(SourceFailure.class, () -> readAll(gate));
        assertEquals(7L, failure.mapAttemptId());
        assertFalse(failure.isUnreachable());
        gate.close();
    }

    @Test
    void aMissingStreamFailsTheSource() throws IOException {
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
    void aConnectionThatIsLostRepeatedlyEndsTheRead() throws IOException {
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
        InputGate gate = new InputGate(readers, 1, 0, 2, 4, false, List.of(source));
        assertStreams(written, 7, readAll(gate));
        assertTrue(readers.reconnected.get() >= 1);
    }

    /** Returns the map attempt of each stream, as they are read. */
    private static List<Long> attempts(InputGate gate) throws IOException {
        List<Long> attempts = new ArrayList<>();
        for (BlockStream stream = gate.next(); stream != null; stream = gate.next()) {
            attempts.add(stream.mapAttemptId());
        }
        return attempts;
    }

    private InputGate gate(boolean inMapOrder, Source... sources) throws IOException {
        readers = new TestConnections(pool, daemon.endpoint(), Message.ROLE_CONSUMER);
        return new InputGate(readers, 1, 0, 2, 64, inMapOrder, List.of(sources));
    }

    private static Source source(String taskManager, long[] attempts, int... mapIndexes) {
        int[] streams = new int[attempts.length];
        Arrays.fill(streams, 2);
        return new Source(taskManager, "127.0.0.1", 1, attempts, streams, mapIndexes);
    }

    /** The daemon serves its channels one after the other, the last outputs first. */
    @Test
    void severalTaskManagersAreReadInMapOrder() throws IOException {
        for (long attempt = 70; attempt < 76; attempt++) {
            write(attempt, 1, 3000, 5000);
        }
        Source odd = source("tm-odd", new long[] {75, 74, 73}, 1, 3, 5);
        Source even = source("tm-even", new long[] {72, 71, 70}, 0, 2, 4);
        assertEquals(
                List.of(72L, 72L, 75L, 75L, 71L, 71L, 74L, 74L, 70L, 70L, 73L, 73L),
                attempts(gate(true, odd, even)));
    }

    @Test
    void withoutMapOrderTheFirstDataIsReadFirst() throws IOException {
        write(70, 1, 3000, 5000);
        write(71, 1, 3000, 5000);
        Source second = source("tm-second", new long[] {71}, 1);
        Source first = source("tm-first", new long[] {70}, 0);
        assertEquals(71L, attempts(gate(false, second, first)).get(0));
    }

    /** A source that was read in part is two channels, which may be served at the same time. */
    @Test
    void channelsOfTheSameTaskManagerAreReadInMapOrder() throws IOException {
        write(70, 1, 3000, 5000);
        write(71, 1, 3000, 5000);
        Source rest = source(MockDaemon.ID, new long[] {71}, 1);
        Source begun = source(MockDaemon.ID, new long[] {70}, 0);
        assertEquals(List.of(70L, 70L, 71L, 71L), attempts(gate(false, rest, begun)));
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aReadThatWasInterruptedKeepsTheOrder(boolean inMapOrder) throws IOException {
        for (long attempt = 70; attempt < 74; attempt++) {
            write(attempt, 1, 3000, 5000);
        }
        daemon.mode = MockDaemon.Mode.CONNECTION_LOST;
        for (int at = 0; at < 32; at += 3) {
            daemon.modeFromBuffer = at;
            daemon.modeTimes.set(1);
            Source source = source(MockDaemon.ID, new long[] {73, 70, 72, 71}, 0, 1, 2, 3);
            assertEquals(
                    List.of(73L, 73L, 70L, 70L, 72L, 72L, 71L, 71L),
                    attempts(gate(inMapOrder, source)),
                    "failure at buffer " + at);
            assertEquals(0, daemon.modeTimes.get());
        }
    }

    /**
     * Reads three map outputs of many blocks while something goes wrong once, at each of their
     * buffers in turn.
     */
    @ParameterizedTest
    @EnumSource(
            names = {"FLIP_A_BIT", "DISCONNECT_IN_DATA", "SKIP_A_BUFFER", "CONNECTION_LOST"},
            value = MockDaemon.Mode.class)
    void aSingleFailureAtAnyBufferIsRecovered(MockDaemon.Mode mode) throws IOException {
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
                break; // Nothing can go wrong behind the last buffer.
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

    private void allowSilence(long millis) {
        pool.close();
        ClientOptions options =
                new ClientOptions(
                        "app", "test", 2_000, 3_000, millis, chunks, options().tls(), null);
        pool = new ConnectionPool(options, 4);
    }

    @Test
    void aSilentTaskManagerIsLeftForAnother() throws IOException {
        Map<Integer, byte[]> written = write(7, 1, 5000);
        try (MockDaemon another = newDaemon()) {
            another.id = "tm-another";
            another.outputs.putAll(daemon.outputs);
            daemon.mode = MockDaemon.Mode.SILENT;
            allowSilence(300);
            readers = new TestConnections(pool, daemon.endpoint(), Message.ROLE_CONSUMER);
            readers.others.add(another.endpoint());
            TaskManagerAddress replica = new TaskManagerAddress(another.id, "127.0.0.1", 1);
            readers.places =
                    (shuffleId, ids, avoided) -> {
                        assertEquals(Set.of(MockDaemon.ID), avoided);
                        return new ReplicaLocator.Replicas(List.of(replica), Set.of());
                    };
            Source source =
                    new Source(MockDaemon.ID, "127.0.0.1", 1, new long[] {7}, new int[] {1});
            InputGate gate = new InputGate(readers, 1, 0, 1, 2, false, List.of(source));
            assertStreams(written, 7, readAll(gate));
            assertEquals(1, readers.failedOver.get());
            assertEquals(List.of(daemon.endpoint()), readers.passedOver);
        }
    }

    @Test
    void aTaskManagerThatAnswersPingsIsWaitedFor() throws IOException {
        write(7, 1, 5000);
        daemon.mode = MockDaemon.Mode.SILENT;
        daemon.answersPings = true;
        allowSilence(300);
        InputGate gate = gate(0, 1, 2, new long[] {7}, new int[] {1});
        assertThrows(ClientException.Deadline.class, () -> readAll(gate));
        assertEquals(List.of(), readers.passedOver);
        gate.close();
    }

    @Test
    void aStalledSourceIsBlamedAndNotTheOwnTaskManager() throws IOException {
        write(7, 1, 5000);
        daemon.mode = MockDaemon.Mode.SILENT;
        daemon.answersPings = true;
        Source other = new Source("tm-other", "127.0.0.9", 1, new long[] {7}, new int[] {1});
        readers = new TestConnections(pool, daemon.endpoint(), Message.ROLE_CONSUMER);
        InputGate gate = new InputGate(readers, 1, 0, 1, 2, false, List.of(other));
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
    void closingFromAnotherThreadEndsTheWait() throws Exception {
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
}
