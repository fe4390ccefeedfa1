package io.sluice.client.gate;

import io.sluice.client.failover.RetryDeadline;
import io.sluice.client.wire.ErrorCode;
import java.util.HashSet;
import java.util.OptionalLong;
import java.util.Set;

/** Limits the retries of a source. Parts of a source share it while they have one TaskManager. */
final class SourceRetries {
    /** Maximum number of TaskManagers tried without a pause. */
    private static final int MAX_TASK_MANAGERS = 8;

    /** Maximum number of failed connects from one lookup of replicas to the next. */
    private static final int MAX_UNASKED = 4;

    private final long returnTimeoutMillis;
    private final long refusedTimeoutMillis;
    private final Set<Long> refetched = new HashSet<>();

    /** TaskManagers that failed before this one. */
    private final Set<String> triedBefore = new HashSet<>();

    private boolean refetchedAll;
    private int unasked;
    private int askAt = 1;
    private RetryDeadline deadline;

    /** Null unless the last attempt was refused. */
    private RetryDeadline refusedDeadline;

    /** Whether the TaskManager is gone for good. */
    private boolean gone;

    /**
     * @param returnTimeoutMillis maximum time of retries without a block read in between
     * @param refusedTimeoutMillis maximum time of retries while the host refuses connections
     */
    SourceRetries(long returnTimeoutMillis, long refusedTimeoutMillis) {
        this.returnTimeoutMillis = returnTimeoutMillis;
        this.refusedTimeoutMillis = refusedTimeoutMillis;
    }

    /** Called for each block read. */
    void progress() {
        deadline = null;
        refusedDeadline = null;
    }

    /** Called if the driver has missed the TaskManager for as long as a reader waits for it. */
    void gone() {
        gone = true;
    }

    /**
     * Returns when to try the same TaskManager again, as {@link System#nanoTime}; empty if the
     * failure is final. The TaskManagers that failed earlier may then be tried once more.
     */
    OptionalLong nextAttempt(SourceFailure failure) {
        if (!failure.isTransient() || gone) {
            return OptionalLong.empty();
        }
        if (deadline == null) {
            deadline = new RetryDeadline(returnTimeoutMillis);
        }
        triedBefore.clear();
        if (failure.code() != ErrorCode.CONNECT_REFUSED) {
            refusedDeadline = null;
        } else if (refusedDeadline == null) {
            refusedDeadline = new RetryDeadline(refusedTimeoutMillis);
        }
        OptionalLong next = deadline.nextAttempt();
        if (refusedDeadline == null || next.isEmpty()) {
            return next;
        }
        OptionalLong sooner = refusedDeadline.nextAttempt();
        return sooner.isEmpty() || sooner.getAsLong() - next.getAsLong() < 0 ? sooner : next;
    }

    /** Returns whether to request damaged data a second time; it may be intact in storage. */
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
    boolean mayTryAnother() {
        return triedBefore.size() < MAX_TASK_MANAGERS;
    }

    /**
     * Returns whether to look for replicas after {@code failure}. During repeated connects to one
     * TaskManager the answers rarely change, so the driver is asked less and less often.
     */
    boolean looksForReplicasAfter(SourceFailure failure) {
        if (!failure.isConnectFailure()) {
            return true;
        }
        if (deadline == null) {
            askAt = 1;
            unasked = 0;
        }
        unasked++;
        if (unasked < askAt) {
            return false;
        }
        unasked = 0;
        askAt = Math.min(2 * askAt, MAX_UNASKED);
        return true;
    }

    /** Returns the TaskManagers to avoid after a failure at the given one. */
    Set<String> avoided(String taskManagerId) {
        Set<String> avoided = new HashSet<>(triedBefore);
        avoided.add(taskManagerId);
        return avoided;
    }

    /**
     * Returns the retries of a part that is read from a replica after a failure at the given
     * TaskManager. The deadline stays the same.
     */
    SourceRetries forReplica(String taskManagerId) {
        SourceRetries other = new SourceRetries(returnTimeoutMillis, refusedTimeoutMillis);
        other.triedBefore.addAll(avoided(taskManagerId));
        other.deadline = deadline;
        return other;
    }
}
