package io.sluice.client.gate;

import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.wire.ClientException;
import java.io.IOException;
import java.util.List;
import java.util.function.Consumer;

/**
 * Base of gates: connection, counters and close. One thread reads; another thread may call {@link
 * #close}, which ends the reader's wait.
 *
 * @param <T> the unit that is read at a time
 */
public abstract class ConsumerGate<T> implements AutoCloseable {
    private final long shuffleId;
    private final int startSubpartition;
    private final int endSubpartition;
    private final Consumer<TaskManagerConnection> release;

    final int credit;
    ConsumerLeg leg;
    int openChannels;
    long waitedBefore;
    boolean failed;
    volatile boolean done;
    volatile boolean cancelled;

    private long localBytesBefore;
    private long remoteBytesBefore;
    private volatile TaskManagerConnection inUse;
    private volatile Thread owner;

    /**
     * @param endSubpartition exclusive end of the range
     * @param credit messages in flight to each channel
     * @param release takes back a clean connection
     */
    ConsumerGate(
            long shuffleId,
            int startSubpartition,
            int endSubpartition,
            int credit,
            Consumer<TaskManagerConnection> release) {
        this.shuffleId = shuffleId;
        this.startSubpartition = startSubpartition;
        this.endSubpartition = endSubpartition;
        this.credit = credit;
        this.release = release;
    }

    /** Returns the channels that may hold buffers. */
    abstract List<? extends ConsumerChannel> channels();

    /** Waits for the next unit and returns it, or null at the end. */
    abstract T find() throws IOException;

    // ---- opening

    /** Uses a leased connection, which {@link #close} releases or closes. */
    final void use(TaskManagerConnection connection) throws IOException {
        if (cancelled) {
            release.accept(connection);
            throw closedMeanwhile();
        }
        leg = new ConsumerLeg(connection, shuffleId, startSubpartition, endSubpartition, credit);
        inUse = connection;
    }

    /** Requests all channels; closes the gate on failure. */
    final void open() throws IOException {
        openChannels = channels().size();
        try {
            requestFirst();
        } catch (IOException | RuntimeException e) {
            failed = true;
            finish(true);
            throw e;
        }
    }

    /** Requests all channels. */
    void requestFirst() throws IOException {
        leg.request(channels());
    }

    // ---- reading

    /**
     * Waits for the next unit and returns it.
     *
     * @return null at the end, when the gate has closed itself
     * @throws SourceFailure if a source failed
     * @throws ClientException if no TaskManager can be read through
     */
    public T next() throws IOException {
        owner = Thread.currentThread();
        synchronized (this) {
            if (done) {
                if (openChannels > 0) {
                    throw closedMeanwhile();
                }
                return null;
            }
            try {
                T found = find();
                if (found == null) {
                    finish(true);
                }
                return found;
            } catch (IOException | RuntimeException e) {
                failed = true;
                throw e;
            }
        }
    }

    static ClientException.Interrupted closedMeanwhile() {
        return new ClientException.Interrupted("the gate was closed while it was read");
    }

    // ---- counts

    /** Returns the nanoseconds this gate has waited so far. */
    public final synchronized long waitedNanos() {
        // After the release of the connection, its waits belong to other tasks.
        return waitedBefore + (done ? 0 : leg.waitedNanos());
    }

    /** Returns the bytes received so far from the own TaskManager, block headers included. */
    public final synchronized long localBytes() {
        return localBytesBefore + (done ? 0 : leg.localBytes());
    }

    /** Returns the bytes received so far from other TaskManagers, block headers included. */
    public final synchronized long remoteBytes() {
        return remoteBytesBefore + (done ? 0 : leg.remoteBytes());
    }

    private void addBytes() {
        localBytesBefore += leg.localBytes();
        remoteBytesBefore += leg.remoteBytes();
    }

    // ---- closing

    /** Returns whether no thread has begun to read yet. */
    final boolean isIdle() {
        return owner == null;
    }

    /** Returns whether the calling thread reads the gate. */
    public final boolean isReadByCaller() {
        return owner == Thread.currentThread();
    }

    /** Closes the connection, to be replaced by another one. */
    final void drop() {
        waitedBefore += leg.waitedNanos();
        addBytes();
        leg.connection().close();
    }

    /**
     * Closes the gate; idempotent. The connection returns to the pool if all data has arrived or
     * the TaskManager confirms the close.
     */
    @Override
    public final void close() {
        if (done) {
            return;
        }
        boolean own = isIdle() || isReadByCaller();
        if (!own) {
            // The reader may wait while it holds the lock.
            cancelled = true;
            inUse.cancel();
        }
        synchronized (this) {
            failed |= !own;
            finish(own);
        }
    }

    void recycleBuffers() {
        channels().forEach(ConsumerChannel::release);
    }

    /** Ends the gate. Buffers are not recycled while another thread may still read them. */
    private void finish(boolean recycle) {
        if (done) {
            return;
        }
        if (recycle) {
            recycleBuffers();
        }
        waitedBefore += leg.waitedNanos();
        boolean clean = !failed && leg.close();
        addBytes();
        done = true;
        if (clean) {
            release.accept(leg.connection());
        } else {
            leg.connection().close();
        }
    }
}
