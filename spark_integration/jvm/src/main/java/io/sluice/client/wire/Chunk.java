package io.sluice.client.wire;

/**
 * Received bytes: {@code bytes[0 .. length)}, read from {@code position} on. A large payload is a
 * chain of chunks.
 */
public final class Chunk {
    /** Size of a large chunk: in a small heap, G1 treats arrays of 512 KiB as humongous. */
    static final int LARGE_BYTES = 256 * 1024;

    public final byte[] bytes;
    public int position;
    public int length;

    /** The rest of the payload, or null. */
    public Chunk next;

    Chunk(int capacity) {
        bytes = new byte[capacity];
    }

    public int remaining() {
        return length - position;
    }
}
