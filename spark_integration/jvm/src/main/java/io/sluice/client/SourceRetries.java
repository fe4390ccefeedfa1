package io.sluice.client;

import java.util.HashSet;
import java.util.OptionalLong;
import java.util.Set;

/**
 * How often a source may still be asked again; shared by all parts into which its rest was divided.
 */
final class SourceRetries {
    private final long returnTimeoutMillis;
    private final Set<Long> refetched = new HashSet<>();
    private boolean refetchedAll;
    private Patience patience;

    /**
     * @param returnTimeoutMillis how long a source may be out of reach without a block read in
     *     between
     */
    SourceRetries(long returnTimeoutMillis) {
        this.returnTimeoutMillis = returnTimeoutMillis;
    }

    /** A block was read: whatever was wrong with reaching the source is over. */
    void progress() {
        patience = null;
    }

    /**
     * When to ask again after {@code failure}, as {@link System#nanoTime}; empty if it is final.
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

    /** Damaged data is asked for once more: it may have been damaged on its way. */
    private boolean mayRefetch(Long mapAttemptId) {
        if (mapAttemptId != null) {
            return refetched.add(mapAttemptId);
        }
        boolean first = !refetchedAll;
        refetchedAll = true;
        return first;
    }
}
