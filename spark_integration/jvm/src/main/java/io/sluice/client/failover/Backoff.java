package io.sluice.client.failover;

/** A pause that doubles from one attempt to the next, up to a maximum. Not thread safe. */
public final class Backoff {
    private final long initialMillis;
    private final long maxMillis;
    private long nextMillis;

    public Backoff(long initialMillis, long maxMillis) {
        this.initialMillis = initialMillis;
        this.maxMillis = maxMillis;
        reset();
    }

    /** Returns the pause before the next attempt, in milliseconds, and doubles it. */
    public long nextMillis() {
        long pause = nextMillis;
        nextMillis = Math.min(2 * pause, maxMillis);
        return pause;
    }

    /** Begins again with the shortest pause. */
    public void reset() {
        nextMillis = Math.min(initialMillis, maxMillis);
    }
}
