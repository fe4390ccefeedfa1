package io.sluice.spark.writer;

import java.io.IOException;
import org.apache.spark.memory.MemoryConsumer;
import org.apache.spark.memory.MemoryMode;
import org.apache.spark.memory.TaskMemoryManager;

/** Acquires the memory of a map task's pages from Spark, which may ask for it back at any time. */
final class RecordMemory extends MemoryConsumer implements PartitionPages.Memory {
    /** Sends the records in the pages and gives their memory back. */
    @FunctionalInterface
    interface Spill {
        /** Returns the number of bytes given back; 0 if that is not possible now. */
        long run() throws IOException;
    }

    private final Spill spill;
    private long peakBytes;

    RecordMemory(TaskMemoryManager manager, Spill spill) {
        super(manager, PartitionPages.PAGE_BYTES, MemoryMode.ON_HEAP);
        this.spill = spill;
    }

    @Override
    public boolean acquirePage() {
        long granted = acquireMemory(PartitionPages.PAGE_BYTES);
        if (granted < PartitionPages.PAGE_BYTES) {
            freeMemory(granted);
            return false;
        }
        peakBytes = Math.max(peakBytes, getUsed());
        return true;
    }

    @Override
    public void releasePages(int count) {
        freeMemory((long) count * PartitionPages.PAGE_BYTES);
    }

    @Override
    public long spill(long size, MemoryConsumer trigger) throws IOException {
        return spill.run();
    }

    long peakBytes() {
        return peakBytes;
    }
}
