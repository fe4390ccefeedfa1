package io.sluice.spark.writer;

import java.io.IOException;
import java.util.Arrays;
import org.apache.spark.unsafe.Platform;

/**
 * Gathers serialized records by partition, without index or sort. Not thread safe. A partition is a
 * chain of chunks, cut from pages. Chunks are small at first and double in size, so that ten
 * thousand partitions need little more memory than their records.
 */
final class PartitionPages {
    /** Too small to be a humongous object of G1 with any heap. */
    static final int PAGE_BYTES = 256 * 1024;

    private static final int PAGE_SHIFT = 18;
    private static final int PAGE_MASK = PAGE_BYTES - 1;

    /** Address of the next chunk, and the number of bytes used. */
    private static final int CHUNK_HEADER_BYTES = 8;

    private static final int MIN_CHUNK_BYTES = 256;
    private static final int MAX_CHUNK_BYTES = 32 * 1024;

    /** The end of a page stays unused if it is smaller than this. */
    private static final int MIN_ROOM_BYTES = 64;

    private static final int NONE = -1;

    /** Grants the memory of pages. */
    interface Memory {
        /** Acquires memory for a page; returns whether it was granted. */
        boolean acquirePage();

        void releasePages(int count);
    }

    /** Receives the bytes, in the order of the partitions. */
    interface Sink {
        void begin(int partition) throws IOException;

        void write(byte[] bytes, int offset, int length) throws IOException;

        void end() throws IOException;
    }

    private final Memory memory;
    private final int maxPages;

    /** Pages with an index below {@link #usedPages} contain chunks; the others are empty. */
    private byte[][] pages = new byte[16][];

    private int pageCount;
    private int usedPages;
    private byte[] page;
    private int pagePosition = PAGE_BYTES;

    // By partition; positions and addresses are page index << PAGE_SHIFT | offset in the page.
    private final int[] heads;
    private final int[] tails;
    private final int[] positions;
    private final int[] ends;
    private final int[] nextChunkBytes;
    private int firstChunkBytes = MIN_CHUNK_BYTES;

    /**
     * @param maxBytes limit of the bytes in pages; at least one page is used
     */
    PartitionPages(int numPartitions, int maxBytes, Memory memory) {
        this.memory = memory;
        this.maxPages = Math.max(1, maxBytes / PAGE_BYTES);
        this.heads = new int[numPartitions];
        this.tails = new int[numPartitions];
        this.positions = new int[numPartitions];
        this.ends = new int[numPartitions];
        this.nextChunkBytes = new int[numPartitions];
        reset();
    }

    private void reset() {
        usedPages = 0;
        page = null;
        pagePosition = PAGE_BYTES;
        Arrays.fill(heads, NONE);
        // No room: position and end are the same.
        Arrays.fill(positions, 0);
        Arrays.fill(ends, 0);
        Arrays.fill(nextChunkBytes, firstChunkBytes);
    }

    /**
     * Appends a record, completely or not at all.
     *
     * @return false if there is no room. If the pages are empty, the record is too large
     */
    boolean append(int partition, Object base, long offset, int length) {
        int position = positions[partition];
        // Without a chunk, position and end are equal, and even an empty record needs a chunk.
        if (length <= ends[partition] - position && length > 0) {
            Platform.copyMemory(base, offset, pageOf(position), placeOf(position), length);
            positions[partition] = position + length;
            return true;
        }
        if (!makeRoom(length)) {
            return false;
        }
        copy(partition, base, offset, length);
        return true;
    }

    /** Appends a record like {@link #append}, behind its length as an int in big endian. */
    boolean appendSized(int partition, Object base, long offset, int length) {
        int position = positions[partition];
        // Not as a sum, which could overflow.
        if (length <= ends[partition] - position - Integer.BYTES) {
            byte[] into = pageOf(position);
            putInt(into, position & PAGE_MASK, length);
            Platform.copyMemory(base, offset, into, placeOf(position + Integer.BYTES), length);
            positions[partition] = position + Integer.BYTES + length;
            return true;
        }
        if (!makeRoom((long) length + Integer.BYTES)) {
            return false;
        }
        byte[] size = new byte[Integer.BYTES];
        putInt(size, 0, length);
        copy(partition, size, Platform.BYTE_ARRAY_OFFSET, size.length);
        copy(partition, base, offset, length);
        return true;
    }

    static void putInt(byte[] into, int at, int value) {
        into[at] = (byte) (value >>> 24);
        into[at + 1] = (byte) (value >>> 16);
        into[at + 2] = (byte) (value >>> 8);
        into[at + 3] = (byte) value;
    }

