package io.sluice.client.failover;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

/**
 * Remembers for ten seconds which TaskManagers were unreachable while a replica of their data could
 * be read, so that other tasks of the executor start with the replica. Thread safe.
 */
public final class UnreachableCache {
    static final long REMEMBERED_NANOS = TimeUnit.SECONDS.toNanos(10);

    private final Map<String, Long> ends = new ConcurrentHashMap<>();
    private final LongSupplier clock;

    public UnreachableCache() {
        this(System::nanoTime);
    }

    /**
     * @param clock nanoseconds from any origin, as {@link System#nanoTime}
     */
    UnreachableCache(LongSupplier clock) {
        this.clock = clock;
    }

    /** Records an unreachable TaskManager. */
    public void add(String taskManagerId) {
        long now = clock.getAsLong();
        ends.values().removeIf(end -> end - now <= 0);
        ends.put(taskManagerId, now + REMEMBERED_NANOS);
    }

    /** Removes a TaskManager that answers, or whose data has no replica. */
    public void remove(String taskManagerId) {
        ends.remove(taskManagerId);
    }

    /** Returns whether a TaskManager was unreachable recently. */
    public boolean has(String taskManagerId) {
        Long end = ends.get(taskManagerId);
        return end != null && end - clock.getAsLong() > 0;
    }
}
