package io.sluice.client;

import java.io.IOException;
import java.util.List;
import java.util.function.Consumer;

/**
 * What all gates of tasks have in common: their connection, their counts, and their end. One thread
 * reads; {@link #close} may come from another one, which ends the reader's wait.
 *
 * @param <T> what is read at a time
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
     * @param endSubpartition behind the last partition wanted
     * @param credit buffers each channel may have under way
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

    /** The channels that may hold buffers. */
    abstract List<? extends ConsumerChannel> channels();

    /** The next of what is read; waits for it. Null when everything has come. */
    abstract T find() throws IOException;

    // ---- the beginning

    /** Goes on with a leased connection, which the gate gives back or closes in the end. */
    final void use(TaskManagerConnection connection) throws IOException {
        if (cancelled) {
            giveBack.accept(connection);
            throw closedMeanwhile();
        }
        leg = new ConsumerLeg(connection, shuffleId, startSubpartition, endSubpartition, credit);
        inUse = connection;
    }

    /** Asks for the first channels; if that fails the gate is closed. */
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

    /** Asks for all channels. */
    void askFirst() throws IOException {
        leg.ask(channels());
    }

    // ---- reading

    /**
     * The next of what is read; waits for it.
     *
     * @return null when everything has come; the gate is closed then
     * @throws SourceFailure a source failed for good
     * @throws ClientException the connection to the own TaskManager failed, and no other can take
     *     its place
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

    // ---- what is counted

    /** Nanoseconds this gate has waited so far. */
    public final synchronized long waitedNanos() {
        // Once the connection is given back it counts for others.
        return waitedBefore + (done ? 0 : leg.waitedNanos());
    }

    /** Bytes received so far from the own TaskManager, block headers included. */
    public final synchronized long localBytes() {
        return localBytesBefore + (done ? 0 : leg.localBytes());
    }

    /** Bytes received so far from other TaskManagers, block headers included. */
    public final synchronized long remoteBytes() {
        return remoteBytesBefore + (done ? 0 : leg.remoteBytes());
    }

    private void addBytes() {
        localBytesBefore += leg.localBytes();
        remoteBytesBefore += leg.remoteBytes();
    }

    // ---- the end

    /** Whether nobody has begun to read yet. */
    final boolean isIdle() {
        return owner == null;
    }

    /** Whether the calling thread is the one that reads. */
    public final boolean isReadByCaller() {
        return owner == Thread.currentThread();
    }

    /** Closes the connection; another one is to take its place. */
    final void drop() {
        waitedBefore += leg.waitedNanos();
        addBytes();
        leg.connection().close();
    }

    /**
     * Ends the gate: the connection goes back to the pool if everything has come or the TaskManager
     * confirms, else it is closed. Idempotent.
     */
    @Override
    public final void close() {
        if (done) {
            return;
        }
        boolean own = isIdle() || isReadByCaller();
        if (!own) {
            // The reader may sit in a wait, with the lock held.
            cancelled = true;
            inUse.cancel();
        }
        synchronized (this) {
            failed |= !own;
            finish(own);
        }
    }

    /** Another thread may still look at the bytes that were read last: then nothing is recycled. */
    private void finish(boolean recycle) {
        if (done) {
            return;
        }
        if (recycle) {
            channels().forEach(ConsumerChannel::release);
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
