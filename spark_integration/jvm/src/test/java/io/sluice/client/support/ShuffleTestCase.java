package io.sluice.client.support;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.connection.ClientOptions;
import io.sluice.client.connection.ConnectionPool;
import io.sluice.client.gate.BlockStream;
import io.sluice.client.gate.InputGate;
import io.sluice.client.gate.Source;
import io.sluice.client.output.MapOutputWriter;
import io.sluice.client.output.RegionPool;
import io.sluice.client.wire.Blocks;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Timeout;

/** Writes map outputs to a mock daemon and reads them through a gate. */
@Timeout(60)
public abstract class ShuffleTestCase {
    public MockDaemon daemon;
    public ConnectionPool pool;
    public RegionPool regions;
    public ChunkPool chunks;
    public int blockBytes = Blocks.MAX_STORED_BYTES;
    public TestConnections readers;

    /** Those of the last writer. */
    public TestConnections writers;

    @BeforeEach
    public void start() throws IOException {
        daemon = newDaemon();
        chunks = new ChunkPool(64);
        pool = new ConnectionPool(options(), 4);
        regions = new RegionPool(64 * 1024, 2, 0);
    }

    @AfterEach
    public void stop() throws IOException {
        pool.close();
        daemon.close();
    }

    public MockDaemon newDaemon() throws IOException {
        return new MockDaemon();
    }

    public ClientOptions options() {
        return new ClientOptions("app", "test", 2_000, 2_000, chunks);
    }

    public MapOutputWriter writer(long attempt) {
        writers = new TestConnections(pool, daemon.endpoint(), Message.ROLE_PRODUCER);
        return new MapOutputWriter(writers, regions, 1, attempt, 100, blockBytes);
    }

    public Map<Integer, byte[]> write(long attempt, int seed, int... sizes) throws IOException {
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

    public InputGate gate(int start, int end, int credit, long[] attempts, int[] streams)
            throws IOException {
        Source source = new Source(MockDaemon.ID, "127.0.0.1", 1, attempts, streams);
        readers = new TestConnections(pool, daemon.endpoint(), Message.ROLE_CONSUMER);
        return new InputGate(readers, 1, start, end, credit, false, List.of(source));
    }

    public static Map<String, byte[]> readAll(InputGate gate) throws IOException {
        Map<String, byte[]> streams = new TreeMap<>();
        for (BlockStream stream = gate.next(); stream != null; stream = gate.next()) {
            byte[] bytes = stream.readAllBytes();
            assertTrue(bytes.length > 0, "an empty stream is not worth a decoder");
            streams.merge(
                    stream.mapAttemptId() + "/" + stream.subpartition(),
                    bytes,
                    ShuffleTestCase::joined);
        }
        return streams;
    }

    public static byte[] joined(byte[] first, byte[] second) {
        byte[] both = Arrays.copyOf(first, first.length + second.length);
        System.arraycopy(second, 0, both, first.length, second.length);
        return both;
    }

    public static void assertStreams(
            Map<Integer, byte[]> written, long attempt, Map<String, byte[]> read) {
        written.forEach(
                (partition, bytes) ->
                        assertArrayEquals(bytes, read.get(attempt + "/" + partition)));
    }

    /**
     * Writes {@code sizes[pass][partition]} bytes; returns them by partition, in the order of
     * reading.
     */
    public Map<Integer, byte[]> writePasses(long attempt, boolean inPlace, int[]... sizes)
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
                    streams.merge(partition, bytes, ShuffleTestCase::joined);
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

    public void writeInPlace(MapOutputWriter writer, byte[] bytes) throws IOException {
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
}
