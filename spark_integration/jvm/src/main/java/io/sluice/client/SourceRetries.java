package io.sluice.client;

import java.util.HashSet;
import java.util.OptionalLong;
import java.util.Set;

/**
 * Decides how often a source is asked again; shared by all parts into which its rest was divided.
 */
final class SourceRetries {
    private final long returnTimeoutMillis;
    private final Set<Long> refetched = new HashSet<>();
    private boolean refetchedAll;
    private Patience patience;

    /**
     * @param returnTimeoutMillis how long a source may be out of reach without a block being read
     *     in between
     */
    SourceRetries(long returnTimeoutMillis) {
        this.returnTimeoutMillis = returnTimeoutMillis;
    }

    /** Called for each block that was read: the source is in reach again. */
    void progress() {
        patience = null;
    }

    /**
     * Returns when to ask again after {@code failure}, as {@link System#nanoTime}; empty if the
     * failure is final.
     */
    OptionalLong nextAttempt(SourceFailure failure) {
        if (failure.isTransient()) {
            if (patience == null) {
                patience = new Patience(returnTimeoutMillis);
            }
            return patience.nextAttempt();
        }
        return failure.isDamage() && mayRefetch(failure.mapAttemptId())
                ? OptionalLong.of(System.nanoTime())
                : OptionalLong.empty();
    }

    /**
     * Returns whether damaged data may be requested a second time; it may have been damaged on its
     * way.
     */
    private boolean mayRefetch(Long mapAttemptId) {
        if (mapAttemptId != null) {
            return refetched.add(mapAttemptId);
        }
        boolean first = !refetchedAll;
        refetchedAll = true;
        return first;
    }
}
