package io.sluice.client.gate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.output.MapOutputWriter;
import io.sluice.client.support.MockDaemon;
import io.sluice.client.support.ShuffleTestCase;
import io.sluice.client.support.TestConnections;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.DataProcesses;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Reads through the two processes of one mock TaskManager. */
@Timeout(60)
class UnionInputGateTest extends ShuffleTestCase {
    private static final DataProcesses PROCESSES = new DataProcesses("127.0.0.1", 7337, 2);

    /** Process 1; {@link #daemon} is process 0. */
    private MockDaemon second;

    private final List<InputGate> gates = new ArrayList<>();
    private int producers;

    @BeforeEach
    void startSecond() throws IOException {
        second = newDaemon();
        second.id = "tm-second";
        second.process = 1;
        for (MockDaemon each : List.of(daemon, second)) {
            each.processes = 2;
            each.advertisedPort = PROCESSES.portOf(each.process);
        }
    }

    @AfterEach
    void stopSecond() throws IOException {
        second.close();
    }

    /** Writes two partitions of 3000 and 5000 bytes. */
    private void write(MockDaemon to, long... attempts) throws IOException {
        for (long attempt : attempts) {
            MapOutputWriter writer =
                    new MapOutputWriter(
                            new TestConnections(pool, to.endpoint(), Message.ROLE_PRODUCER),
                            regions,
                            1,
                            attempt,
                            100,
                            blockBytes);
            for (int partition = 0; partition < 2; partition++) {
                writer.beginPartition(partition);
                writer.write(new byte[3000 + 2000 * partition], 0, 3000 + 2000 * partition);
                writer.endPartition();
            }
            writer.commit();
        }
        producers = pool.idleConnections();
    }

    private static Source source(MockDaemon of, long[] attempts, int... mapIndexes) {
        int[] streams = new int[attempts.length];
        Arrays.fill(streams, 2);
        return new Source(
                of.id, "127.0.0.1", PROCESSES.portOf(of.process), attempts, streams, mapIndexes);
    }

    private UnionInputGate.Opener opener(MockDaemon through, boolean inMapOrder, Source... from) {
        return () -> {
            TestConnections connections =
                    new TestConnections(pool, through.endpoint(), Message.ROLE_CONSUMER);
            InputGate gate = new InputGate(connections, 1, 0, 2, 64, inMapOrder, List.of(from));
            gates.add(gate);
            return gate;
        };
    }

    private UnionInputGate union(boolean inMapOrder, Source ofFirst, Source ofSecond)
            throws IOException {
        return UnionInputGate.open(
                List.of(opener(daemon, inMapOrder, ofFirst), opener(second, inMapOrder, ofSecond)),
                inMapOrder);
    }

    private UnionInputGate unionOfOneOutputEach() throws IOException {
        write(daemon, 70);
        write(second, 71);
        return union(false, source(daemon, new long[] {70}, 0), source(second, new long[] {71}, 1));
    }

    /** Returns map attempt and partition of each stream, as they are read. */
    private static List<String> readStreams(UnionInputGate gate) throws IOException {
        List<String> streams = new ArrayList<>();
        for (BlockStream stream = gate.next(); stream != null; stream = gate.next()) {
            assertEquals(3000 + 2000 * stream.subpartition(), stream.readAllBytes().length);
            streams.add(stream.mapAttemptId() + "/" + stream.subpartition());
        }
        return streams;
    }

    private void awaitData() {
        for (InputGate gate : gates) {
            gate.awaitAny(List.of());
        }
    }

