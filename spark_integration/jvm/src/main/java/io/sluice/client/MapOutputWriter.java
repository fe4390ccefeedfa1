package io.sluice.client;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.zip.CRC32C;

/**
 * Writes one map output: partition streams are cut into blocks, blocks fill a region, full regions
 * are sent.
 *
 * <p>Partitions come in increasing order; one without bytes leaves no trace. A writer that does not
 * wait for all records goes over the partitions in several passes ({@link #beginPass}), each of
 * which adds a stream to the partitions it has bytes of. A connection is leased when the first
 * region is full or at commit. Ends with {@link #commit} or {@link #abort}, each of which gives
 * back the region buffers and the connection. One thread at a time.
 */
public final class MapOutputWriter {
    /** A block at a region's end is not worth its header below this. */
    private static final int MIN_ROOM_BYTES = 1024;

    /**
     * Keeps BeginRegion below the control limit: at most 5 bytes for each length of a region below
     * 4 GiB.
     */
    private static final int MAX_LENGTHS = 500_000;

    private final ConnectionSource source;
    private final RegionPool regions;
    private final long shuffleId;
    private final long mapAttemptId;
    private final int numSubpartitions;
    private final int blockBytes;
    private final long[] partitionLengths;
    private final CRC32C checksum = new CRC32C();

    /** Blocks so far of each partition; null while there is only one pass. */
    private int[] blocksWritten;

    private boolean lastPass = true;

    private ByteBuffer region;

    /**
     * Of the region before, which the sender may have to send again while {@link #region} is
     * filled.
     */
    private ByteBuffer sentRegion;

    private long[] lengths = new long[64];
    private int position;
    private int regionFirst = -1;
    private int regionLast = -1;
    private int subpartition = -1;
    private int partitionStart;
    private int blockStart = -1;
    private int blockNumber;
    private boolean inPartition;
    private boolean firstOfStream;
    private long streamBytes;

    private MapOutputSender sender;
    private long totalBytes;
    private boolean ended;

    public MapOutputWriter(
            ConnectionSource source,
            RegionPool regions,
            long shuffleId,
            long mapAttemptId,
            int numSubpartitions,
            int blockBytes) {
        this.source = source;
        this.regions = regions;
        this.shuffleId = shuffleId;
        this.mapAttemptId = mapAttemptId;
        this.numSubpartitions = numSubpartitions;
        this.blockBytes = blockBytes;
        this.partitionLengths = new long[numSubpartitions];
    }

    /**
     * Begins another pass over the partitions; without a call there is one, the last. Sends what
     * there is of the one before.
     *
     * @param last no other pass follows: the streams of this one end their partitions
     */
    public void beginPass(boolean last) throws IOException {
        if (inPartition || (subpartition >= 0 && lastPass)) {
            throw new IllegalStateException(
                    "a pass begins inside a partition, or behind the last pass");
        }
        if (blocksWritten == null && !last) {
            blocksWritten = new int[numSubpartitions];
        }
        lastPass = last;
        sendRegion(false);
        subpartition = -1;
    }

    /** Begins the stream of a partition; partitions come in increasing order. */
    public void beginPartition(int partition) throws IOException {
        if (inPartition || partition <= subpartition || partition >= numSubpartitions) {
            throw new IllegalStateException(
                    "partition "
                            + partition
                            + " after "
                            + subpartition
                            + " of "
                            + numSubpartitions);
        }
        endUnwritten(partition);
        begin(partition);
    }

    private void begin(int partition) {
        inPartition = true;
        subpartition = partition;
        blockNumber = blocksWritten == null ? 0 : blocksWritten[partition];
        firstOfStream = true;
        streamBytes = 0;
    }

    /**
     * In the last pass, ends the partitions before {@code end} that an earlier one has begun and
     * this one has no bytes of.
     */
    private void endUnwritten(int end) throws IOException {
        if (blocksWritten == null || !lastPass) {
            return;
        }
        for (int partition = subpartition + 1; partition < end; partition++) {
            if (blocksWritten[partition] > 0) {
                begin(partition);
                openBlock(0);
                endPartition();
            }
        }
    }

