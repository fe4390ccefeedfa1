package io.sluice.client.output;

import io.sluice.client.connection.ConnectionSource;
import io.sluice.client.wire.Blocks;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.zip.CRC32C;

/**
 * Writes one map output: cuts partition streams into blocks, fills regions with blocks, and sends
 * full regions.
 *
 * <p>Partitions come in increasing order; a partition without bytes is not written. A caller that
 * cannot wait for all records makes several passes over the partitions ({@link #beginPass}), each
 * of which adds one stream to every partition that has bytes in it. A connection is leased when the
 * first region is full, or at the commit.
 *
 * <p>{@link #commit} or {@link #abort} ends the output and gives back region buffers and
 * connection. One thread at a time.
 */
public final class MapOutputWriter {
    /**
     * With less room than this at the end of a region, the next block goes into the next region.
     */
    private static final int MIN_ROOM_BYTES = 1024;

    /**
     * Keeps BeginRegion below the limit of the control part: each length of a region below 4 GiB
     * takes at most 5 bytes.
     */
    private static final int MAX_LENGTHS = 500_000;

    private final ConnectionSource source;
    private final RegionPool regions;
    private final long shuffleId;
    private final long mapAttemptId;
    private final int numSubpartitions;
    private final int blockBytes;
    private final Replicas replicas;
    private final long[] partitionLengths;
    private final CRC32C checksum = new CRC32C();

    /** Number of blocks so far, by partition; null while there is only one pass. */
    private int[] blocksWritten;

    private boolean lastPass = true;

    private ByteBuffer region;

    /**
     * The buffer of the previous region, which the sender may have to send again while {@link
     * #region} is being filled.
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
    private boolean committing;
    private boolean ended;

    /** Makes the writer of a map output without copies. */
    public MapOutputWriter(
            ConnectionSource source,
            RegionPool regions,
            long shuffleId,
            long mapAttemptId,
            int numSubpartitions,
            int blockBytes) {
        this(source, regions, shuffleId, mapAttemptId, numSubpartitions, blockBytes, Replicas.ONE);
    }

    /**
     * @param replicas how many TaskManagers keep the map output, as far as they can
     */
    public MapOutputWriter(
            ConnectionSource source,
            RegionPool regions,
            long shuffleId,
            long mapAttemptId,
            int numSubpartitions,
            int blockBytes,
            Replicas replicas) {
        this.source = source;
        this.regions = regions;
        this.shuffleId = shuffleId;
        this.mapAttemptId = mapAttemptId;
        this.numSubpartitions = numSubpartitions;
        this.blockBytes = blockBytes;
        this.replicas = replicas;
        this.partitionLengths = new long[numSubpartitions];
    }

    /**
     * Begins another pass over the partitions and sends the rest of the previous one. Without this
     * call there is one pass, the last.
     *
     * @param last whether no other pass follows, so that the streams of this one end their
     *     partitions
     */
    public void beginPass(boolean last) throws IOException {
        if (inPartition || (subpartition >= 0 && lastPass)) {
            throw new IllegalStateException(
                    "a pass cannot begin inside a partition or after the last pass");
        }
        if (blocksWritten == null && !last) {
            blocksWritten = new int[numSubpartitions];
        }
        lastPass = last;
        sendRegion(false);
        subpartition = -1;
    }

    /** Begins the stream of a partition. Partitions come in increasing order. */
    public void beginPartition(int partition) throws IOException {
        if (inPartition || partition <= subpartition || partition >= numSubpartitions) {
            throw new IllegalStateException(
                    "partition "
                            + partition
                            + " of "
                            + numSubpartitions
                            + " cannot follow partition "
                            + subpartition
                            + ": partitions come in increasing order");
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
     * Ends, in the last pass, the partitions before {@code end} that earlier passes began and that
     * have no bytes in this one.
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

    /** Writes the remaining bytes of {@code bytes}. */
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
     * Reserves room for bytes that the caller puts into {@link #region} itself, at the returned
     * position. The caller then calls {@link #advance} with the number of bytes it put, at least
     * one.
     *
     * @return -1 if no block can hold that many bytes, which must be written in parts then
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
     * Returns the direct, big-endian buffer that {@link #reserve} found room in. Its position and
     * limit must not be changed.
     */
    public ByteBuffer region() {
        return region;
    }

    public void advance(int bytes) {
        position += bytes;
    }

    /** Ends the stream of the current partition; returns its stored size, headers included. */
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

    /**
     * Returns the stored bytes of each partition, headers included; complete after {@link #commit}.
     */
    public long[] partitionLengths() {
        return partitionLengths;
    }

    /** Returns the bytes of this map output so far, headers included. */
    public long totalBytes() {
        return totalBytes + position;
    }

    /** Returns the nanoseconds this map output has waited for credit; final after its end. */
    public long creditWaitNanos() {
        return sender == null ? 0 : sender.creditWaitNanos();
    }

    /**
     * Returns the bytes that went through memory shared with the TaskManager, including those sent
     * again; final after the end.
     */
    public long sharedBytes() {
        return sender == null ? 0 : sender.sharedBytes();
    }

    /**
     * Sends the rest of the map output and requests its commit, without waiting for the answer, so
     * that the task can continue meanwhile. Nothing can be written afterwards.
     */
    public void requestCommit() throws IOException {
        if (ended || inPartition || !lastPass || committing) {
            throw new IllegalStateException(
                    "a map output cannot be committed twice, after its end, inside a partition, or"
                            + " before its last pass");
        }
        endUnwritten(numSubpartitions);
        sendRegion(true);
        committing = true;
        sender().askToFinish();
    }

    /**
     * Commits the map output, or waits for the commit that was requested; returns when the
     * TaskManager's journal has it.
     *
     * @return the TaskManager that has the output
     */
    public Message.HelloAck commit() throws IOException {
        if (!committing) {
            requestCommit();
        }
        Message.HelloAck location = sender().finish();
        end();
        return location;
    }

    /** Gives up the output; does nothing after the end. Never throws. */
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
        if (ended || committing) {
            throw new IOException("the map output has been committed or aborted");
        }
    }

    /** Makes room for at least one byte of the current block; returns the number of bytes. */
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
        // No buffer means that nothing has been written into the region.
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
        // Absolute puts: the buffer is big endian, as the block header is.
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
            // The previous buffer is free now; this one is free when the next region is sent. By
            // then the pool may have a shared buffer for the next region.
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
                            source,
                            regions.areas(),
                            shuffleId,
                            mapAttemptId,
                            numSubpartitions,
                            replicas);
        }
        return sender;
    }
}
