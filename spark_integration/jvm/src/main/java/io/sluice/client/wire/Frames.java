package io.sluice.client.wire;

/** Constants of the frame format and of the handshake (docs/reference/wire.md). */
public final class Frames {
    public static final String MAGIC = "sluice";
    public static final int VERSION = 1;

    /** Control length u32 and payload length u32, big endian. */
    public static final int PREFIX_BYTES = 8;

    public static final int MAX_CONTROL_BYTES = 4 * 1024 * 1024;

    /** The largest segment that a TaskManager can be configured with. */
    public static final int MAX_SEGMENT_BYTES = 1024 * 1024;

    /** Feature bit: payloads may exceed the segment size. */
    public static final long FEATURE_LARGE_PAYLOADS = 1;

    /** Feature bit: map outputs can continue on another connection after secured regions. */
    public static final long FEATURE_RESUMABLE_OUTPUTS = 4;

    /** Feature bit: a producer on the same host may put regions into memory that both sides map. */
    public static final long FEATURE_REGION_AREAS = 8;

    /** Feature bit: the TaskManager speaks TLS with all others. */
    public static final long FEATURE_ENCRYPTED_PEERS = 16;

    /** Feature bit: drivers are notified of map outputs lost with a storage directory. */
    public static final long FEATURE_LOST_OUTPUTS = 64;

    /** Feature bit: map outputs have copies, and move to other TaskManagers. */
    public static final long FEATURE_COPIES = 128;

    /** Feature bit: a release of a shuffle may have an upper bound of map attempts. */
    public static final long FEATURE_BOUNDED_RELEASES = 256;

    /** Feature bit: a driver may ask which map outputs are missing. */
    public static final long FEATURE_CHECKED_OUTPUTS = 512;

    /** Feature bit: HelloAck has an instance id, which is new at each start of the TaskManager. */
    public static final long FEATURE_INSTANCES = 1024;

    /** Maximum number of map attempts in a message about lost outputs. */
    public static final int MAX_LOST_ATTEMPTS = 256;

    /** The largest payload with {@link #FEATURE_LARGE_PAYLOADS}. */
    public static final int MAX_LARGE_PAYLOAD_BYTES = 256 * 1024;

    /** Events are received outside of segments. */
    public static final int MAX_EVENT_BYTES = 1024;

    /** Random bytes of a handshake. */
    public static final int NONCE_BYTES = 32;

    private Frames() {}
}
