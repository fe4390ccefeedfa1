package io.sluice.client.gate;

import java.io.IOException;
import java.io.InputStream;

/**
 * Reads one stream of a (map attempt, partition), which may have several streams that are decoded
 * separately. Each block is verified before its bytes are returned. Valid until the next stream.
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

    /** Continues the stream on another channel. */
    void continueOn(InputChannel other) {
        channel = other;
    }

    public long mapAttemptId() {
        return block.mapAttemptId;
    }

    /** Returns the partition's number in the shuffle. */
    public int subpartition() {
        return block.subpartition;
    }

    /** Returns whether this is the first stream of its (map attempt, partition). */
    public boolean beginsPartition() {
        return beginsPartition;
    }

    /** Returns whether the stream has no bytes and only ends its partition. */
    boolean isEmpty() {
        return block.length == 0;
    }

    /** Returns whether the executor's own TaskManager stored the data. */
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

    @Override
    public int available() {
        return limit - position;
    }

    /** Reads and verifies the rest of the stream. */
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
