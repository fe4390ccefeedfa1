package io.sluice.client.wire;

import java.util.concurrent.ArrayBlockingQueue;

/**
 * Recycles the memory of received buffers between the tasks of an executor: chunks of one segment,
 * and large ones. Credit bounds the chunks in use, and this pool the idle ones.
 */
public final class ChunkPool {
    /** Default segments of a large chunk. */
    private static final int SEGMENTS_OF_LARGE_CHUNK = 8;

    private final ArrayBlockingQueue<Chunk> idle;
    private final ArrayBlockingQueue<Chunk> idleLarge;

    /**
     * @param maxIdle maximum number of idle chunks of one segment, and as many bytes in large
     *     chunks
     */
    public ChunkPool(int maxIdle) {
        idle = new ArrayBlockingQueue<>(maxIdle);
        idleLarge = new ArrayBlockingQueue<>(Math.max(1, maxIdle / SEGMENTS_OF_LARGE_CHUNK));
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

    /** Recycles a chunk, if any, and those that follow it. */
    public void recycle(Chunk chunk) {
        for (Chunk each = chunk; each != null; ) {
            Chunk next = each.next;
            each.next = null;
            queue(each.bytes.length).offer(each);
            each = next;
        }
    }

    private ArrayBlockingQueue<Chunk> queue(int capacity) {
        return capacity < Chunk.LARGE_BYTES ? idle : idleLarge;
    }

    public int idleChunks() {
        return idle.size() + idleLarge.size();
    }
}