    public void write(byte[] bytes, int offset, int length) throws IOException {
        int done = 0;
        while (done < length) {
            int room = ensureRoom();
            int n = Math.min(room, length - done);
            region.put(position, bytes, offset + done, n);
            position += n;
            done += n;
        }
    }

    /** Takes all that {@code bytes} has left. */
    public void write(ByteBuffer bytes) throws IOException {
        while (bytes.hasRemaining()) {
            int n = Math.min(ensureRoom(), bytes.remaining());
            region.put(position, bytes, bytes.position(), n);
            bytes.position(bytes.position() + n);
            position += n;
        }
    }

    public void write(int value) throws IOException {
        ensureRoom();
        region.put(position++, (byte) value);
    }

    /**
     * Finds room for bytes that the caller puts into {@link #region} itself, at the place returned;
     * {@link #advance} says how many it put, one at least.
     *
     * @return -1 when a block can never hold as many: they have to be written in parts
     */
    public int reserve(int bytes) throws IOException {
        ensureOpen();
        if (bytes > blockBytes || bytes > regions.regionBytes() - Blocks.HEADER_BYTES) {
            return -1;
        }
        if (blockStart >= 0 && blockRoom() < bytes) {
            seal(0);
        }
        if (blockStart < 0) {
            openBlock(bytes);
        }
        return position;
    }

    /**
     * The buffer {@link #reserve} found room in: direct, big endian, its position and limit are not
     * to be changed.
     */
    public ByteBuffer region() {
        return region;
    }

    public void advance(int bytes) {
        position += bytes;
    }

    /** Ends the stream of the current partition; returns its bytes as stored, headers included. */
    public long endPartition() {
        if (blockStart >= 0) {
            seal(lastPass ? Blocks.LAST | Blocks.END : Blocks.LAST);
            closePartitionInRegion();
        }
        inPartition = false;
        partitionLengths[subpartition] += streamBytes;
        if (blocksWritten != null) {
            blocksWritten[subpartition] = blockNumber;
        }
        return streamBytes;
    }

    /** Bytes of each partition as stored, headers included; complete after {@link #commit}. */
    public long[] partitionLengths() {
        return partitionLengths;
    }

    /** Bytes of this map output so far, headers included. */
    public long totalBytes() {
        return totalBytes + position;
    }

    /** Time this map output has waited for credit; final after its end. */
    public long creditWaitNanos() {
        return sender == null ? 0 : sender.creditWaitNanos();
    }

    /**
     * Bytes that went through memory shared with the TaskManager, those sent again included; final
     * after the end.
     */
    public long sharedBytes() {
        return sender == null ? 0 : sender.sharedBytes();
    }

    /**
     * Commits: returns when the TaskManager has the output in its journal.
     *
     * @return where the output is
     */
    public Message.HelloAck commit() throws IOException {
        if (ended || inPartition || !lastPass) {
            throw new IllegalStateException(
                    "commit of a map output that is ended, inside a partition, or before its last"
                            + " pass");
        }
        endUnwritten(numSubpartitions);
        sendRegion(true);
        Message.HelloAck location = sender().finish();
        end();
        return location;
    }

    /** Gives up; does nothing after the end. Never throws. */
    public void abort() {
        if (ended) {
            return;
        }
        if (sender != null) {
            sender.abort();
        }
        end();
    }

    private void end() {
        ended = true;
        recycle(region);
        recycle(sentRegion);
        region = null;
        sentRegion = null;
    }

    private void recycle(ByteBuffer buffer) {
        if (buffer != null) {
            regions.recycle(buffer.clear());
        }
    }

    private void ensureOpen() throws IOException {
        if (ended) {
            throw new IOException("the map output has been committed or aborted");
        }
    }

