package io.sluice.client.gate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.connection.ClientOptions;
import io.sluice.client.connection.ConnectionPool;
import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.support.PlayedDaemon;
import io.sluice.client.support.TestEvents;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Tests the consumer leg of pipelined shuffles; the test plays the TaskManager. */
@Timeout(60)
class PipelinedGateTest {
    private PlayedDaemon daemon;
    private ConnectionPool pool;
    private ClientOptions options;
    private ChunkPool chunks;
    private Message.OpenGate opening;
    private final long[] sequence = new long[2];
    private final long[] bytes = new long[2];

    @BeforeEach
    void start() throws IOException {
        daemon = new PlayedDaemon();
        chunks = new ChunkPool(64);
        options = new ClientOptions("app", "test", 2_000, 20_000, chunks);
        pool = new ConnectionPool(options, 4);
    }

    @AfterEach
    void stop() throws IOException {
        pool.close();
        daemon.close();
    }

    private PipelinedGate open(int credit) throws Exception {
        return open(daemon.connect(options, Message.ROLE_CONSUMER), credit);
    }

    private PipelinedGate open(TaskManagerConnection connection, int credit) throws Exception {
        List<Source> sources =
                List.of(
                        new Source(PlayedDaemon.ID, "127.0.0.1", 1, new long[] {70}, new int[] {1}),
                        new Source("other", "127.0.0.2", 1, new long[] {71}, new int[] {1}));
        PipelinedGate gate = new PipelinedGate(connection, pool, 5, 3, credit, sources);
        opening = assertInstanceOf(Message.OpenGate.class, daemon.read().message());
        assertEquals(3, opening.startSubpartition());
        assertEquals(4, opening.endSubpartition());
        assertEquals(credit, opening.initialCredit());
        daemon.send(new Message.GateOpened(opening.gate()));
        return gate;
    }

    private long channel(int source) {
        return opening.channels().get(source).channel();
    }

    private void data(int source, byte[] payload) throws IOException {
        daemon.send(
                new Message.BufferResponse(channel(source), sequence[source]++, 0, Message.DATA),
                payload);
        bytes[source] += payload.length;
    }

    private void end(int source) throws IOException {
        byte[] event = TestEvents.endOfPartition(bytes[source], sequence[source]);
        daemon.send(
                new Message.BufferResponse(channel(source), sequence[source], 0, Message.EVENT),
                event);
    }

    private static byte[] record(String text) {
        byte[] content = text.getBytes(StandardCharsets.US_ASCII);
        return ByteBuffer.allocate(4 + content.length).putInt(content.length).put(content).array();
    }

    private static String next(PipelinedGate gate) throws IOException {
        PipelinedGate.ReceivedRecord record = gate.next();
        assertNotNull(record);
        return record.source()
                + ":"
                + new String(
                        record.bytes(),
                        record.offset(),
                        record.length(),
                        StandardCharsets.US_ASCII);
    }

    @Test
    void recordsAreReadFromAnyChannelThatHasThem() throws Exception {
        PipelinedGate gate = open(2);
        data(1, record("a"));
        assertEquals("1:a", next(gate));
        data(1, record("b"));
        assertEquals("1:b", next(gate), "the silent channel keeps nobody waiting");
        data(0, record("c"));
        assertEquals("0:c", next(gate));
        end(0);
        data(1, record(""));
        assertEquals("1:", next(gate));
        end(1);
        CompletableFuture<Void> confirmed = CompletableFuture.runAsync(this::confirmClose);
        assertNull(gate.next());
        confirmed.get(10, TimeUnit.SECONDS);
        assertNull(gate.next());
        assertEquals(5, gate.localBytes());
        assertEquals(14, gate.remoteBytes());
        assertEquals(1, pool.idleConnections());
    }

    @Test
    void aLargePayloadIsAChainOfChunksForOneCredit() throws Exception {
        PipelinedGate gate = open(1);
        byte[] stream = new byte[1024 * 1024];
        ByteBuffer records = ByteBuffer.wrap(stream);
        String text = "x".repeat(100_000 - 4);
        while (records.remaining() >= 100_000) {
            records.put(record(text));
        }
        data(0, Arrays.copyOf(stream, records.position()));
        end(0);
        data(1, record("first"));
        data(1, record("second"));
        end(1);
        int read = 0;
        int small = 0;
        while (small < 2 || read < records.position()) {
            PipelinedGate.ReceivedRecord each = gate.next();
            if (each.source() == 0) {
                read += each.length() + 4;
            } else {
                small++;
            }
        }
        CompletableFuture<Void> confirmed = CompletableFuture.runAsync(this::confirmClose);
        assertNull(gate.next());
        confirmed.get(10, TimeUnit.SECONDS);
        assertTrue(chunks.idleChunks() >= 6, "four of the large payload, and two small ones");
        assertEquals(records.position(), gate.localBytes());
    }

