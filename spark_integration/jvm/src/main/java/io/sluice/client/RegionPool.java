package io.sluice.client;

import java.util.concurrent.ArrayBlockingQueue;

/** Recycles region buffers between the tasks of an executor: fresh arrays of megabytes are dear. */
public final class RegionPool {
  private final int regionBytes;
  private final ArrayBlockingQueue<byte[]> idle;

  /**
   * @param regionBytes size of each buffer
   * @param maxIdle how many unused ones are kept
   */
  public RegionPool(int regionBytes, int maxIdle) {
    this.regionBytes = regionBytes;
    this.idle = new ArrayBlockingQueue<>(maxIdle);
  }

  byte[] take() {
    byte[] region = idle.poll();
    return region != null ? region : new byte[regionBytes];
  }

  void recycle(byte[] region) {
    idle.offer(region);
  }

  public int idleRegions() {
    return idle.size();
  }
}
