package io.sluice.client.wire;

/** Holds the constants of the frame format and of the handshake (docs/reference/wire.md). */
public final class Frames {
    public static final String MAGIC = "sluice";
    public static final int VERSION = 1;

    /** Control length u32 and payload length u32, big endian. */
    public static final int PREFIX_BYTES = 8;

    public static final int MAX_CONTROL_BYTES = 4 * 1024 * 1024;

    /** The largest segment that a TaskManager can be configured with. */
    public static final int MAX_SEGMENT_BYTES = 1024 * 1024;

    /**
     * Feature bit of the handshake: payloads may exceed the segment size where no segment is
     * involved.
     */
    public static final long FEATURE_LARGE_PAYLOADS = 1;

    /**
     * Feature bit: the TaskManager secures regions of map outputs, which can continue on another
     * connection.
     */
    public static final long FEATURE_RESUMABLE_OUTPUTS = 4;

    /** Feature bit: a producer on the same host may put regions into memory that both sides map. */
    public static final long FEATURE_REGION_AREAS = 8;

    /** Feature bit: the TaskManager speaks TLS with all others. */
    public static final long FEATURE_ENCRYPTED_PEERS = 16;

    /** Feature bit: a driver is told of map outputs that were lost with a storage directory. */
    public static final long FEATURE_LOST_OUTPUTS = 64;

    /** Feature bit: map outputs have copies, and move to other TaskManagers. */
    public static final long FEATURE_COPIES = 128;

    /** Feature bit: a release of a shuffle may have an upper bound of map attempts. */
    public static final long FEATURE_BOUNDED_RELEASES = 256;

    /** Feature bit: a driver may ask which map outputs are missing. */
    public static final long FEATURE_CHECKED_OUTPUTS = 512;

    /** Feature bit: HelloAck has the instance id of the TaskManager, which is new at each start. */
    public static final long FEATURE_INSTANCES = 1024;

    /** Most map attempts in a message about lost ones. */
    public static final int MAX_LOST_ATTEMPTS = 256;

    /** The largest payload with {@link #FEATURE_LARGE_PAYLOADS}. */
    public static final int MAX_LARGE_PAYLOAD_BYTES = 256 * 1024;

    /** Events are received outside of segments. */
    public static final int MAX_EVENT_BYTES = 1024;

    private Frames() {}
}
