package io.sluice.spark.executor;

import io.sluice.client.wire.Endpoint;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

/**
 * Makes tasks avoid endpoints that did not answer, for ten times as long as the failed attempt
 * took. So waiting costs at most a tenth of the time, and an endpoint that refuses at once is soon
 * tried again. Thread safe.
 */
final class EndpointBackoff {
    static final long MIN_NANOS = TimeUnit.SECONDS.toNanos(1);
    static final long MAX_NANOS = TimeUnit.SECONDS.toNanos(10);
    private static final int TIMES = 10;

    /** Separate by role: a draining TaskManager takes no new map outputs but serves readers. */
    private record Key(Endpoint endpoint, int role) {}

    private record Pause(long end, int failuresInARow) {}

    private final Map<Key, Pause> pauses = new ConcurrentHashMap<>();
    private final LongSupplier clock;

    /**
     * @param clock nanoseconds from any origin, as {@link System#nanoTime}
     */
    EndpointBackoff(LongSupplier clock) {
        this.clock = clock;
    }

    long now() {
        return clock.getAsLong();
    }

    /**
     * @param began when the failed attempt started
     */
    void failed(Endpoint endpoint, int role, long began) {
        long took = clock.getAsLong() - began;
        backOff(endpoint, role, Math.min(MAX_NANOS, Math.max(MIN_NANOS, TIMES * took)));
    }

    /** Avoids an endpoint without room for map outputs. */
    void avoid(Endpoint endpoint, int role) {
        backOff(endpoint, role, MAX_NANOS);
    }

    private void backOff(Endpoint endpoint, int role, long nanos) {
        long end = clock.getAsLong() + nanos;
        pauses.compute(
                new Key(endpoint, role),
                (key, before) -> new Pause(end, before == null ? 1 : before.failuresInARow() + 1));
    }

    void answered(Endpoint endpoint, int role) {
        pauses.remove(new Key(endpoint, role));
    }

    /** Returns the number of failures since the endpoint last answered. */
    int failuresInARow(Endpoint endpoint, int role) {
        Pause pause = pauses.get(new Key(endpoint, role));
        return pause == null ? 0 : pause.failuresInARow();
    }

    boolean has(Endpoint endpoint, int role) {
        Pause pause = pauses.get(new Key(endpoint, role));
        return pause != null && clock.getAsLong() - pause.end() < 0;
    }
}
