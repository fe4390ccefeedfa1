package io.sluice.client;

import java.io.IOException;

/** A source of a gate failed; says which, and which map output if it is one only. */
public final class SourceFailure extends IOException {
    private static final long serialVersionUID = 1L;

    private final transient Source source;
    private final Long mapAttemptId;
    private final ErrorCode code;

    /**
     * @param kind of shuffle, in front of where it failed: "" or with a comma behind it
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

    /** The map output concerned, or null when the whole source is. */
    public Long mapAttemptId() {
        return mapAttemptId;
    }

    public ErrorCode code() {
        return code;
    }

    /** Whether it may pass: the TaskManager can be back soon, with its data. */
    public boolean isTransient() {
        return (isUnreachable() && code != ErrorCode.TASKMANAGER_MISMATCH)
                || code == ErrorCode.INSUFFICIENT_BUFFERS;
    }

    /** Whether what came is not what was written; where it was damaged is not known. */
    public boolean isDamage() {
        return switch (code) {
            case CHECKSUM_MISMATCH, STORAGE_CORRUPT, SEQUENCE_GAP, END_OF_PARTITION_MISMATCH ->
                    true;
            default -> false;
        };
    }

    /** Whether the TaskManager cannot be reached, so that all its outputs are out of reach. */
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
