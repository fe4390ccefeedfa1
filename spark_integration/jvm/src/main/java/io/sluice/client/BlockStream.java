package io.sluice.client;

import java.io.IOException;
import java.io.InputStream;

/**
 * One stream of a (map attempt, partition), readable while it arrives. Each block is verified
 * before its bytes are seen. A partition of a map attempt may have several streams, each of which
 * can be decoded by itself.
 *
 * <p>Valid until the gate's next stream is asked for.
 */
public final class BlockStream extends InputStream {
    private final InputGate gate;
    private InputChannel channel;
    private final Block block = new Block();
    private final boolean beginsPartition;
    private int position;
    private int limit;

    /** Reads the first block. */
    BlockStream(InputGate gate, InputChannel channel) throws IOException {
        this.gate = gate;
        this.channel = channel;
        channel.readBlock(block, gate);
        beginsPartition = block.number == 0;
        accept();
    }

    InputChannel channel() {
        return channel;
    }

    /** The channel was asked for again: the stream goes on there. */
    void goOn(InputChannel other) {
        channel = other;
    }

    public long mapAttemptId() {
        return block.mapAttemptId;
    }

    /** The partition's number in the shuffle. */
    public int subpartition() {
        return block.subpartition;
    }

    /** Whether no other stream of this (map attempt, partition) came before. */
    public boolean beginsPartition() {
        return beginsPartition;
    }

    /** It only says that its partition has ended, and is not worth a decoder. */
    boolean isEmpty() {
        return block.length == 0;
    }

    /** Whether the executor's own TaskManager had it. */
    public boolean isLocal() {
        return channel.isLocal();
    }

    @Override
    public int read() throws IOException {
        if (position == limit && !nextBlock()) {
            return -1;
        }
        return block.bytes[position++] & 0xFF;
    }

    @Override
    public int read(byte[] into, int offset, int length) throws IOException {
        if (length == 0) {
            return 0;
        }
        if (position == limit && !nextBlock()) {
            return -1;
        }
        int n = Math.min(length, limit - position);
        System.arraycopy(block.bytes, position, into, offset, n);
        position += n;
        return n;
    }

    /** Bytes that can be read without waiting. */
    @Override
    public int available() {
        return limit - position;
    }

    /** Reads to the end of the stream, so that its last block is seen. */
    void drain() throws IOException {
        position = limit;
        while (nextBlock()) {
            position = limit;
        }
    }

    private boolean nextBlock() throws IOException {
        if (block.isLast()) {
            return false;
        }
        gate.readBlock(this, block);
        accept();
        return true;
    }

    private void accept() {
        position = block.offset;
        limit = block.offset + block.length;
    }
}
