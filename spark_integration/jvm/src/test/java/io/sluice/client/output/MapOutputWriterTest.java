package io.sluice.client.output;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.gate.InputGate;
import io.sluice.client.support.MockDaemon;
import io.sluice.client.support.ShuffleTestCase;
import io.sluice.client.wire.Blocks;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Writes map outputs to the mock daemon. */
@Timeout(60)
public class MapOutputWriterTest extends ShuffleTestCase {
    @Test
    void aRegionIsSentCompletelyBeforeTheTaskContinues() throws Exception {
        // More than the sockets hold, to a TaskManager that reads slower than the test writes.
        daemon.mode = MockDaemon.Mode.SLOW_READER;
        regions = new RegionPool(16 * 1024 * 1024, 1, 0);
        MapOutputWriter writer = writer(7);
        writer.beginPass(false);
        writer.beginPartition(0);
        byte[] bytes = new byte[15 * 1024 * 1024];
        writer.write(bytes, 0, bytes.length);
        writer.endPartition();
        writer.beginPass(true);
        // The writer does nothing now, like a task that computes.
        assertTrue(
                daemon.regionsReceived.tryAcquire(20, TimeUnit.SECONDS),
                "a frame is stuck in the executor");
        writer.commit();
    }

    @Test
    void reserveRefusesMoreThanABlock() throws IOException {
        MapOutputWriter writer = writer(7);
        writer.beginPartition(0);
        assertEquals(-1, writer.reserve(blockBytes + 1));
        assertEquals(
                -1, writer.reserve(64 * 1024 - Blocks.HEADER_BYTES + 1), "the region is smaller");
        assertTrue(writer.reserve(64 * 1024 - Blocks.HEADER_BYTES) >= 0);
        writer.abort();
    }

