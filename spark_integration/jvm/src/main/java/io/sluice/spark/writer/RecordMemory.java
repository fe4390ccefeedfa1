package io.sluice.spark.writer;

/**
 * Acquires the memory of pages from Spark. If Spark has none left, a writer still gets {@link
 * #RESERVED_PAGES}, which are not part of Spark's execution memory, like the file buffers of
 * Spark's own writers.
 */
final class RecordMemory implements PartitionPages.Memory {
    /** Pages that a writer always gets; any gathered record fits into them. */
    static final int RESERVED_PAGES = 4;

    private final ExecutionMemory memory;
    private int pagesInReserve;
    private long peakBytes;

    RecordMemory(ExecutionMemory memory) {
        this.memory = memory;
    }

    @Override
    public boolean acquirePage() {
        long granted = memory.acquire(PartitionPages.PAGE_BYTES);
        if (granted == PartitionPages.PAGE_BYTES) {
            peakBytes = Math.max(peakBytes, memory.used());
            return true;
        }
        memory.release(granted);
        if (memory.used() / PartitionPages.PAGE_BYTES + pagesInReserve < RESERVED_PAGES) {
            pagesInReserve++;
            return true;
        }
        return false;
    }

    @Override
    public void releasePages(int count) {
        int reserved = Math.min(count, pagesInReserve);
        pagesInReserve -= reserved;
        memory.release((long) (count - reserved) * PartitionPages.PAGE_BYTES);
    }

    /** Returns the bytes of Spark's memory that are held. */
    long used() {
        return memory.used();
    }

    /** Returns the largest amount of Spark's memory that was held. */
    long peakBytes() {
        return peakBytes;
    }
}
