package io.sluice.client.gate;

import io.sluice.client.wire.Blocks;
import io.sluice.client.wire.ErrorCode;
import java.io.IOException;
import java.util.zip.CRC32C;

/** A channel of an input gate. A failure is reported after the data that arrived before it. */
final class InputChannel extends ConsumerChannel {
    private final SourceProgress progress;
    private final byte[] header = new byte[Blocks.HEADER_BYTES];
    private final CRC32C checksum = new CRC32C();
    private final long requestAtNanos;

    private long bytesToSkip;
    private boolean complete;
    private boolean lost;

    /**
     * @param requestAtNanos when to request the channel, as {@link System#nanoTime}
     */
    InputChannel(SourceProgress progress, int credit, long requestAtNanos) {
        super(credit);
        this.progress = progress;
        this.bytesToSkip = progress.attemptBytes();
        this.requestAtNanos = requestAtNanos;
    }

    long requestAtNanos() {
        return requestAtNanos;
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

    /** Returns whether there is data to read, an end to check, or a failure to report. */
    boolean isReady() {
        return hasData() || (hasEnded() && !complete);
    }

    boolean isComplete() {
        return complete;
    }

    /** Returns whether the next map output comes before that of {@code other}. */
    boolean isBefore(InputChannel other) {
        return progress.nextMapIndex() < other.progress.nextMapIndex();
    }

    /** Returns whether both have, or had at first, one TaskManager, so that they have an order. */
    boolean sharesTaskManagerWith(InputChannel other) {
        return source().taskManagerId().equals(other.source().taskManagerId())
                || progress.firstTaskManagerId().equals(other.progress.firstTaskManagerId());
    }

    boolean isDrained() {
        return hasEnded() && !hasData();
    }

    /** Records that the connection is lost. Data that has arrived can still be read. */
    void markLost(IOException cause) {
        if (!hasEnded()) {
            lost = true;
            failure = progress.failure(null, ErrorCode.CONNECTION_LOST, cause.getMessage(), cause);
        }
    }

    boolean isLost() {
        return lost;
    }

    // ---- reading

    /** Reads and verifies the next block, whose bytes are valid until the next call. */
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
                    String.format(
                            "a block header is invalid (length %d, codec %d, flags %d)",
                            block.length, header[Blocks.CODEC], block.flags));
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
                    // Throws a more precise failure if a whole block is missing.
                    progress.complete();
                    throw progress.failure(
                            progress.attemptId(),
                            ErrorCode.STORAGE_CORRUPT,
                            "the data ends inside a block",
                            null);
                }
                gate.awaitData(this);
            }
        }
    }
}
