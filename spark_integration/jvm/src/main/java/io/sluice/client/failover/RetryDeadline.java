package io.sluice.client.failover;

import io.sluice.client.wire.ClientException;
import java.util.OptionalLong;
import java.util.concurrent.TimeUnit;

/** Schedules retries, with growing pauses, until a deadline. */
public final class RetryDeadline {
    private static final long FIRST_PAUSE_MILLIS = 100;
    private static final long MAX_PAUSE_MILLIS = 1_000;

    private final long deadlineNanos;
    private final Backoff backoff = new Backoff(FIRST_PAUSE_MILLIS, MAX_PAUSE_MILLIS);

    public RetryDeadline(long timeoutMillis) {
        this.deadlineNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
    }

    /**
     * Sleeps until the next attempt; returns false at once if the deadline has passed.
     *
     * @param what the awaited event, for the message of an interrupt
     * @throws ClientException.Interrupted if the thread was interrupted meanwhile
     */
    public boolean pause(String what) throws ClientException.Interrupted {
        OptionalLong next = nextAttempt();
        if (next.isEmpty()) {
            return false;
        }
        try {
            TimeUnit.NANOSECONDS.sleep(next.getAsLong() - System.nanoTime());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new ClientException.Interrupted("interrupted while waiting for " + what);
        }
        return true;
    }

    /**
     * Returns when the next attempt is due, as {@link System#nanoTime}; empty after the deadline.
     */
    public OptionalLong nextAttempt() {
        long now = System.nanoTime();
        long leftNanos = deadlineNanos - now;
        return leftNanos <= 0
                ? OptionalLong.empty()
                : OptionalLong.of(
                        now
                                + Math.min(
                                        TimeUnit.MILLISECONDS.toNanos(backoff.nextMillis()),
                                        leftNanos));
    }
}
