package io.sluice.client.gate;

import io.sluice.client.wire.Blocks;
import io.sluice.client.wire.ErrorCode;
import java.io.IOException;
import java.util.zip.CRC32C;

/**
 * A channel of an input gate, whose buffers are cut into blocks when they are read. A failure is
 * reported only after everything that arrived before it has been read.
 */
final class InputChannel extends ConsumerChannel {
    private final SourceProgress progress;
    private final byte[] header = new byte[Blocks.HEADER_BYTES];
    private final CRC32C checksum = new CRC32C();
    private final long askAtNanos;

    private long bytesToSkip;
    private boolean complete;
    private boolean lost;

    /**
     * Makes a channel that is requested later.
     *
     * @param askAtNanos when to request it, as {@link System#nanoTime}
     */
    InputChannel(SourceProgress progress, int credit, long askAtNanos) {
        super(credit);
        this.progress = progress;
        this.bytesToSkip = progress.attemptBytes();
        this.askAtNanos = askAtNanos;
    }

    long askAtNanos() {
        return askAtNanos;
    }

    SourceProgress progress() {
        return progress;
    }

    @Override
    Source source() {
        return progress.source();
    }

    @Override
    SourceFailure failure(Long mapAttemptId, ErrorCode code, String what, Throwable cause) {
        return progress.failure(mapAttemptId, code, what, cause);
    }

    /** Returns whether the reader has work here: data, an end to check, or a failure to report. */
    boolean isReady() {
        return hasData() || (hasEnded() && !complete);
    }

    boolean isComplete() {
        return complete;
    }

    /** Returns whether the data that is read next has to be read before that of {@code other}. */
    boolean isBefore(InputChannel other) {
        return progress.nextMapIndex() < other.progress.nextMapIndex();
    }

    /**
     * Returns whether the data of both channels have an order: they are, or were at first, at one
     * TaskManager.
     */
    boolean isTwinOf(InputChannel other) {
        return source().taskManagerId().equals(other.source().taskManagerId())
                || progress.firstTaskManagerId().equals(other.progress.firstTaskManagerId());
    }

    boolean isDrained() {
        return hasEnded() && !hasData();
    }

    /** Marks the connection as lost; the data that has arrived can still be read. */
    void lose(IOException cause) {
        if (!hasEnded()) {
            lost = true;
            failure = progress.failure(null, ErrorCode.CONNECTION_LOST, cause.getMessage(), cause);
        }
    }

    boolean isLost() {
        return lost;
    }

    // ---- reading

    /** Reads and verifies the next block; its bytes are valid until the next call. */
    void readBlock(Block block, InputGate gate) throws IOException {
        skip(gate);
        parseHeader(block, gate);
        int stored = block.length;
        if (head != null && head.remaining() >= stored) {
            block.bytes = head.bytes;
            block.offset = head.position;
            head.position += stored;
        } else {
            block.bytes = gate.blockBuffer(stored);
            block.offset = 0;
            copy(block.bytes, stored, gate);
        }
        checksum.reset();
        checksum.update(block.bytes, block.offset, stored);
        if ((int) checksum.getValue() != Blocks.getInt(header, Blocks.CRC)) {
            throw progress.corrupt(
                    block, "the checksum of block " + block.number + " does not match");
        }
        progress.read(block);
        gate.progress();
    }

    private void parseHeader(Block block, InputGate gate) throws IOException {
        copy(header, Blocks.HEADER_BYTES, gate);
        block.mapAttemptId = Blocks.getLong(header, Blocks.MAP_ATTEMPT);
        block.subpartition = Blocks.getInt(header, Blocks.SUBPARTITION);
        block.length = Blocks.getInt(header, Blocks.STORED_LENGTH);
        block.flags = header[Blocks.FLAGS];
        block.number = Blocks.getShort(header, Blocks.NUMBER);
        progress.check(block);
        if (block.length < (block.isEnd() ? 0 : 1)
                || block.length > Blocks.MAX_STORED_BYTES
                || Blocks.getInt(header, Blocks.RAW_LENGTH) != block.length
                || header[Blocks.CODEC] != Blocks.CODEC_NONE
                || (block.flags & ~(Blocks.FIRST | Blocks.LAST | Blocks.END)) != 0
                || (block.isEnd() && !block.isLast())) {
            throw progress.corrupt(
                    block,
                    "a block header is invalid (length "
                            + block.length
                            + ", codec "
                            + header[Blocks.CODEC]
                            + ", flags "
                            + block.flags
                            + ")");
        }
    }

    /** Checks at the end that nothing is missing. */
    void complete() throws IOException {
        releaseHead();
        if (failure != null) {
            throw failure;
        }
        progress.complete();
        complete = true;
    }

    /** Skips the bytes that an earlier request already delivered. */
    private void skip(InputGate gate) throws IOException {
        while (bytesToSkip > 0) {
            takeHead(gate);
            int n = (int) Math.min(head.remaining(), bytesToSkip);
            head.position += n;
            bytesToSkip -= n;
        }
    }

    private void copy(byte[] into, int length, InputGate gate) throws IOException {
        int have = 0;
        while (have < length) {
            takeHead(gate);
            int n = Math.min(head.remaining(), length - have);
            System.arraycopy(head.bytes, head.position, into, have, n);
            head.position += n;
            have += n;
        }
    }

    /** Waits for a buffer with unread bytes. */
    private void takeHead(InputGate gate) throws IOException {
        while (head == null || head.remaining() == 0) {
            releaseHead();
            if (!nextHead()) {
                if (failure != null) {
                    throw failure;
                }
                if (isReceived()) {
                    // This throws if it knows which part is missing.
                    progress.complete();
                    throw progress.failure(
                            progress.attemptId(),
                            ErrorCode.STORAGE_CORRUPT,
                            "the data end inside a block",
                            null);
                }
                gate.awaitData(this);
            }
        }
    }
}
