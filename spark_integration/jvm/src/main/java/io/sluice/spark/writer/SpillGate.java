package io.sluice.spark.writer;

import io.sluice.client.wire.ClientException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;

/**
 * Excludes two users of the same pages: the task's thread, which stores records, and any thread
 * whose request for memory makes the writer send them.
 *
 * <p>A request for memory never waits, because it holds a lock of Spark's that the task's thread
 * may need next. The task's thread pays one atomic operation for each record.
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

    /**
     * Begins to store a record; waits for a running spill to end, whose own waits have deadlines.
     */
    void beginRecord() throws ClientException {
        if (!STATE.compareAndSet(this, FREE, RECORD)) {
            awaitSpill();
        }
    }

    void endRecord() {
        STATE.setRelease(this, FREE);
    }

    /**
     * Begins a spill, unless a record is being stored or another spill is running, on this thread
     * or another.
     */
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

    /**
     * Enters like {@link #beginRecord} at the end of the task, and waits even if the thread is
     * interrupted.
     */
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
