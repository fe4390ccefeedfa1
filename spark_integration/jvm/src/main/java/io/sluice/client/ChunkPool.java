package io.sluice.client;

import java.util.concurrent.ArrayBlockingQueue;

/**
 * Recycles the memory of received buffers between the tasks of an executor.
 *
 * <p>How many are in use at once is bounded by the credit of the open gates; this bounds the idle ones.
 */
public final class ChunkPool {
  private final ArrayBlockingQueue<Chunk> idle;

  public ChunkPool(int maxIdle) {
    idle = new ArrayBlockingQueue<>(maxIdle);
  }

  Chunk take(int capacity) {
    Chunk chunk = idle.poll();
    if (chunk == null || chunk.bytes.length < capacity) {
      chunk = new Chunk(capacity);
    }
    chunk.position = 0;
    chunk.length = 0;
    return chunk;
  }

  void recycle(Chunk chunk) {
    idle.offer(chunk);
  }

  public int idleChunks() {
    return idle.size();
  }
}
