package io.sluice.client.output;

import io.sluice.client.connection.ConnectionSource;
import io.sluice.client.wire.Blocks;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.zip.CRC32C;

/**
 * Writes one map output: divides partition streams into blocks, fills regions with blocks, and
 * sends full regions. One thread at a time.
 *
 * <p>Partitions come in increasing order, without empty ones. A pass over the partitions ({@link
 * #beginPass}) adds a stream to every partition that has bytes in it. A connection is leased for
 * the first region. {@link #commit} or {@link #abort} releases buffers and connection.
 */
public final class MapOutputWriter {
    /** Minimum room at the end of a region for another block. */
    private static final int MIN_ROOM_BYTES = 1024;

    /** Limits the size of BeginRegion: each length takes at most 5 bytes. */
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

    /** Number of blocks by partition; null during a single pass. */
    private int[] blocksWritten;

    private boolean lastPass = true;

    /** The data process that takes the output; until the first region the expected one. */
    private int process;

    private ByteBuffer region;

    /** The buffer of the previous region, which may be sent again. */
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

    /** Makes the writer of a map output without copies, for a TaskManager with one process. */
    public MapOutputWriter(
            ConnectionSource source,
            RegionPool regions,
            long shuffleId,
            long mapAttemptId,
            int numSubpartitions,
            int blockBytes) {
        this(
                source,
                regions,
                0,
                shuffleId,
                mapAttemptId,
                numSubpartitions,
                blockBytes,
                Replicas.ONE);
    }

    /**
     * @param process the data process that is expected to take the output
     * @param replicas how many TaskManagers keep the map output
     */
    public MapOutputWriter(
            ConnectionSource source,
            RegionPool regions,
            int process,
            long shuffleId,
            long mapAttemptId,
            int numSubpartitions,
            int blockBytes,
            Replicas replicas) {
        this.source = source;
        this.regions = regions;
        this.process = process;
        this.shuffleId = shuffleId;
        this.mapAttemptId = mapAttemptId;
        this.numSubpartitions = numSubpartitions;
        this.blockBytes = blockBytes;
        this.replicas = replicas;
        this.partitionLengths = new long[numSubpartitions];
    }

    /**
     * Begins another pass over the partitions, after the rest of the previous one is sent. Without
     * this call there is a single pass.
     *
     * @param last whether the streams of this pass end their partitions
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
                    String.format(
                            "partition %d of %d cannot follow partition %d: partitions come in"
                                    + " increasing order",
                            partition, numSubpartitions, subpartition));
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

    /** Ends, in the last pass, the partitions before {@code end} that have no bytes in it. */
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
     * Reserves room in {@link #region} at the returned position. The caller puts bytes there and
     * calls {@link #advance}.
     *
     * @return -1 if a block cannot have that many bytes
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

    /** Returns the stored bytes of each partition, headers included. */
    public long[] partitionLengths() {
        return partitionLengths;
    }

    /** Returns the stored bytes so far, headers included. */
    public long totalBytes() {
        return totalBytes + position;
    }

    /** Returns the nanoseconds waited for credit. */
    public long creditWaitNanos() {
        return sender == null ? 0 : sender.creditWaitNanos();
    }

    /** Returns the bytes sent through a region area, resent bytes included. */
    public long sharedBytes() {
        return sender == null ? 0 : sender.sharedBytes();
    }

    /** Sends the rest of the map output and requests its commit, without waiting for the answer. */
    public void requestCommit() throws IOException {
        if (ended || inPartition || !lastPass || committing) {
            throw new IllegalStateException(
                    "a map output cannot be committed twice, after its end, inside a partition, or"
                            + " before its last pass");
        }
        endUnwritten(numSubpartitions);
        sendRegion(true);
        committing = true;
        sender().requestCommit();
    }

    /**
     * Commits the map output, or waits for the requested commit.
     *
     * @return the TaskManager that has the output in its journal
     */
    public Message.HelloAck commit() throws IOException {
        if (!committing) {
            requestCommit();
        }
        Message.HelloAck location = sender().finish();
        end();
        return location;
    }

    /** Aborts the output; does nothing after the end. Never throws. */
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

    /** Makes room for at least one byte; returns the room in the current block. */
    private int ensureRoom() throws IOException {
        ensureOpen();
        if (blockStart >= 0) {
            int room = blockRoom();
            if (room > 0) {
                return room;
            }
            // Not the last block of its stream, which is open until the stream ends.
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
        boolean full = region != null && region.capacity() - position < Blocks.HEADER_BYTES + room;
        boolean wide = regionFirst >= 0 && subpartition - regionFirst >= MAX_LENGTHS;
        if (position > 0 && (full || wide)) {
            if (regionLast == subpartition) {
                closePartitionInRegion();
            }
            sendRegion(false);
        }
        if (region == null) {
            region = regions.take(process);
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
        // Buffers are big endian, as block headers are.
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
            process = sender.process();
            // The previous buffer is free now, and this one after the next region is sent.
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
                            source, regions, shuffleId, mapAttemptId, numSubpartitions, replicas);
        }
        return sender;
    }
}
