package io.sluice.spark;

import io.sluice.client.Endpoint;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

/**
 * Endpoints that did not answer lately: others are tried before them for a while. Thread safe.
 *
 * <p>What a failed attempt took says how dear the next one is. An endpoint is passed over for ten times as long, so that a
 * tenth of the time at most goes into waiting for it, and one that refuses at once is soon used again when it is back.
 */
final class Penalties {
  static final long LEAST_NANOS = TimeUnit.SECONDS.toNanos(1);
  static final long MOST_NANOS = TimeUnit.SECONDS.toNanos(10);
  private static final int TIMES = 10;

  /** By role: one that takes no new map outputs because it drains still serves readers. */
  private record Key(Endpoint endpoint, int role) {}

  private final Map<Key, Long> ends = new ConcurrentHashMap<>();
  private final LongSupplier clock;

  /** @param clock nanoseconds from any origin, as {@link System#nanoTime} */
  Penalties(LongSupplier clock) {
    this.clock = clock;
  }

  long now() {
    return clock.getAsLong();
  }

  /** @param began when the attempt began that has failed now */
  void failed(Endpoint endpoint, int role, long began) {
    long now = clock.getAsLong();
    long penalty = Math.min(MOST_NANOS, Math.max(LEAST_NANOS, TIMES * (now - began)));
    ends.put(new Key(endpoint, role), now + penalty);
  }

  void answered(Endpoint endpoint, int role) {
    ends.remove(new Key(endpoint, role));
  }

  boolean has(Endpoint endpoint, int role) {
    Long end = ends.get(new Key(endpoint, role));
    return end != null && clock.getAsLong() - end < 0;
  }
}
