package io.sluice.client.output;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.connection.ClientOptions;
import io.sluice.client.connection.ConnectionPool;
import io.sluice.client.support.PlayedDaemon;
import io.sluice.client.support.TestFrames;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Tests the producer leg of pipelined shuffles; the test plays the TaskManager. */
@Timeout(60)
class PipelinedPartitionTest {
    private static final long NEVER = TimeUnit.HOURS.toNanos(1);

    private PlayedDaemon daemon;
    private ConnectionPool pool;
    private ClientOptions options;
    private long number;

    @BeforeEach
    void start() throws IOException {
        daemon = new PlayedDaemon();
        options = new ClientOptions("app", "test", 2_000, 20_000, new ChunkPool(64));
        pool = new ConnectionPool(options, 4);
    }

    @AfterEach
    void stop() throws IOException {
        pool.close();
        daemon.close();
    }

    private PipelinedPartition open(int subpartitions, long flushNanos, long credit)
            throws Exception {
        PipelinedPartition partition =
                new PipelinedPartition(
                        daemon.connect(options, Message.ROLE_PRODUCER),
                        pool,
                        5,
                        77,
                        subpartitions,
                        flushNanos);
        Message.OpenPipelinedPartition opening =
                assertInstanceOf(Message.OpenPipelinedPartition.class, daemon.read().message());
        assertEquals(5, opening.shuffleId());
        assertEquals(77, opening.mapAttemptId());
        assertEquals(2, opening.partitionType(), "bounded");
        number = opening.partition();
        daemon.send(new Message.PartitionOpened(number));
        if (credit > 0) {
            daemon.send(new Message.AddCredit(number, credit));
        }
        return partition;
    }

    private static void write(PipelinedPartition partition, int subpartition, int bytes)
            throws IOException {
        partition.write(subpartition, new byte[bytes], 0, bytes);
    }

    private void expectData(int subpartition, int bytes) throws IOException {
        TestFrames.Received data = daemon.read();
        assertEquals(new Message.PipelinedData(number, subpartition, Message.DATA), data.message());
        assertEquals(bytes, data.payload().length);
    }

    private CompletableFuture<Void> finishing(PipelinedPartition partition) {
        return CompletableFuture.runAsync(
                () -> {
                    try {
                        partition.finish();
                    } catch (IOException e) {
                        throw new IllegalStateException(e);
                    }
                });
    }

    @Test
    void aLoneRecordIsSentAtOnceAndTheNextOnesTogether() throws Exception {
        PipelinedPartition partition = open(2, NEVER, 16);
        partition.write(1, new byte[] {1, 2, 3, 4}, 1, 2);
        TestFrames.Received first = daemon.read();
        assertEquals(new Message.PipelinedData(number, 1, Message.DATA), first.message());
        assertArrayEquals(new byte[] {2, 3}, first.payload());
        write(partition, 1, 10);
        write(partition, 0, 20);
        write(partition, 1, 30);
        CompletableFuture<Void> finished = finishing(partition);
        // Nothing came before the end: the interval between flushes is an hour.
        TestFrames.Received one = daemon.read();
        TestFrames.Received other = daemon.read();
        assertEquals(60, one.payload().length + other.payload().length);
        assertEquals(new Message.FinishPartition(number, 62, 0), daemon.read().message());
        assertFalse(finished.isDone(), "it waits for the TaskManager's answer");
        daemon.send(new Message.PartitionFinished(number));
        finished.get(10, TimeUnit.SECONDS);
        assertTrue(partition.join(10_000));
        assertEquals(1, pool.idleConnections());
    }

    @Test
    void aFlushIsDueAfterTheInterval() throws Exception {
        PipelinedPartition partition = open(1, TimeUnit.MILLISECONDS.toNanos(50), 16);
        // Before the first flush, so that the interval is over at the second, however slow this is.
        long before = System.nanoTime();
        write(partition, 0, 1);
        expectData(0, 1);
        write(partition, 0, 2);
        // No thread writes any more: the sender's own clock must flush.
        expectData(0, 2);
        assertTrue(System.nanoTime() - before >= TimeUnit.MILLISECONDS.toNanos(50));
        partition.close();
    }

    @Test
    void withoutCreditTheWriterWaitsAndBuffersFillUp() throws Exception {
        PipelinedPartition partition = open(1, 0, 0);
        for (int i = 0; i < 17 * 8; i++) {
            write(partition, 0, PlayedDaemon.SEGMENT / 8);
        }
        CompletableFuture<Void> blocked =
                CompletableFuture.runAsync(
                        () -> {
                            try {
                                write(partition, 0, 1);
                            } catch (IOException e) {
                                throw new IllegalStateException(e);
                            }
                        });
        assertThrows(
                java.util.concurrent.TimeoutException.class,
                () -> blocked.get(200, TimeUnit.MILLISECONDS));
        assertFalse(daemon.hasMore(), "no data without credit");
        daemon.send(new Message.AddCredit(number, 2));
        expectData(0, PlayedDaemon.SEGMENT);
        expectData(0, PlayedDaemon.SEGMENT);
        blocked.get(10, TimeUnit.SECONDS);
        assertTrue(partition.waitedNanos() > TimeUnit.MILLISECONDS.toNanos(100));
        assertFalse(daemon.hasMore(), "two credits, two buffers");
        partition.close();
    }

    @Test
    void anErrorOfTheTaskManagerReachesTheWriter() throws Exception {
        PipelinedPartition partition = open(1, 0, 16);
        daemon.send(
                new Message.ErrorResponse(
                        number,
                        ErrorCode.PARTITION_RELEASED.number(),
                        1,
                        false,
                        "all readers have gone",
                        "",
                        "",
                        77L));
        assertTrue(partition.join(10_000));
        ClientException.Remote error =
                assertThrows(ClientException.Remote.class, () -> write(partition, 0, 1));
        assertEquals(ErrorCode.PARTITION_RELEASED, error.code());
        assertThrows(ClientException.Remote.class, partition::finish);
    }

    @Test
    void closingBeforeTheEndClosesTheConnection() throws Exception {
        PipelinedPartition partition = open(1, NEVER, 0);
        CompletableFuture<Void> finished = finishing(partition);
        assertEquals(new Message.FinishPartition(number, 0, 0), daemon.read().message());
        partition.close();
        assertTrue(daemon.isClosedByClient());
        assertThrows(ExecutionException.class, () -> finished.get(10, TimeUnit.SECONDS));
        assertThrows(ClientException.Interrupted.class, () -> write(partition, 0, 1));
        assertEquals(0, pool.idleConnections());
    }

    @Test
    void aWaitingWriterPingsTheTaskManager() throws Exception {
        options = new ClientOptions("app", "test", 2_000, 400, new ChunkPool(64));
        PipelinedPartition partition = open(1, 0, 0);
        write(partition, 0, 1);
        for (int i = 0; i < 3; i++) {
            Message.Ping ping = assertInstanceOf(Message.Ping.class, daemon.read().message());
            daemon.send(new Message.Pong(ping.nonce()));
        }
        // Alive and without credit for longer than the deadline: back pressure, not a failure.
        write(partition, 0, 1);
        assertInstanceOf(Message.Ping.class, daemon.read().message());
        assertTrue(partition.join(10_000), "an unanswered one is the end");
        assertThrows(ClientException.Deadline.class, () -> write(partition, 0, 1));
    }
}
