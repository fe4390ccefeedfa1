package io.sluice.spark.writer;

import io.sluice.client.ClientException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;

/**
 * Keeps two apart that use the same pages: the task's thread, which stores records one after the
 * other, and a request for memory of any thread, which sends them.
 *
 * <p>A request never waits: it holds a lock of Spark's that the task's thread may need next. What
 * the task's thread pays is one atomic operation for each record.
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

    /** Begins to store a record; waits for the end of a spill, whose own waits have deadlines. */
    void beginRecord() throws ClientException {
        if (!STATE.compareAndSet(this, FREE, RECORD)) {
            awaitSpill();
        }
    }

    void endRecord() {
        STATE.setRelease(this, FREE);
    }

    /**
     * Begins a spill unless a record is being stored, or another spill is under way, on this thread
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
     * As {@link #beginRecord} at the end of the task, which has to wait even if it is interrupted.
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