    @Test
    void gatesAreReadInMapOrder() throws IOException {
        write(daemon, 70, 73, 74);
        write(second, 71, 72, 75);
        Source first = source(daemon, new long[] {70, 73, 74}, 0, 3, 4);
        Source other = source(second, new long[] {71, 72, 75}, 1, 2, 5);
        List<String> expected = new ArrayList<>();
        for (int attempt = 70; attempt < 76; attempt++) {
            expected.addAll(List.of(attempt + "/0", attempt + "/1"));
        }
        assertEquals(expected, readStreams(union(true, first, other)));
        assertEquals(producers + 2, pool.idleConnections(), "both connections are released");
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 3, 6, 9, 12, 15})
    void theMapOrderSurvivesALostConnection(int atBuffer) throws IOException {
        write(daemon, 70, 72);
        write(second, 71, 73);
        second.mode = MockDaemon.Mode.CONNECTION_LOST;
        second.modeFromBuffer = atBuffer;
        second.modeTimes.set(1);
        UnionInputGate gate =
                union(
                        true,
                        source(daemon, new long[] {70, 72}, 0, 2),
                        source(second, new long[] {71, 73}, 1, 3));
        assertEquals(
                List.of("70/0", "70/1", "71/0", "71/1", "72/0", "72/1", "73/0", "73/1"),
                readStreams(gate));
        assertEquals(0, second.modeTimes.get());
    }

    @Test
    void gatesWithDataTakeTurns() throws IOException {
        UnionInputGate gate = unionOfOneOutputEach();
        awaitData();
        assertEquals(List.of("70/0", "71/0", "70/1", "71/1"), readStreams(gate));
        assertNull(gate.next());
    }

    @Test
    void aGateWithoutDataDoesNotStopTheOthers() throws IOException {
        daemon.mode = MockDaemon.Mode.SILENT;
        UnionInputGate gate = unionOfOneOutputEach();
        assertEquals(71L, gate.next().mapAttemptId());
        assertEquals(71L, gate.next().mapAttemptId());
        assertThrows(ClientException.Deadline.class, gate::next);
        gate.close();
        assertEquals(producers + 1, pool.idleConnections());
    }

    @Test
    void theEndOfAChannelDoesNotStopTheOtherGates() throws IOException {
        daemon.answersPings = true;
        daemon.silentSources = Set.of("tm-silent");
        write(daemon, 70);
        write(second, 71, 72, 73, 74);
        Source silent = new Source("tm-silent", "host", 9000, new long[] {75}, new int[] {2});
        UnionInputGate gate =
                UnionInputGate.open(
                        List.of(
                                opener(daemon, false, source(daemon, new long[] {70}, 0), silent),
                                opener(
                                        second,
                                        false,
                                        source(second, new long[] {71, 72, 73, 74}, 1, 2, 3, 4))),
                        false);
        awaitData();
        List<Long> read = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            read.add(gate.next().mapAttemptId());
        }
        assertEquals(
                List.of(70L, 70L, 71L, 71L, 72L, 72L, 73L, 73L, 74L, 74L),
                read.stream().sorted().toList());
        SourceFailure failure = assertThrows(SourceFailure.class, gate::next);
        assertEquals("tm-silent", failure.source().taskManagerId());
    }

    @Test
    void theRetriesOfASourceDoNotStopTheOtherGates() throws IOException {
        AtomicBoolean dead = new AtomicBoolean(true);
        daemon.fault = (channel, buffer) -> dead.get() ? ErrorCode.CONNECTION_LOST : null;
        write(daemon, 70);
        write(second, 71, 72);
        UnionInputGate gate =
                union(
                        false,
                        source(daemon, new long[] {70}, 0),
                        source(second, new long[] {71, 72}, 1, 2));
        awaitData();
        List<Long> read = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            read.add(gate.next().mapAttemptId());
        }
        assertEquals(List.of(71L, 71L, 72L, 72L), read);
        dead.set(false);
        assertEquals(List.of("70/0", "70/1"), readStreams(gate));
    }

    @Test
    void theDeadlineHoldsIfNoGateHasData() throws IOException {
        daemon.mode = MockDaemon.Mode.SILENT;
        second.mode = MockDaemon.Mode.SILENT;
        UnionInputGate gate = unionOfOneOutputEach();
        ClientException.Deadline failure = assertThrows(ClientException.Deadline.class, gate::next);
        assertTrue(failure.getMessage().contains("spark.sluice.io.timeout"));
    }

    @Test
    void aGateRecoversWhileAnotherIsRead() throws IOException {
        second.mode = MockDaemon.Mode.CONNECTION_LOST;
        second.modeFromBuffer = 4;
        second.modeTimes.set(1);
        UnionInputGate gate = unionOfOneOutputEach();
        List<String> read = readStreams(gate);
        assertEquals(List.of("70/0", "70/1", "71/0", "71/1"), read.stream().sorted().toList());
        assertEquals(0, second.modeTimes.get());
    }

    @Test
    void aFailureOfOneGateClosesAll() throws IOException {
        daemon.mode = MockDaemon.Mode.SILENT;
        second.mode = MockDaemon.Mode.PARTITION_NOT_FOUND;
        UnionInputGate gate = unionOfOneOutputEach();
        SourceFailure failure = assertThrows(SourceFailure.class, () -> readStreams(gate));
        assertEquals(ErrorCode.PARTITION_NOT_FOUND, failure.code());
        assertThrows(ClientException.Interrupted.class, gates.get(0)::next);
        assertThrows(ClientException.Interrupted.class, gate::next);
        assertEquals(producers + 1, pool.idleConnections(), "of the gate that has not failed");
    }

    @Test
    void theFirstGateIsClosedIfTheSecondCannotBeOpened() throws IOException {
        write(daemon, 70);
        second.close();
        Source first = source(daemon, new long[] {70}, 0);
        Source other = source(second, new long[] {71}, 1);
        assertThrows(ClientException.ConnectFailed.class, () -> union(false, first, other));
        assertThrows(ClientException.Interrupted.class, gates.get(0)::next);
        assertEquals(producers + 1, pool.idleConnections());
    }

    @Test
    void anEarlyCloseReleasesAllConnections() throws IOException {
        UnionInputGate gate = unionOfOneOutputEach();
        assertFalse(gate.isReadByCaller());
        assertEquals(5, gate.next().readNBytes(5).length);
        assertTrue(gate.isReadByCaller());
        gate.close();
        gate.close();
        assertEquals(producers + 2, pool.idleConnections());
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void closingFromAnotherThreadEndsTheWait(boolean inMapOrder) throws Exception {
        daemon.mode = MockDaemon.Mode.SILENT;
        second.mode = MockDaemon.Mode.SILENT;
        write(daemon, 70);
        write(second, 71);
        UnionInputGate gate =
                union(
                        inMapOrder,
                        source(daemon, new long[] {70}, 0),
                        source(second, new long[] {71}, 1));
        FutureTask<Throwable> reader =
                new FutureTask<>(() -> assertThrows(IOException.class, gate::next));
        Thread thread = new Thread(reader);
        thread.start();
        // In map order, only the gate with the first map output is read.
        while (gates.get(0).isIdle() || (!inMapOrder && gates.get(1).isIdle())) {
            Thread.onSpinWait();
        }
        gate.close();
        assertTrue(reader.get() instanceof ClientException.Interrupted, reader.get().toString());
        int released = pool.idleConnections() - producers;
        if (inMapOrder) {
            assertEquals(1, released, "only that of a gate nobody reads");
        } else {
            // The reader may close the second gate itself, after the failure of the first.
            assertTrue(released <= 1, "that of the first gate is in an unknown state");
        }
    }

    @Test
    void anInterruptEndsTheWait() throws IOException {
        daemon.mode = MockDaemon.Mode.SILENT;
        second.mode = MockDaemon.Mode.SILENT;
        UnionInputGate gate = unionOfOneOutputEach();
        Thread.currentThread().interrupt();
        assertThrows(ClientException.Interrupted.class, gate::next);
        assertTrue(Thread.interrupted(), "the interrupt is left for the task");
    }

    @Test
    void countersAreThoseOfAllGates() throws IOException {
        UnionInputGate gate = unionOfOneOutputEach();
        readStreams(gate);
        assertEquals(gates.get(0).localBytes() + gates.get(1).localBytes(), gate.localBytes());
        assertTrue(gate.localBytes() > 2 * 8000);
        assertEquals(0, gate.remoteBytes());
        assertEquals(gates.get(0).waitedNanos() + gates.get(1).waitedNanos(), gate.waitedNanos());
    }

    /** The mock daemon serves its outputs under any id. */
    @Test
    void dataOfAnotherProcessOfTheTaskManagerIsLocal() throws IOException {
        write(daemon, 70, 71);
        Source ofSecond = source(second, new long[] {70}, 0);
        Source elsewhere = new Source("other", "127.0.0.1", 9000, new long[] {71}, new int[] {2});
        InputGate gate = opener(daemon, true, ofSecond, elsewhere).open();
        assertTrue(gate.next().isLocal());
        assertTrue(gate.next().isLocal());
        assertFalse(gate.next().isLocal());
        gate.close();
        assertTrue(gate.localBytes() > 8000);
        assertTrue(gate.remoteBytes() > 0);
    }
}
