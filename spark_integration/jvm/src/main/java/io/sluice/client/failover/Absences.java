package io.sluice.client.failover;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

/**
 * Remembers TaskManagers that were out of reach while their data could be read elsewhere. Other
 * tasks of the executor then begin elsewhere, and do not each wait for the same failure. Thread
 * safe.
 *
 * <p>A TaskManager is tried again after a while: it may be back, and its own tasks read there
 * without a way over the network.
 */
public final class Absences {
    static final long REMEMBERED_NANOS = TimeUnit.SECONDS.toNanos(10);

    private final Map<String, Long> ends = new ConcurrentHashMap<>();
    private final LongSupplier clock;

    public Absences() {
        this(System::nanoTime);
    }

    /**
     * @param clock nanoseconds from any origin, as {@link System#nanoTime}
     */
    Absences(LongSupplier clock) {
        this.clock = clock;
    }

    /** Remembers a TaskManager that is out of reach now. */
    public void add(String taskManagerId) {
        long now = clock.getAsLong();
        ends.values().removeIf(end -> end - now <= 0);
        ends.put(taskManagerId, now + REMEMBERED_NANOS);
    }

    /** Forgets a TaskManager that answers, or that alone has what is wanted. */
    public void remove(String taskManagerId) {
        ends.remove(taskManagerId);
    }

    /** Returns whether a TaskManager was out of reach lately. */
    public boolean has(String taskManagerId) {
        Long end = ends.get(taskManagerId);
        return end != null && end - clock.getAsLong() > 0;
    }
}