    /** Makes room for at least one byte of the current block; returns how many. */
    private int ensureRoom() throws IOException {
        ensureOpen();
        if (blockStart >= 0) {
            int room = blockRoom();
            if (room > 0) {
                return room;
            }
            // The last block of a stream is still open when the stream ends, so this one is not the
            // last.
            seal(0);
        }
        openBlock(Math.min(MIN_ROOM_BYTES, blockBytes));
        return blockRoom();
    }

    private int blockRoom() {
        return Math.min(region.capacity(), blockStart + Blocks.HEADER_BYTES + blockBytes)
                - position;
    }

    private void openBlock(int room) throws IOException {
        // Without a region's buffer nothing is in it.
        boolean full = region != null && region.capacity() - position < Blocks.HEADER_BYTES + room;
        boolean wide = regionFirst >= 0 && subpartition - regionFirst >= MAX_LENGTHS;
        if (position > 0 && (full || wide)) {
            if (regionLast == subpartition) {
                closePartitionInRegion();
            }
            sendRegion(false);
        }
        if (region == null) {
            region = regions.take();
        }
        if (regionFirst < 0) {
            regionFirst = subpartition;
        }
        if (regionLast != subpartition) {
            regionLast = subpartition;
            partitionStart = position;
        }
        blockStart = position;
        position += Blocks.HEADER_BYTES;
    }

    private void seal(int last) {
        int stored = position - blockStart - Blocks.HEADER_BYTES;
        int flags = last | (firstOfStream ? Blocks.FIRST : 0);
        firstOfStream = false;
        // Absolute puts; a region's buffer is big endian, as the block header is.
        region.putLong(blockStart + Blocks.MAP_ATTEMPT, mapAttemptId);
        region.putInt(blockStart + Blocks.SUBPARTITION, subpartition);
        region.putInt(blockStart + Blocks.STORED_LENGTH, stored);
        region.putInt(blockStart + Blocks.RAW_LENGTH, stored);
        region.putInt(blockStart + Blocks.CRC, crc32c(blockStart + Blocks.HEADER_BYTES, position));
        region.put(blockStart + Blocks.CODEC, (byte) Blocks.CODEC_NONE);
        region.put(blockStart + Blocks.FLAGS, (byte) flags);
        region.putShort(blockStart + Blocks.NUMBER, (short) blockNumber);
        blockNumber++;
        streamBytes += position - blockStart;
        blockStart = -1;
    }

    private int crc32c(int start, int end) {
        region.limit(end).position(start);
        checksum.reset();
        checksum.update(region);
        region.clear();
        return (int) checksum.getValue();
    }

    private void closePartitionInRegion() {
        int index = regionLast - regionFirst;
        if (index >= lengths.length) {
            lengths = Arrays.copyOf(lengths, Math.max(index + 1, lengths.length * 2));
        }
        lengths[index] = (long) position - partitionStart;
    }

    private void sendRegion(boolean last) throws IOException {
        if (position == 0) {
            return;
        }
        int count = regionLast - regionFirst + 1;
        long crc32c = Integer.toUnsignedLong(crc32c(0, position));
        region.limit(position);
        if (last) {
            sender().sendLastRegion(region, regionFirst, lengths, count, crc32c);
        } else {
            sender().sendRegion(region, regionFirst, lengths, count, crc32c);
            // The buffer of the region before is free now; this one is when the next region is
            // sent. The pool may have a shared
            // one for the next region by now.
            recycle(sentRegion);
            sentRegion = region;
            region = null;
            Arrays.fill(lengths, 0, count, 0);
        }
        totalBytes += position;
        position = 0;
        regionFirst = -1;
        regionLast = -1;
    }

    private MapOutputSender sender() {
        if (sender == null) {
            sender =
                    new MapOutputSender(
                            source, regions.areas(), shuffleId, mapAttemptId, numSubpartitions);
        }
        return sender;
    }
}
