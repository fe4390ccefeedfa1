package io.sluice.client.gate;

import io.sluice.client.wire.Blocks;

/** A verified block, {@code bytes[offset .. offset + length)}, valid until the next read. */
final class Block {
    long mapAttemptId;
    int subpartition;
    int flags;
    int number;
    byte[] bytes;
    int offset;
    int length;

    boolean isFirst() {
        return (flags & Blocks.FIRST) != 0;
    }

    boolean isLast() {
        return (flags & Blocks.LAST) != 0;
    }

    /** Returns whether this is the last block of its map attempt and subpartition. */
    boolean isEnd() {
        return (flags & Blocks.END) != 0;
    }
}
