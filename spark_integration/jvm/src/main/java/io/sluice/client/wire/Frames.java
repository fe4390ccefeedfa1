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

    /** Bit in the features of HelloAck: the TaskManager speaks TLS with all others. */
    public static final long PEERS_ENCRYPTED = 1 << 4;

    /** Bit in the features of Hello and HelloAck: readers send ReportDamage. */
    public static final long DAMAGE_REPORTS = 1 << 1;

    /**
     * Bit in the features of Hello and HelloAck: the TaskManager has a remote tier for copies of
     * map outputs, and reports them to the driver.
     */
    public static final long REMOTE_COPIES = 1 << 3;

    /** Bit in the features of Hello and HelloAck: the TaskManager makes traces. */
    public static final long TRACES = 1 << 8;

    /** Bit in the features of Hello and HelloAck: drivers receive MemberReport. */
    public static final long MEMBERS = 1 << 9;

    /** Maximum number of map attempts in a message about lost outputs. */
    public static final int MAX_LOST_ATTEMPTS = 256;

    /** The largest payload where no segment is involved. */
    public static final int MAX_LARGE_PAYLOAD_BYTES = 1024 * 1024;

    /** Events are received outside of segments. */
    public static final int MAX_EVENT_BYTES = 1024;

    /** Random bytes of a handshake. */
    public static final int NONCE_BYTES = 32;

    private Frames() {}
}
