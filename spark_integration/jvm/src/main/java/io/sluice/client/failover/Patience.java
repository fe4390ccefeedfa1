package io.sluice.client.failover;

import io.sluice.client.wire.ClientException;
import java.util.OptionalLong;
import java.util.concurrent.TimeUnit;

/**
 * Paces the attempts to reach a TaskManager that may be back soon: the pauses grow, up to a
 * deadline.
 */
public final class Patience {
    private static final long FIRST_PAUSE_MILLIS = 100;
    private static final long LONGEST_PAUSE_MILLIS = 1_000;

    private final long deadlineNanos;
    private long pauseMillis = FIRST_PAUSE_MILLIS;

    public Patience(long timeoutMillis) {
        this.deadlineNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
    }

    /**
     * Pauses; returns whether another attempt is due.
     *
     * @param what names the awaited event in the message of an interrupt
     * @return false, at once, when the deadline is over
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
     * Returns when the next attempt is due, as {@link System#nanoTime}; empty when the deadline is
     * over.
     */
    public OptionalLong nextAttempt() {
        long now = System.nanoTime();
        long leftNanos = deadlineNanos - now;
        if (leftNanos <= 0) {
            return OptionalLong.empty();
        }
        long pauseNanos = Math.min(TimeUnit.MILLISECONDS.toNanos(pauseMillis), leftNanos);
        pauseMillis = Math.min(pauseMillis * 2, LONGEST_PAUSE_MILLIS);
        return OptionalLong.of(now + pauseNanos);
    }
}
