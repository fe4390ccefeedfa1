package io.sluice.client.gate;

import io.sluice.client.wire.Blocks;
import io.sluice.client.wire.ErrorCode;
import java.io.IOException;
import java.util.Arrays;
import java.util.Queue;

/**
 * The channel of one producer of a pipelined gate. A record is its length (4 bytes, big endian) and
 * its bytes; it may span buffers.
 */
final class PipelinedChannel extends ConsumerChannel {
    static final int LENGTH_BYTES = 4;

    /** Initial allocation for a record that spans buffers: its length may be corrupt. */
    private static final int FIRST_JOINED_BYTES = 64 * 1024;

    private final Source source;
    private final int index;
    private final Queue<PipelinedChannel> withBytes;
    private boolean queued;

    private final byte[] length = new byte[LENGTH_BYTES];
    private int lengthHave;
    private byte[] joined = new byte[0];
    private int joinedHave;
    private int wanted = -1;

    /**
     * @param withBytes queue to which the channel adds itself when something has arrived
     */
    PipelinedChannel(Source source, int index, int credit, Queue<PipelinedChannel> withBytes) {
        super(credit);
        this.source = source;
        this.index = index;
        this.withBytes = withBytes;
    }

    @Override
    Source source() {
        return source;
    }

    /** Throws a failure at once, because the tasks of a pipelined group fail together. */
    @Override
    void onArrival() throws SourceFailure {
        if (failure != null) {
            throw failure;
        }
        if (!queued) {
            queued = true;
            withBytes.add(this);
        }
    }

    /** Called after the gate has taken the channel from the queue. */
    void dequeued() {
        queued = false;
    }

    // ---- records

    /**
     * Finds the next record that has arrived completely.
     *
     * @return false if some of its bytes, or the end, have not arrived
     */
    boolean next(PipelinedGate.ReceivedRecord record) throws IOException {
        while (true) {
            releaseHead();
            if (head == null && !nextHead()) {
                checkEnd();
                return false;
            }
            if (lengthHave == 0 && head.remaining() >= LENGTH_BYTES) {
                int bytes = Blocks.getInt(head.bytes, head.position);
                checkLength(bytes);
                if (head.remaining() - LENGTH_BYTES >= bytes) {
                    record.set(index, head.bytes, head.position + LENGTH_BYTES, bytes);
                    head.position += LENGTH_BYTES + bytes;
                    return true;
                }
            }
            if (join()) {
                record.set(index, joined, 0, wanted);
                lengthHave = 0;
                joinedHave = 0;
                wanted = -1;
                return true;
            }
        }
    }

    /** Appends the head to the current record; returns whether the record is complete. */
    private boolean join() throws SourceFailure {
        int n = Math.min(head.remaining(), LENGTH_BYTES - lengthHave);
        System.arraycopy(head.bytes, head.position, length, lengthHave, n);
        lengthHave += n;
        head.position += n;
        if (lengthHave < LENGTH_BYTES) {
            return false;
        }
        if (wanted < 0) {
            wanted = Blocks.getInt(length, 0);
            checkLength(wanted);
        }
        n = Math.min(head.remaining(), wanted - joinedHave);
        if (joinedHave + n > joined.length) {
            long more =
                    Math.max(
                            Math.max(2L * joined.length, FIRST_JOINED_BYTES),
                            (long) joinedHave + n);
            joined = Arrays.copyOf(joined, (int) Math.min(more, wanted));
        }
        System.arraycopy(head.bytes, head.position, joined, joinedHave, n);
        joinedHave += n;
        head.position += n;
        return joinedHave == wanted;
    }

    private void checkEnd() throws SourceFailure {
        if (isReceived() && lengthHave > 0) {
            throw failure(null, ErrorCode.STORAGE_CORRUPT, "the data ends inside a record", null);
        }
    }

    private void checkLength(int bytes) throws SourceFailure {
        if (bytes < 0) {
            throw failure(
                    null,
                    ErrorCode.STORAGE_CORRUPT,
                    String.format(
                            "a record of %s bytes (limit %d)",
                            Integer.toUnsignedString(bytes), Integer.MAX_VALUE),
                    null);
        }
    }

    /** Makes a failure that names the channel's only map attempt. */
    @Override
    SourceFailure failure(Long mapAttemptId, ErrorCode code, String what, Throwable cause) {
        return new SourceFailure(
                source, "pipelined, ", source.mapAttemptIds()[0], code, what, cause);
    }
}
