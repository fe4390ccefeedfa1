package io.sluice.client.support;

import io.sluice.client.connection.ClientOptions;
import io.sluice.client.connection.ConnectionPool;
import io.sluice.client.gate.InputGate;
import io.sluice.client.gate.Source;
import io.sluice.client.output.MapOutputWriter;
import io.sluice.client.output.RegionPool;
import io.sluice.client.wire.Blocks;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Message;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** Keeps a map output on a mock daemon for tests outside of this package, and reads it back. */
public final class WrittenOutput implements AutoCloseable {
    private static final int PARTITIONS = 100;

    private final MockDaemon daemon = new MockDaemon();
    private final ConnectionPool pool =
            new ConnectionPool(
                    new ClientOptions("app", "test", 20_000, 20_000, new ChunkPool(64)), 4);
    private final MapOutputWriter output;

    public WrittenOutput(int regionBytes, int blockBytes) throws IOException {
        output =
                new MapOutputWriter(
                        new TestConnections(pool, daemon.endpoint(), Message.ROLE_PRODUCER),
                        new RegionPool(regionBytes, 2, 0),
                        1,
                        7,
                        PARTITIONS,
                        blockBytes);
    }

    public MapOutputWriter output() {
        return output;
    }

    /** Returns how many regions the daemon has received so far. */
    public int regionsReceived() {
        return daemon.regionsReceived.availablePermits();
    }

    /** Waits until the daemon has received that many regions. */
    public void awaitRegions(int count) throws InterruptedException {
        daemon.regionsReceived.acquire(count);
    }

    /** Makes the daemon grant no more credit, like a stopped one. */
    public void withholdCredit() {
        daemon.withholdsCredit = true;
    }

    /** Waits until a region has been announced for which there is no credit. */
    public void awaitWithheldCredit() throws InterruptedException {
        daemon.creditsWithheld.acquire();
    }

    /** Makes the daemon refuse all further regions. */
    public void refuseRegions() {
        daemon.refusal = ErrorCode.STORAGE_FULL;
    }

    /** Commits; returns the bytes of all streams of each partition. */
    public Map<Integer, byte[]> read() throws IOException {
        output.commit();
        Map<Integer, ByteArrayOutputStream> found = new TreeMap<>();
        for (TreeMap<Integer, byte[]> region : daemon.outputs.get(7L)) {
            region.forEach(
                    (partition, blocks) -> {
                        ByteArrayOutputStream into =
                                found.computeIfAbsent(
                                        partition, key -> new ByteArrayOutputStream());
                        int at = 0;
                        while (at < blocks.length) {
                            int stored = Blocks.getInt(blocks, at + Blocks.STORED_LENGTH);
                            into.write(blocks, at + Blocks.HEADER_BYTES, stored);
                            at += Blocks.HEADER_BYTES + stored;
                        }
                    });
        }
        Map<Integer, byte[]> bytes = new TreeMap<>();
        found.forEach((partition, stream) -> bytes.put(partition, stream.toByteArray()));
        return bytes;
    }

    /** Opens a gate that reads one partition of the committed output. */
    public InputGate gate(int partition) throws IOException {
        Source source = new Source(MockDaemon.ID, "127.0.0.1", 1, new long[] {7}, new int[] {1});
        return new InputGate(
                new TestConnections(pool, daemon.endpoint(), Message.ROLE_CONSUMER),
                1,
                partition,
                partition + 1,
                4,
                false,
                List.of(source));
    }

    /** Returns the number of connections that no gate uses. */
    public int idleConnections() {
        return pool.idleConnections();
    }

    @Override
    public void close() throws IOException {
        output.abort();
        pool.close();
        daemon.close();
    }
}
