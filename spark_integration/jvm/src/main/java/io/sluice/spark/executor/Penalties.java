package io.sluice.spark.executor;

import io.sluice.client.wire.Endpoint;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

/**
 * Remembers endpoints that did not answer lately, so that others are tried first for a while.
 * Thread safe.
 *
 * <p>The time that a failed attempt took says how expensive the next one is. The endpoint is passed
 * over for ten times as long. So at most a tenth of the time goes into waiting for it, and an
 * endpoint that refuses at once is soon tried again.
 */
final class Penalties {
    static final long LEAST_NANOS = TimeUnit.SECONDS.toNanos(1);
    static final long MOST_NANOS = TimeUnit.SECONDS.toNanos(10);
    private static final int TIMES = 10;

    /**
     * Separate by role: a draining TaskManager takes no new map outputs but still serves readers.
     */
    private record Key(Endpoint endpoint, int role) {}

    private record Penalty(long end, int failuresInARow) {}

    private final Map<Key, Penalty> penalties = new ConcurrentHashMap<>();
    private final LongSupplier clock;

    /**
     * @param clock nanoseconds from any origin, as {@link System#nanoTime}
     */
    Penalties(LongSupplier clock) {
        this.clock = clock;
    }

    long now() {
        return clock.getAsLong();
    }

    /**
     * @param began start of the attempt that has failed now
     */
    void failed(Endpoint endpoint, int role, long began) {
        long took = clock.getAsLong() - began;
        punish(endpoint, role, Math.min(MOST_NANOS, Math.max(LEAST_NANOS, TIMES * took)));
    }

    /** Passes over an endpoint that answers, but that has no room for what tasks bring. */
    void passOver(Endpoint endpoint, int role) {
        punish(endpoint, role, MOST_NANOS);
    }

    private void punish(Endpoint endpoint, int role, long nanos) {
        long end = clock.getAsLong() + nanos;
        penalties.compute(
                new Key(endpoint, role),
                (key, before) ->
                        new Penalty(end, before == null ? 1 : before.failuresInARow() + 1));
    }

    void answered(Endpoint endpoint, int role) {
        penalties.remove(new Key(endpoint, role));
    }

    /**
     * Returns the number of attempts that have failed since the endpoint last answered, so that a
     * caller need not report the same failure every second.
     */
    int failuresInARow(Endpoint endpoint, int role) {
        Penalty penalty = penalties.get(new Key(endpoint, role));
        return penalty == null ? 0 : penalty.failuresInARow();
    }

    boolean has(Endpoint endpoint, int role) {
        Penalty penalty = penalties.get(new Key(endpoint, role));
        return penalty != null && clock.getAsLong() - penalty.end() < 0;
    }
}
