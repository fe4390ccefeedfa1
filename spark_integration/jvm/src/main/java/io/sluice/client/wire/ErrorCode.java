package io.sluice.client.wire;

/** Error numbers on the wire (docs/reference/wire.md). An unknown number is {@link #INTERNAL}. */
public enum ErrorCode {
    PROTOCOL_VIOLATION(1),
    UNSUPPORTED_VERSION(2),
    FRAME_TOO_LARGE(3),
    MALFORMED_MESSAGE(4),
    UNEXPECTED_MESSAGE(5),
    DEADLINE_EXCEEDED(6),
    SEGMENT_SIZE_MISMATCH(7),
    UNKNOWN_CHANNEL(8),
    CHANNEL_IN_USE(9),
    CREDIT_OVERFLOW(10),
    SEQUENCE_GAP(11),
    CREDIT_EXCEEDED(12),
    INVALID_EVENT(13),
    PARTITION_NOT_FOUND(20),
    PARTITION_RELEASED(21),
    PRODUCER_FAILED(22),
    REGION_MISMATCH(23),
    CHECKSUM_MISMATCH(24),
    DUPLICATE_MAP_OUTPUT(25),
    END_OF_PARTITION_MISMATCH(26),
    SUBPARTITION_IN_USE(27),
    UNKNOWN_PRODUCER(28),
    PARTITION_MOVED(29),
    INSUFFICIENT_BUFFERS(30),
    STORAGE_FULL(31),
    STORAGE_UNAVAILABLE(32),
    STORAGE_CORRUPT(33),
    CONNECT_FAILED(40),
    CONNECTION_LOST(41),
    TASKMANAGER_MISMATCH(43),
    CONNECT_REFUSED(44),
    CONFIGURATION(50),
    INTERNAL(60),
    SHUTTING_DOWN(61),
    TOO_MANY_CONNECTIONS(62),
    LIMIT_EXCEEDED(63),
    QUOTA_EXCEEDED(64),
    AUTHENTICATION_REQUIRED(70),
    AUTHENTICATION_FAILED(71),
    CREDENTIAL_EXPIRED(72),
    NOT_PERMITTED(73);

    private final int number;

    ErrorCode(int number) {
        this.number = number;
    }

    public int number() {
        return number;
    }

    /** Returns the code with the given number. */
    public static ErrorCode of(long number) {
        for (ErrorCode code : values()) {
            if (code.number == number) {
                return code;
            }
        }
        return INTERNAL;
    }
}
