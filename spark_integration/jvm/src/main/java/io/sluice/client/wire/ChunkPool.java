package io.sluice.client.wire;

import java.util.concurrent.ArrayBlockingQueue;

/**
 * Recycles the memory of received buffers between the tasks of an executor. There are chunks of one
 * segment, and large ones.
 *
 * <p>The credit of the open gates bounds the chunks in use; this pool bounds the idle ones.
 */
public final class ChunkPool {
    /** A large chunk has the size of eight segments by default. */
    private static final int SEGMENTS_FOR_A_LARGE_ONE = 8;

    private final ArrayBlockingQueue<Chunk> idle;
    private final ArrayBlockingQueue<Chunk> idleLarge;

    /**
     * @param maxIdle number of unused chunks of one segment to keep; large chunks of as many bytes
     *     are kept besides
     */
    public ChunkPool(int maxIdle) {
        idle = new ArrayBlockingQueue<>(maxIdle);
        idleLarge = new ArrayBlockingQueue<>(Math.max(1, maxIdle / SEGMENTS_FOR_A_LARGE_ONE));
    }

    public Chunk take(int capacity) {
        Chunk chunk = queue(capacity).poll();
        if (chunk == null || chunk.bytes.length < capacity) {
            chunk = new Chunk(capacity);
        }
        chunk.position = 0;
        chunk.length = 0;
        return chunk;
    }

    public void recycle(Chunk chunk) {
        queue(chunk.bytes.length).offer(chunk);
    }

    private ArrayBlockingQueue<Chunk> queue(int capacity) {
        return capacity < Frames.MAX_LARGE_PAYLOAD_BYTES ? idle : idleLarge;
    }

    public int idleChunks() {
        return idle.size() + idleLarge.size();
    }
}
