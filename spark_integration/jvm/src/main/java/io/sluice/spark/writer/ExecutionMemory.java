package io.sluice.spark.writer;

import java.io.IOException;
import org.apache.spark.memory.MemoryConsumer;
import org.apache.spark.memory.MemoryMode;
import org.apache.spark.memory.TaskMemoryManager;

/** Memory that the operators of a task share. */
interface ExecutionMemory {
    /** Returns the number of bytes granted, at most {@code bytes}. */
    long acquire(long bytes);

    void release(long bytes);

    long used();

    /** Sends the records in the pages and releases their memory. */
    @FunctionalInterface
    interface Spill {
        /** Returns the number of bytes released; 0 if that is not possible now. */
        long run() throws IOException;
    }

    /** Makes the memory of a writer; {@code spill} runs when others need it. */
    @FunctionalInterface
    interface Factory {
        ExecutionMemory create(Spill spill);
    }

    /** Spark's execution memory. Spark calls {@code spill} on any thread of the task. */
    final class Spark extends MemoryConsumer implements ExecutionMemory {
        private final Spill spill;

        Spark(TaskMemoryManager manager, Spill spill) {
            super(manager, PartitionPages.PAGE_BYTES, MemoryMode.ON_HEAP);
            this.spill = spill;
        }

        @Override
        public long acquire(long bytes) {
            return acquireMemory(bytes);
        }

        @Override
        public void release(long bytes) {
            freeMemory(bytes);
        }

        @Override
        public long used() {
            return getUsed();
        }

        @Override
        public long spill(long size, MemoryConsumer trigger) throws IOException {
            return spill.run();
        }
    }
}