    @Test
    void creditComesBackOnceForEachPayload() throws Exception {
        PipelinedGate gate = open(1);
        byte[] stream = new byte[1_000_000];
        ByteBuffer records = ByteBuffer.wrap(stream);
        while (records.hasRemaining()) {
            records.put(record("x".repeat(100_000 - 4)));
        }
        data(0, stream);
        for (int read = 0; read < 9; read++) {
            assertEquals("0:".length() + 100_000 - 4, next(gate).length());
        }
        assertFalse(daemon.hasMore(), "a part of the payload is still unread");
        next(gate);
        data(0, record("small"));
        assertEquals("0:small", next(gate));
        data(0, record("last"));
        end(0);
        end(1);
        assertEquals("0:last", next(gate));
        CompletableFuture<Long> confirmed = CompletableFuture.supplyAsync(this::creditUntilClose);
        assertNull(gate.next());
        assertEquals(2, confirmed.get(10, TimeUnit.SECONDS), "none for the payload before the end");
    }

    private long creditUntilClose() {
        long credit = 0;
        try {
            while (true) {
                Message message = daemon.read().message();
                if (message instanceof Message.AddCredit granted) {
                    credit += granted.credit();
                } else if (message instanceof Message.CloseGate close) {
                    daemon.send(new Message.GateClosed(close.gate()));
                    return credit;
                }
            }
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    @Test
    void theChunksOfACutPayloadAreRecycled() throws Exception {
        PipelinedGate gate = open(1);
        daemon.sendCut(
                new Message.BufferResponse(channel(0), 0, 0, Message.DATA), new byte[1_000_000]);
        assertThrows(IOException.class, gate::next);
        gate.close();
        assertEquals(4, chunks.idleChunks());
    }

    @Test
    void anEventIsRefusedByItsLengthBeforeItArrives() throws Exception {
        PipelinedGate gate = open(1);
        daemon.sendCut(
                new Message.BufferResponse(channel(0), 0, 0, Message.EVENT), new byte[1_000_000]);
        IOException refused = assertThrows(IOException.class, gate::next);
        assertTrue(refused.getMessage().contains("payload of an event"), refused.getMessage());
    }

    @Test
    void anAnnouncedBacklogChangesNothing() throws Exception {
        PipelinedGate gate = open(2);
        daemon.send(new Message.BacklogAnnouncement(channel(0), 3));
        data(0, record("a"));
        daemon.send(new Message.BacklogAnnouncement(channel(0), 0xFFFF_FFFFL));
        assertEquals("0:a", next(gate));
        data(1, record("b"));
        assertEquals("1:b", next(gate));
    }

    @Test
    void aGateThatHasReceivedEverythingIsNotWaitedFor() throws Exception {
        PipelinedGate gate = open(2);
        end(0);
        end(1);
        assertNull(gate.next());
        assertEquals(1, pool.idleConnections(), "the TaskManager has not answered");
        Message.CloseGate close =
                assertInstanceOf(Message.CloseGate.class, daemon.read().message());

        TaskManagerConnection again = pool.lease(daemon.endpoint(), Message.ROLE_CONSUMER);
        Arrays.fill(sequence, 0);
        PipelinedGate next = open(again, 2);
        daemon.send(new Message.GateClosed(close.gate()));
        daemon.send(new Message.ErrorResponse(close.gate(), 1, 1, false, "late", "", "", null));
        data(0, record("a"));
        assertEquals("0:a", next(next), "late words on the gate before are nothing to this one");
    }

    private void confirmClose() {
        try {
            while (true) {
                if (daemon.read().message() instanceof Message.CloseGate close) {
                    daemon.send(new Message.GateClosed(close.gate()));
                    return;
                }
            }
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    @Test
    void aRecordMaySpanBuffersWhereverTheyAreCut() throws Exception {
        byte[] stream =
                ByteBuffer.allocate(4000)
                        .put(record("x".repeat(1500)))
                        .put(record("y"))
                        .put(record("z".repeat(2000)))
                        .array();
        stream = Arrays.copyOf(stream, 1504 + 5 + 2004);
        for (int cut : new int[] {1, 3, 4, 5, 700, 1024}) {
            Arrays.fill(sequence, 0);
            Arrays.fill(bytes, 0);
            try (PlayedDaemon fresh = new PlayedDaemon()) {
                daemon.close();
                daemon = fresh;
                PipelinedGate gate = open(1024);
                int offset = 0;
                byte[] all = stream;
                CompletableFuture<Void> sending =
                        CompletableFuture.runAsync(
                                () -> {
                                    try {
                                        for (int at = offset; at < all.length; at += cut) {
                                            data(
                                                    0,
                                                    Arrays.copyOfRange(
                                                            all,
                                                            at,
                                                            Math.min(all.length, at + cut)));
                                        }
                                    } catch (IOException e) {
                                        throw new IllegalStateException(e);
                                    }
                                });
                assertEquals("0:" + "x".repeat(1500), next(gate));
                assertEquals("0:y", next(gate));
                assertEquals("0:" + "z".repeat(2000), next(gate));
                sending.get(10, TimeUnit.SECONDS);
                assertEquals(all.length, gate.localBytes());
            }
        }
        daemon = new PlayedDaemon();
    }

    @Test
    void onlyBuffersThatWereReadBecomeCredit() throws Exception {
        PipelinedGate gate = open(4);
        for (int i = 0; i < 4; i++) {
            data(0, record("record " + i));
        }
        for (int i = 0; i < 2; i++) {
            assertEquals("0:record " + i, next(gate));
        }
        assertFalse(daemon.hasMore(), "the second one may still be in use");
        assertEquals("0:record 2", next(gate));
        assertEquals(new Message.AddCredit(channel(0), 2), daemon.read().message());
        gate.close();
    }

    @Test
    void aProducerThatFailsFailsTheReader() throws Exception {
        PipelinedGate gate = open(2);
        daemon.send(
                new Message.ErrorResponse(
                        channel(1),
                        ErrorCode.PRODUCER_FAILED.number(),
                        1,
                        false,
                        "the task was lost",
                        "",
                        "",
                        71L));
        SourceFailure failure = assertThrows(SourceFailure.class, gate::next);
        assertEquals(ErrorCode.PRODUCER_FAILED, failure.code());
        assertEquals("other", failure.source().taskManagerId());
        gate.close();
        assertTrue(daemon.isClosedByClient());
    }

    @Test
    void dataOfAChannelThatWasNeverRequestedAreRefused() throws Exception {
        long gateAndChannels = 3;
        for (long beside : new long[] {-1, 0, gateAndChannels, 0x8000_0001L}) {
            try (PlayedDaemon fresh = new PlayedDaemon()) {
                daemon.close();
                daemon = fresh;
                PipelinedGate gate = open(2);
                long number = opening.gate() + beside;
                daemon.send(new Message.BufferResponse(number, 0, 0, Message.DATA), record("a"));
                ClientException.Protocol failure =
                        assertThrows(ClientException.Protocol.class, gate::next);
                assertEquals(ErrorCode.UNKNOWN_CHANNEL, failure.code());
                assertTrue(
                        failure.getMessage().contains("channel " + number), failure.getMessage());
                gate.close();
            }
        }
        daemon = new PlayedDaemon();
    }

    @Test
    void anEndInsideARecordIsAnError() throws Exception {
        PipelinedGate gate = open(2);
        data(0, Arrays.copyOf(record("half"), 6));
        end(0);
        SourceFailure failure = assertThrows(SourceFailure.class, gate::next);
        assertTrue(failure.getMessage().contains("ends inside a record"), failure.getMessage());
    }

    @Test
    void wrongTotalsAreAnError() throws Exception {
        PipelinedGate gate = open(2);
        data(0, record("a"));
        bytes[0]++;
        end(0);
        SourceFailure failure =
                assertThrows(
                        SourceFailure.class,
                        () -> {
                            while (true) {
                                next(gate);
                            }
                        });
        assertEquals(ErrorCode.END_OF_PARTITION_MISMATCH, failure.code());
    }

    @Test
    void aQuietSourceIsAcceptedButASilentTaskManagerFails() throws Exception {
        options = new ClientOptions("app", "test", 2_000, 400, chunks);
        PipelinedGate gate = open(2);
        CompletableFuture<Void> alive =
                CompletableFuture.runAsync(
                        () -> {
                            try {
                                for (int i = 0; i < 3; i++) {
                                    Message.Ping ping = (Message.Ping) daemon.read().message();
                                    daemon.send(new Message.Pong(ping.nonce()));
                                }
                                data(0, record("late"));
                            } catch (IOException e) {
                                throw new IllegalStateException(e);
                            }
                        });
        assertEquals("0:late", next(gate));
        alive.get(10, TimeUnit.SECONDS);
        assertThrows(ClientException.Deadline.class, gate::next);
    }

    @Test
    void closingFromAnotherThreadEndsTheWait() throws Exception {
        PipelinedGate gate = open(2);
        data(0, record("a"));
        CompletableFuture<Throwable> reading = new CompletableFuture<>();
        Thread reader =
                new Thread(
                        () -> {
                            try {
                                next(gate);
                                reading.complete(null);
                                gate.next();
                            } catch (Throwable e) {
                                ended.complete(e);
                            }
                        });
        reader.start();
        assertNull(reading.get(10, TimeUnit.SECONDS));
        gate.close();
        assertInstanceOf(ClientException.Interrupted.class, ended.get(10, TimeUnit.SECONDS));
        reader.join();
    }

    private final CompletableFuture<Throwable> ended = new CompletableFuture<>();
}
