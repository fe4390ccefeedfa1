package io.sluice.client.gate;

import io.sluice.client.failover.TaskManagerAddress;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.ErrorCode;
import java.io.IOException;

/** Thrown when a source of a gate failed. Names the map output if only one is affected. */
public final class SourceFailure extends IOException {
    private final transient Source source;
    private final Long mapAttemptId;
    private final ErrorCode code;

    /**
     * @param kind prefix in the message: "" or "pipelined, "
     */
    SourceFailure(
            Source source,
            String kind,
            Long mapAttemptId,
            ErrorCode code,
            String what,
            Throwable cause) {
        super(
                String.format(
                        "%s: %s (%sTaskManager %s at %s%s)",
                        code,
                        what,
                        kind,
                        source.taskManagerId(),
                        Endpoint.tcp(source.host(), source.port()),
                        mapAttemptId == null ? "" : ", map attempt " + mapAttemptId),
                cause);
        this.source = source;
        this.mapAttemptId = mapAttemptId;
        this.code = code;
    }

    public Source source() {
        return source;
    }

    /** Returns the affected map output, or null if the whole source failed. */
    public Long mapAttemptId() {
        return mapAttemptId;
    }

    public ErrorCode code() {
        return code;
    }

    /** Returns whether a later attempt may succeed. */
    public boolean isTransient() {
        return (isUnreachable() && code != ErrorCode.TASKMANAGER_MISMATCH)
                || code == ErrorCode.INSUFFICIENT_BUFFERS
                || code == ErrorCode.PARTITION_MOVED;
    }

    /** Returns whether another TaskManager may have the data. */
    boolean mayHaveReplica() {
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

    /** Returns where the map output has moved; null if the answer does not say. */
    TaskManagerAddress movedTo() {
        return code == ErrorCode.PARTITION_MOVED
                        && getCause() instanceof ClientException.Remote remote
                ? TaskManagerAddress.parse(remote.response().value())
                : null;
    }

    /** Returns whether the received data is damaged, in storage or on the way. */
    public boolean isDamage() {
        return switch (code) {
            case CHECKSUM_MISMATCH, STORAGE_CORRUPT, SEQUENCE_GAP, END_OF_PARTITION_MISMATCH ->
                    true;
            default -> false;
        };
    }

    /** Returns whether this reader found damaged bytes, which may be damaged in storage too. */
    boolean isFoundDamage() {
        return (code == ErrorCode.CHECKSUM_MISMATCH || code == ErrorCode.STORAGE_CORRUPT)
                && !(getCause() instanceof ClientException.Remote);
    }

    /** Returns whether no connection to the TaskManager could be made. */
    boolean isConnectFailure() {
        return code == ErrorCode.CONNECT_FAILED || code == ErrorCode.CONNECT_REFUSED;
    }

    /** Returns whether the TaskManager cannot be reached. */
    public boolean isUnreachable() {
        return switch (code) {
            case CONNECT_FAILED,
                    CONNECT_REFUSED,
                    CONNECTION_LOST,
                    TASKMANAGER_MISMATCH,
                    DEADLINE_EXCEEDED,
                    SHUTTING_DOWN ->
                    true;
            default -> false;
        };
    }
}
