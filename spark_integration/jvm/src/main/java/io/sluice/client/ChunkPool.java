package io.sluice.client;

import java.util.concurrent.ArrayBlockingQueue;

/**
 * Recycles the memory of received buffers between the tasks of an executor: chunks of a segment,
 * and large ones.
 *
 * <p>How many are in use at once is bounded by the credit of the open gates; this bounds the idle
 * ones.
 */
public final class ChunkPool {
    /** A large chunk has the size of eight segments by default. */
    private static final int SEGMENTS_FOR_A_LARGE_ONE = 8;

    private final ArrayBlockingQueue<Chunk> idle;
    private final ArrayBlockingQueue<Chunk> idleLarge;

    /**
     * @param maxIdle how many unused chunks of a segment are kept, and as many bytes again in large
     *     ones
     */
    public ChunkPool(int maxIdle) {
        idle = new ArrayBlockingQueue<>(maxIdle);
        idleLarge = new ArrayBlockingQueue<>(Math.max(1, maxIdle / SEGMENTS_FOR_A_LARGE_ONE));
    }

    Chunk take(int capacity) {
        Chunk chunk = queue(capacity).poll();
        if (chunk == null || chunk.bytes.length < capacity) {
            chunk = new Chunk(capacity);
        }
        chunk.position = 0;
        chunk.length = 0;
        return chunk;
    }

    void recycle(Chunk chunk) {
        queue(chunk.bytes.length).offer(chunk);
    }

    private ArrayBlockingQueue<Chunk> queue(int capacity) {
        return capacity < Frames.MAX_LARGE_PAYLOAD_BYTES ? idle : idleLarge;
    }

    public int idleChunks() {
        return idle.size() + idleLarge.size();
    }
}
