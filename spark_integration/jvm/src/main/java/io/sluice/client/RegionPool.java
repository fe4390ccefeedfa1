package io.sluice.client;

import java.nio.ByteBuffer;
import java.util.concurrent.ArrayBlockingQueue;

/** Recycles region buffers between the tasks of an executor: fresh direct memory of megabytes is dear. */
public final class RegionPool {
  private final int regionBytes;
  private final ArrayBlockingQueue<ByteBuffer> idle;

  /**
   * @param regionBytes size of each buffer
   * @param maxIdle how many unused ones are kept
   */
  public RegionPool(int regionBytes, int maxIdle) {
    this.regionBytes = regionBytes;
    this.idle = new ArrayBlockingQueue<>(maxIdle);
  }

  /** A direct buffer: the socket takes it as it is, without a copy. */
  ByteBuffer take() {
    ByteBuffer region = idle.poll();
    return region != null ? region : ByteBuffer.allocateDirect(regionBytes);
  }

  void recycle(ByteBuffer region) {
    idle.offer(region);
  }

  int regionBytes() {
    return regionBytes;
  }

  public int idleRegions() {
    return idle.size();
  }
}
