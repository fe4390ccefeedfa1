package io.sluice.client.wire;

/** The block format inside regions (docs/reference/wire.md, "Blocks"). */
public final class Blocks {
    public static final int HEADER_BYTES = 28;

    /** Maximum stored size of a block. */
    public static final int MAX_STORED_BYTES = 256 * 1024;

    public static final int MAP_ATTEMPT = 0;
    public static final int SUBPARTITION = 8;
    public static final int STORED_LENGTH = 12;
    public static final int RAW_LENGTH = 16;
    public static final int CRC = 20;
    public static final int CODEC = 24;
    public static final int FLAGS = 25;
    public static final int NUMBER = 26;

    public static final int CODEC_NONE = 0;
    public static final int FIRST = 1;
    public static final int LAST = 2;
    public static final int END = 4;

    private Blocks() {}

    /** Reads an int in big endian. */
    public static int getInt(byte[] bytes, int at) {
        return (bytes[at] & 0xFF) << 24
                | (bytes[at + 1] & 0xFF) << 16
                | (bytes[at + 2] & 0xFF) << 8
                | (bytes[at + 3] & 0xFF);
    }

    public static long getLong(byte[] bytes, int at) {
        return (long) getInt(bytes, at) << 32 | (getInt(bytes, at + 4) & 0xFFFF_FFFFL);
    }

    public static int getShort(byte[] bytes, int at) {
        return (bytes[at] & 0xFF) << 8 | (bytes[at + 1] & 0xFF);
    }
}