    @Test
    void aCommitNeedsTheLastPass() throws IOException {
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
    void anAbortedOutputIsNotStored() throws IOException {
        MapOutputWriter writer = writer(7);
        writer.beginPartition(0);
        writer.write(new byte[200_000], 0, 200_000);
        writer.abort();
        writer.abort();
        assertTrue(daemon.outputs.isEmpty());
        assertEquals(1, pool.idleConnections(), "the abort was confirmed");
        assertThrows(IOException.class, () -> writer.write(new byte[10], 0, 10));
    }

    @ParameterizedTest
    @EnumSource(names = {"STORAGE_FULL", "QUOTA_EXCEEDED"})
    void aTaskManagerWithoutRoomLeavesTheMapOutputToAnother(ErrorCode refusal) throws IOException {
        daemon.refusal = refusal;
        try (MockDaemon another = newDaemon()) {
            another.id = "tm-another";
            MapOutputWriter writer = writer(7);
            writers.others.add(another.endpoint());
            writeOneStream(writer, 200_000);
            assertEquals("tm-another", writer.commit().taskManagerId());
            assertEquals(List.of(daemon.endpoint()), writers.passedOver);
            assertTrue(daemon.outputs.isEmpty());
            long stored =
                    another.outputs.get(7L).stream()
                            .flatMap(region -> region.values().stream())
                            .mapToLong(slice -> slice.length)
                            .sum();
            assertTrue(stored > 200_000, stored + " bytes, headers of blocks included");
        }
    }

    /** The first regions are there and nowhere else. */
    @Test
    void aTaskManagerThatIsFullInTheMiddleFailsTheMapOutput() throws IOException {
        daemon.refusal = ErrorCode.STORAGE_FULL;
        daemon.refusedFrom = 2;
        try (MockDaemon another = newDaemon()) {
            another.id = "tm-another";
            MapOutputWriter writer = writer(7);
            writers.others.add(another.endpoint());
            ClientException.Remote failure = assertRefused(writer);
            assertEquals(ErrorCode.STORAGE_FULL, failure.code());
            assertEquals(List.of(daemon.endpoint()), writers.passedOver, "by the next attempt");
            assertEquals(0, another.connections.get());
        }
    }

    @Test
    void anEmptyMapOutputGoesElsewhereToo() throws IOException {
        daemon.refusesOutputs = ErrorCode.QUOTA_EXCEEDED;
        try (MockDaemon another = newDaemon()) {
            another.id = "tm-another";
            MapOutputWriter writer = writer(7);
            writers.others.add(another.endpoint());
            assertEquals("tm-another", writer.commit().taskManagerId());
        }
    }

    /** It is known by a second address, as one with a Unix socket is. */
    @Test
    void whereNoneHasRoomTheMapOutputFailsWithTheReasonOfEach() throws IOException {
        daemon.refusal = ErrorCode.QUOTA_EXCEEDED;
        try (MockDaemon sameAgain = newDaemon();
                MockDaemon another = newDaemon()) {
            another.id = "tm-another";
            another.refusal = ErrorCode.STORAGE_FULL;
            MapOutputWriter writer = writer(7);
            writers.others.add(sameAgain.endpoint());
            writers.others.add(another.endpoint());
            ClientException.Remote failure = assertRefused(writer);
            assertEquals(ErrorCode.STORAGE_FULL, failure.code());
            ClientException.Remote before = (ClientException.Remote) failure.getSuppressed()[0];
            assertEquals(ErrorCode.QUOTA_EXCEEDED, before.code());
            assertTrue(writers.passedOver.contains(sameAgain.endpoint()));
            assertTrue(sameAgain.outputs.isEmpty());
        }
    }

    @Test
    void anotherErrorIsNotTriedElsewhere() throws IOException {
        daemon.refusal = ErrorCode.REGION_MISMATCH;
        MapOutputWriter writer = writer(7);
        assertEquals(ErrorCode.REGION_MISMATCH, assertRefused(writer).code());
        assertEquals(1, daemon.connections.get());
        assertTrue(writers.passedOver.isEmpty());
    }

    private static void writeOneStream(MapOutputWriter writer, int bytes) throws IOException {
        writer.beginPartition(0);
        writer.write(new byte[bytes], 0, bytes);
        writer.endPartition();
    }

    private static ClientException.Remote assertRefused(MapOutputWriter writer) {
        ClientException.Remote failure =
                assertThrows(
                        ClientException.Remote.class,
                        () -> {
                            writeOneStream(writer, 200_000);
                            writer.commit();
                        });
        writer.abort();
        return failure;
    }

    /**
     * Loses the connection of a map output of several regions at each of its messages in turn,
     * together with the answer or before it.
     */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aMapOutputContinuesWhereverItsConnectionIsLost(boolean answerOnly) throws IOException {
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
                break; // The message with that number does not exist any more.
            }
            assertTrue(daemon.connections.get() > before);
        }
        assertTrue(messages > 200, messages + " messages");
    }

    @Test
    void regionsLostByTheTaskManagerFailTheMapOutput() throws IOException {
        daemon.cut.set(m -> m instanceof Message.BeginRegion begin && begin.region() == 2);
        daemon.forgetsSecured = true;
        IOException error = assertThrows(IOException.class, () -> write(7, 1, 300_000));
        assertTrue(error.getMessage().contains("cannot be resumed"), error.getMessage());
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

    /** Requests a commit, and returns when the request has arrived, before the answer. */
    private MapOutputWriter committing(boolean losesAnswer) throws Exception {
        CountDownLatch arrived = new CountDownLatch(1);
        daemon.cutAfter = true;
        daemon.cut.set(
                m -> {
                    if (m instanceof Message.FinishPartition) {
                        arrived.countDown();
                    }
                    return losesAnswer && m instanceof Message.FinishPartition;
                });
        MapOutputWriter writer = writer(7);
        writeOneStream(writer, 20_000);
        writer.requestCommit();
        assertTrue(arrived.await(20, TimeUnit.SECONDS), "the commit waits for its task");
        return writer;
    }

    @Test
    void aRequestedCommitDoesNotWaitForItsTask() throws Exception {
        MapOutputWriter writer = committing(false);
        assertThrows(IllegalStateException.class, writer::requestCommit);
        assertThrows(IOException.class, () -> writer.write(new byte[10], 0, 10));
        assertEquals(MockDaemon.ID, writer.commit().taskManagerId());
        assertEquals(1, daemon.connections.get());
        assertEquals(1, daemon.outputs.get(7L).size());
        assertEquals(1, pool.idleConnections());
    }

    @Test
    void aRequestedCommitSurvivesTheLossOfItsConnection() throws Exception {
        MapOutputWriter writer = committing(true);
        assertEquals(MockDaemon.ID, writer.commit().taskManagerId());
        assertEquals(2, daemon.connections.get());
        assertEquals(1, daemon.outputs.get(7L).size());
    }

    @Test
    void aRequestedCommitThatIsRefusedGoesToAnotherTaskManager() throws IOException {
        daemon.refusal = ErrorCode.QUOTA_EXCEEDED;
        try (MockDaemon another = newDaemon()) {
            another.id = "tm-another";
            MapOutputWriter writer = writer(7);
            writers.others.add(another.endpoint());
            writeOneStream(writer, 20_000);
            writer.requestCommit();
            assertEquals("tm-another", writer.commit().taskManagerId());
            assertTrue(daemon.outputs.isEmpty());
        }
    }

    @Test
    void anAnswerCountsEvenIfTheConnectionIsClosedAfterIt() throws Exception {
        TaskManagerConnection connection = pool.lease(daemon.endpoint(), Message.ROLE_PRODUCER);
        ProducerLeg leg = new ProducerLeg(connection);
        leg.open(1, 7, 4);
        leg.requestCommit(0, 0, Replicas.ONE);
        while (!daemon.outputs.containsKey(7L)) {
            connection.receive();
        }
        daemon.close();
        assertThrows(
                ClientException.ConnectionLost.class,
                () -> {
                    while (true) {
                        connection.receive();
                    }
                });
        leg.awaitFinished();
    }

    @Test
    void aTaskThatEndsDuringItsCommitGivesTheConnectionBack() throws Exception {
        MapOutputWriter writer = committing(false);
        writer.abort();
        assertEquals(1, pool.idleConnections(), "the abort was confirmed");
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void severalPassesMakeOneOutput(boolean inPlace) throws IOException {
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
    void anEmptyLastPassEndsAllPartitions() throws IOException {
        Map<Integer, byte[]> written = writePasses(7, false, new int[] {10, 0, 3000}, new int[] {});
        assertStreams(written, 7, readAll(gate(0, 3, 2, new long[] {7}, new int[] {2})));
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 3, 16})
    void largePayloadsAreSentAndReceived(int credit) throws IOException {
        daemon.mode = MockDaemon.Mode.LARGE_PAYLOADS;
        regions = new RegionPool(1024 * 1024, 2, 0);
        Map<Integer, byte[]> written = write(7, 3, 10, 2_000_000, 0, 300_000, 70_000);
        assertEquals(100_000, daemon.largestPayload, "what RegionOpened said");
        assertStreams(written, 7, readAll(gate(0, 5, credit, new long[] {7}, new int[] {4})));
        assertEquals(2, pool.idleConnections());
    }

    @ParameterizedTest
    @EnumSource(
            names = {"NORMAL", "BYTE_BY_BYTE", "LARGE_PAYLOADS"},
            value = MockDaemon.Mode.class)
    void writtenBytesAreReadBack(MockDaemon.Mode mode) throws IOException {
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
}
