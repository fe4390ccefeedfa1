package io.sluice.client;

/** A received payload: {@code bytes[0 .. length)}, read from {@code position} on. */
final class Chunk {
    final byte[] bytes;
    int position;
    int length;

    Chunk(int capacity) {
        bytes = new byte[capacity];
    }

    int remaining() {
        return length - position;
    }
}