    private static int getInt(byte[] from, int at) {
        return from[at] << 24
                | (from[at + 1] & 0xFF) << 16
                | (from[at + 2] & 0xFF) << 8
                | (from[at + 3] & 0xFF);
    }

    private byte[] pageOf(int address) {
        return pages[address >>> PAGE_SHIFT];
    }

    private static long placeOf(int address) {
        return (long) Platform.BYTE_ARRAY_OFFSET + (address & PAGE_MASK);
    }

    /** Makes room for {@code length} more bytes of any partition. */
    private boolean makeRoom(long length) {
        // An upper bound that includes chunk headers and unused ends of pages.
        long wanted = length + (length >> 6) + 4096;
        if (wanted > (long) maxPages * PAGE_BYTES) {
            return false;
        }
        long room = PAGE_BYTES - pagePosition + (long) (pageCount - usedPages) * PAGE_BYTES;
        while (room < wanted) {
            if (pageCount == maxPages || !memory.acquirePage()) {
                return false;
            }
            if (pageCount == pages.length) {
                pages = Arrays.copyOf(pages, 2 * pageCount);
            }
            pages[pageCount++] = new byte[PAGE_BYTES];
            room += PAGE_BYTES;
        }
        return true;
    }

    private void copy(int partition, Object base, long offset, int length) {
        int done = 0;
        while (done < length) {
            if (positions[partition] == ends[partition]) {
                addChunk(partition);
            }
            int position = positions[partition];
            int n = Math.min(length - done, ends[partition] - position);
            Platform.copyMemory(base, offset + done, pageOf(position), placeOf(position), n);
            positions[partition] = position + n;
            done += n;
        }
    }

    private void addChunk(int partition) {
        if (PAGE_BYTES - pagePosition < MIN_ROOM_BYTES) {
            page = pages[usedPages++];
            pagePosition = 0;
        }
        int size =
                Math.min(nextChunkBytes[partition] + CHUNK_HEADER_BYTES, PAGE_BYTES - pagePosition);
        int address = (usedPages - 1) << PAGE_SHIFT | pagePosition;
        putInt(page, pagePosition, NONE);
        pagePosition += size;
        if (heads[partition] == NONE) {
            heads[partition] = address;
        } else {
            closeChunk(partition, address);
        }
        tails[partition] = address;
        positions[partition] = address + CHUNK_HEADER_BYTES;
        // The end of the last chunk of a page is the address of the next page.
        ends[partition] = address + size;
        nextChunkBytes[partition] = Math.min(2 * nextChunkBytes[partition], MAX_CHUNK_BYTES);
    }

    private void closeChunk(int partition, int next) {
        int tail = tails[partition];
        byte[] bytes = pageOf(tail);
        putInt(bytes, tail & PAGE_MASK, next);
        putInt(bytes, (tail & PAGE_MASK) + 4, positions[partition] - tail - CHUNK_HEADER_BYTES);
    }

    boolean isEmpty() {
        return usedPages == 0;
    }

    int pageCount() {
        return pageCount;
    }

    /** Passes all bytes to {@code sink}; they stay until {@link #clear}. */
    void drainTo(Sink sink) throws IOException {
        int partitions = 0;
        for (int partition = 0; partition < heads.length; partition++) {
            int address = heads[partition];
            if (address == NONE) {
                continue;
            }
            partitions++;
            closeChunk(partition, NONE);
            sink.begin(partition);
            do {
                byte[] bytes = pageOf(address);
                int at = address & PAGE_MASK;
                sink.write(bytes, at + CHUNK_HEADER_BYTES, getInt(bytes, at + 4));
                address = getInt(bytes, at);
            } while (address != NONE);
            sink.end();
        }
        chooseFirstChunk(partitions);
    }

    /** Sets the size of first chunks to a quarter of the average partition so far. */
    private void chooseFirstChunk(int partitions) {
        long average = (long) usedPages * PAGE_BYTES / Math.max(1, partitions);
        int quarter =
                Integer.highestOneBit((int) Math.max(1, Math.min(average / 4, MAX_CHUNK_BYTES)));
        firstChunkBytes = Math.max(MIN_CHUNK_BYTES, quarter);
    }

    /** Removes all bytes and keeps the pages. */
    void clear() {
        reset();
    }

    /** Removes all bytes and releases the pages. */
    void release() {
        int count = pageCount;
        Arrays.fill(pages, 0, count, null);
        pageCount = 0;
        reset();
        if (count > 0) {
            memory.releasePages(count);
        }
    }
}
