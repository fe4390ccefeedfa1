package io.sluice.spark.writer;

/**
 * Acquires the memory of a map task's pages from Spark, which may ask for it back at any time.
 *
 * <p>If Spark has none left, because cached blocks or other tasks have it, the writer still gets
 * {@link #RESERVED_PAGES}, so it can always gather records before it sends them. Like the file
 * buffers of Spark's own writers, these pages are not part of Spark's execution memory.
 */
final class RecordMemory implements PartitionPages.Memory {
    /** Pages that a writer can always have. Any record that is gathered fits into them. */
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
