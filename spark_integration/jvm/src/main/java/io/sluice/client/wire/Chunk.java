package io.sluice.client.wire;

/** A received payload: {@code bytes[0 .. length)}, read from {@code position} on. */
public final class Chunk {
    public final byte[] bytes;
    public int position;
    public int length;

    Chunk(int capacity) {
        bytes = new byte[capacity];
    }

    public int remaining() {
        return length - position;
    }
}
