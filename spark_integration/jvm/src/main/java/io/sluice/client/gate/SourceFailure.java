package io.sluice.client.gate;

import io.sluice.client.failover.PlaceDirectory;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.ErrorCode;
import java.io.IOException;

/**
 * Thrown when a source of a gate failed; names the source, and the map output if only one is
 * concerned.
 */
public final class SourceFailure extends IOException {
    private static final long serialVersionUID = 1L;

    private final transient Source source;
    private final Long mapAttemptId;
    private final ErrorCode code;

    /**
     * @param kind kind of the shuffle in the message: "", or a word followed by a comma and a space
     */
    SourceFailure(
            Source source,
            String kind,
            Long mapAttemptId,
            ErrorCode code,
            String what,
            Throwable cause) {
        super(
                (code + ": " + what)
                        + (" ("
                                + kind
                                + "TaskManager "
                                + source.taskManagerId()
                                + " at "
                                + source.host()
                                + ":"
                                + source.port())
                        + (mapAttemptId == null ? ")" : ", map attempt " + mapAttemptId + ")"),
                cause);
        this.source = source;
        this.mapAttemptId = mapAttemptId;
        this.code = code;
    }

    public Source source() {
        return source;
    }

    /** Returns the map output concerned, or null if the whole source is. */
    public Long mapAttemptId() {
        return mapAttemptId;
    }

    public ErrorCode code() {
        return code;
    }

    /**
     * Returns whether the failure may pass, because the TaskManager can be back soon with its data,
     * or because it will soon be known where the data are.
     */
    public boolean isTransient() {
        return (isUnreachable() && code != ErrorCode.TASKMANAGER_MISMATCH)
                || code == ErrorCode.INSUFFICIENT_BUFFERS
                || code == ErrorCode.PARTITION_MOVED;
    }

    /** Returns whether a copy of the data at another TaskManager may be good. */
    boolean mayBeElsewhere() {
        return switch (code) {
            case PARTITION_NOT_FOUND,
                    PARTITION_RELEASED,
                    PARTITION_MOVED,
                    STORAGE_UNAVAILABLE,
                    INTERNAL ->
                    true;
            default -> isUnreachable() || isDamage();
        };
    }

    /** Returns the place to which the map output has moved, if the answer names it; else null. */
    PlaceDirectory.Place movedTo() {
        return code == ErrorCode.PARTITION_MOVED
                        && getCause() instanceof ClientException.Remote remote
                ? PlaceDirectory.Place.parse(remote.response().value())
                : null;
    }

    /** Returns whether the data are damaged; the place of the damage is not known. */
    public boolean isDamage() {
        return switch (code) {
            case CHECKSUM_MISMATCH, STORAGE_CORRUPT, SEQUENCE_GAP, END_OF_PARTITION_MISMATCH ->
                    true;
            default -> false;
        };
    }

    /**
     * Returns whether the TaskManager cannot be reached, so that all its outputs are out of reach.
     */
    public boolean isUnreachable() {
        return switch (code) {
            case CONNECT_FAILED,
                    CONNECTION_LOST,
                    TASKMANAGER_MISMATCH,
                    DEADLINE_EXCEEDED,
                    SHUTTING_DOWN ->
                    true;
            default -> false;
        };
    }
}
