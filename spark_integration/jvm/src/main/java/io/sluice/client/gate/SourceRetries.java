package io.sluice.client.gate;

import io.sluice.client.failover.Patience;
import io.sluice.client.wire.ErrorCode;
import java.util.HashSet;
import java.util.OptionalLong;
import java.util.Set;

/**
 * Decides how often a source is asked again, and where; shared by all parts into which its rest was
 * divided as long as they stay at one TaskManager.
 */
final class SourceRetries {
    /** Most TaskManagers that are tried one after the other without a pause. */
    private static final int MAX_PLACES = 8;

    private final long returnTimeoutMillis;
    private final Set<Long> refetched = new HashSet<>();

    /** TaskManagers at which reading has failed before it was tried here. */
    private final Set<String> triedBefore = new HashSet<>();

    /** Most attempts to connect without a question for other places. */
    private static final int MOST_UNASKED = 4;

    private boolean refetchedAll;
    private int unasked;
    private int askAt = 1;
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
     * Returns when to ask the same TaskManager again after {@code failure}, as {@link
     * System#nanoTime}; empty if the failure is final. The TaskManagers that were tried before may
     * be tried once more after that.
     */
    OptionalLong nextAttempt(SourceFailure failure) {
        if (!failure.isTransient()) {
            return OptionalLong.empty();
        }
        if (patience == null) {
            patience = new Patience(returnTimeoutMillis);
        }
        triedBefore.clear();
        return patience.nextAttempt();
    }

    /**
     * Returns whether damaged data is to be requested a second time; it may have been damaged on
     * its way.
     */
    boolean refetches(SourceFailure failure) {
        if (!failure.isDamage()) {
            return false;
        }
        if (failure.mapAttemptId() != null) {
            return refetched.add(failure.mapAttemptId());
        }
        boolean first = !refetchedAll;
        refetchedAll = true;
        return first;
    }

    /** Returns whether another TaskManager may be tried. */
    boolean mayMove() {
        return triedBefore.size() < MAX_PLACES;
    }

    /**
     * Returns whether to ask for other places after {@code failure}. While a TaskManager is waited
     * for, most answers are the same, and the driver is asked after fewer and fewer attempts.
     */
    boolean asksAfter(SourceFailure failure) {
        if (failure.code() != ErrorCode.CONNECT_FAILED) {
            return true;
        }
        if (patience == null) {
            askAt = 1;
            unasked = 0;
        }
        unasked++;
        if (unasked < askAt) {
            return false;
        }
        unasked = 0;
        askAt = Math.min(2 * askAt, MOST_UNASKED);
        return true;
    }

    /** Returns the TaskManagers not to try after a failure at the given one. */
    Set<String> avoided(String taskManagerId) {
        Set<String> avoided = new HashSet<>(triedBefore);
        avoided.add(taskManagerId);
        return avoided;
    }

    /**
     * Returns the retries of a part that is read at another TaskManager after a failure at the
     * given one. The time without a block goes on.
     */
    SourceRetries elsewhere(String taskManagerId) {
        SourceRetries other = new SourceRetries(returnTimeoutMillis);
        other.triedBefore.addAll(avoided(taskManagerId));
        other.patience = patience;
        return other;
    }
}
