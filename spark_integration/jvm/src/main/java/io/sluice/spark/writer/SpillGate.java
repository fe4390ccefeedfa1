package io.sluice.spark.writer;

import io.sluice.client.wire.ClientException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;

/**
 * A lock between the task's thread, which stores records, and any thread that spills them. A spill
 * never waits, because it holds a lock of Spark's that the task's thread may need. It costs one
 * atomic operation for each record.
 */
final class SpillGate {
    private static final int FREE = 0;
    private static final int RECORD = 1;
    private static final int SPILL = 2;
    private static final VarHandle STATE;

    static {
        try {
            STATE = MethodHandles.lookup().findVarHandle(SpillGate.class, "state", int.class);
        } catch (ReflectiveOperationException e) {
            throw new ExceptionInInitializerError(e);
        }
    }

    @SuppressWarnings("unused")
    private volatile int state;

    /** Begins to store a record; waits for a running spill, whose own waits have deadlines. */
    void beginRecord() throws ClientException {
        if (!STATE.compareAndSet(this, FREE, RECORD)) {
            awaitSpill();
        }
    }

    void endRecord() {
        STATE.setRelease(this, FREE);
    }

    /** Begins a spill, unless a record is being stored or another spill is running. */
    boolean tryBeginSpill() {
        return STATE.compareAndSet(this, FREE, SPILL);
    }

    synchronized void endSpill() {
        STATE.setVolatile(this, FREE);
        notifyAll();
    }

    private synchronized void awaitSpill() throws ClientException {
        try {
            while (!STATE.compareAndSet(this, FREE, RECORD)) {
                wait();
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new ClientException.Interrupted(
                    "the task was interrupted while another thread of it sent its records");
        }
    }

    /** Like {@link #beginRecord}, but waits even if the thread is interrupted. */
    synchronized void beginEnd() {
        boolean interrupted = false;
        while (!STATE.compareAndSet(this, FREE, RECORD)) {
            try {
                wait();
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
