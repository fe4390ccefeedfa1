package io.sluice.spark.writer;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The memory of a task, granted like Spark's: free memory first, then memory that other operators
 * of the task release.
 */
final class TaskMemory {
    /** The memory of an executor. */
    static final class Pool {
        private long free;

        Pool(long bytes) {
            free = bytes;
        }

        private synchronized long take(long most) {
            long granted = Math.min(most, free);
            free -= granted;
            return granted;
        }

        private synchronized void add(long bytes) {
            free += bytes;
        }
    }

    /** Stands for SparkOutOfMemoryError, which is an error too. */
    static final class OutOfMemory extends Error {
        private static final long serialVersionUID = 1L;

        OutOfMemory(IOException cause) {
            super(cause);
        }
    }

    private final Pool pool;
    private final List<Operator> operators = new ArrayList<>();

    TaskMemory(Pool pool) {
        this.pool = pool;
    }

    /** Returns the memory of another operator of the task. */
    Operator operator(ExecutionMemory.Spill spill) {
        Operator operator = new Operator(spill);
        operators.add(operator);
        return operator;
    }

    /** Returns the memory of all operators of the task. */
    long used() {
        return operators.stream().mapToLong(Operator::used).sum();
    }

    /** The memory of one operator. */
    final class Operator implements ExecutionMemory {
        private final Spill spill;
        private final AtomicLong used = new AtomicLong();

        private Operator(Spill spill) {
            this.spill = spill;
        }

        @Override
        public long acquire(long bytes) {
            synchronized (TaskMemory.this) {
                long granted = pool.take(bytes);
                for (Operator other : operators) {
                    if (granted < bytes && other != this && other.used() > 0) {
                        other.spill();
                        granted += pool.take(bytes - granted);
                    }
                }
                used.addAndGet(granted);
                return granted;
            }
        }

        private void spill() {
            try {
                spill.run();
            } catch (InterruptedIOException e) {
                throw new IllegalStateException(e);
            } catch (IOException e) {
                throw new OutOfMemory(e);
            }
        }

        @Override
        public void release(long bytes) {
            used.addAndGet(-bytes);
            pool.add(bytes);
        }

        @Override
        public long used() {
            return used.get();
        }
    }
}
