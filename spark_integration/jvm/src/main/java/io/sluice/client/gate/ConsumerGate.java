package io.sluice.client.gate;

import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.connection.TaskTrace;
import io.sluice.client.wire.ClientException;
import java.io.IOException;
import java.util.List;
import java.util.function.Consumer;

/** Base of gates with one connection: counters and close. */
public abstract class ConsumerGate<T> implements Gate<T> {
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

    /** Finds the next unit. */
    @FunctionalInterface
    interface Finder<T> {
        /** Returns the next unit; null if there is none now, or at the end. */
        T find() throws IOException;
    }

    /** Returns the channels that may hold buffers. */
    abstract List<? extends ConsumerChannel> channels();

    /** Waits for the next unit and returns it, or null at the end. */
    abstract T find() throws IOException;

    /** Returns the trace of the task; null if it is not traced. */
    TaskTrace trace() {
        return null;
    }

    // ---- opening

    /** Uses a leased connection, which {@link #close} releases or closes. */
    final void use(TaskManagerConnection connection) throws IOException {
        if (cancelled) {
            release.accept(connection);
            throw closedMeanwhile();
        }
        leg =
                new ConsumerLeg(
                        connection, shuffleId, startSubpartition, endSubpartition, credit, trace());
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

    @Override
    public T next() throws IOException {
        return next(this::find);
    }

    /** Returns what {@code finder} finds; closes the gate at its end. */
    final T next(Finder<T> finder) throws IOException {
        claim();
        synchronized (this) {
            if (done) {
                if (openChannels > 0) {
                    throw closedMeanwhile();
                }
                return null;
            }
            try {
                T found = finder.find();
                if (found == null && openChannels == 0) {
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

    @Override
    public final synchronized long waitedNanos() {
        // After the release of the connection, its waits belong to other tasks.
        return waitedBefore + (done ? 0 : leg.waitedNanos());
    }

    @Override
    public final synchronized long localBytes() {
        return localBytesBefore + (done ? 0 : leg.localBytes());
    }

    @Override
    public final synchronized long remoteBytes() {
        return remoteBytesBefore + (done ? 0 : leg.remoteBytes());
    }

    private void addBytes() {
        localBytesBefore += leg.localBytes();
        remoteBytesBefore += leg.remoteBytes();
    }

    // ---- closing

    /** Makes the calling thread the reader, whose wait another thread's {@link #close} ends. */
    final void claim() {
        owner = Thread.currentThread();
    }

    /** Returns whether no thread has begun to read yet. */
    final boolean isIdle() {
        return owner == null;
    }

    @Override
    public final boolean isReadByCaller() {
        return owner == Thread.currentThread();
    }

    /** Closes the connection, to be replaced by another one. */
    final void drop() {
        waitedBefore += leg.waitedNanos();
        addBytes();
        leg.connection().close();
    }

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
