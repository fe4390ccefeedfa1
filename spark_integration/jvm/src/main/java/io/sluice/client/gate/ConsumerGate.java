package io.sluice.client.gate;

import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.wire.ClientException;
import java.io.IOException;
import java.util.List;
import java.util.function.Consumer;

/**
 * Manages the connection, the counts and the end of a gate, whatever it reads.
 *
 * <p>One thread reads. Another thread may call {@link #close}, which ends the reader's wait.
 *
 * @param <T> the unit that is read at a time
 */
abstract class ConsumerGate<T> implements AutoCloseable {
    private final long shuffleId;
    private final int startSubpartition;
    private final int endSubpartition;
    private final Consumer<TaskManagerConnection> giveBack;

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
     * @param endSubpartition first partition behind the range
     * @param credit buffers that each channel may have under way
     * @param giveBack takes a connection on which nothing is under way
     */
    ConsumerGate(
            long shuffleId,
            int startSubpartition,
            int endSubpartition,
            int credit,
            Consumer<TaskManagerConnection> giveBack) {
        this.shuffleId = shuffleId;
        this.startSubpartition = startSubpartition;
        this.endSubpartition = endSubpartition;
        this.credit = credit;
        this.giveBack = giveBack;
    }

    /** Returns the channels that may hold buffers. */
    abstract List<? extends ConsumerChannel> channels();

    /** Waits for the next unit and returns it, or null at the end. */
    abstract T find() throws IOException;

    // ---- opening

    /** Uses a leased connection, which the gate gives back or closes in the end. */
    final void use(TaskManagerConnection connection) throws IOException {
        if (cancelled) {
            giveBack.accept(connection);
            throw closedMeanwhile();
        }
        leg = new ConsumerLeg(connection, shuffleId, startSubpartition, endSubpartition, credit);
        inUse = connection;
    }

    /** Requests the first channels; closes the gate if that fails. */
    final void open() throws IOException {
        openChannels = channels().size();
        try {
            askFirst();
        } catch (IOException | RuntimeException e) {
            failed = true;
            finish(true);
            throw e;
        }
    }

    /** Requests all channels. */
    void askFirst() throws IOException {
        leg.ask(channels());
    }

    // ---- reading

    /**
     * Waits for the next unit and returns it.
     *
     * @return null at the end; the gate is closed then
     * @throws SourceFailure if a source failed for good
     * @throws ClientException if the connection to the own TaskManager failed and no other can
     *     replace it
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
        // After the connection is given back, its waits belong to other tasks.
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

    /** Returns whether the calling thread is the one that reads. */
    public final boolean isReadByCaller() {
        return owner == Thread.currentThread();
    }

    /** Closes the connection; another one will replace it. */
    final void drop() {
        waitedBefore += leg.waitedNanos();
        addBytes();
        leg.connection().close();
    }

    /**
     * Ends the gate; idempotent. The connection goes back to the pool if all data has arrived or
     * the TaskManager confirms the end; otherwise it is closed.
     */
    @Override
    public final void close() {
        if (done) {
            return;
        }
        boolean own = isIdle() || isReadByCaller();
        if (!own) {
            // The reader may be waiting with the lock held.
            cancelled = true;
            inUse.cancel();
        }
        synchronized (this) {
            failed |= !own;
            finish(own);
        }
    }

    /** Recycles all buffers that the gate holds. */
    void recycleBuffers() {
        channels().forEach(ConsumerChannel::release);
    }

    /**
     * Ends the gate. Buffers are not recycled if another thread may still look at the bytes it read
     * last.
     */
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
            giveBack.accept(leg.connection());
        } else {
            leg.connection().close();
        }
    }
}
