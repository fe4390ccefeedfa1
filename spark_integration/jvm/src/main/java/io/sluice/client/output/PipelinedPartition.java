package io.sluice.client.output;

import io.sluice.client.connection.ConnectionPool;
import io.sluice.client.connection.RoleHandler;
import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;

/**
 * A pipelined partition of a task, which is read while the task writes. The task writes into one
 * open buffer for each subpartition, and a thread of the partition sends the buffers.
 *
 * <p>With credit, full buffers are sent at once, and open buffers when the last flush is {@code
 * flushNanos} ago. Without credit, open buffers fill up. When {@code subpartitions + 16} buffers
 * are in use, {@link #write} waits: this is the back pressure.
 *
 * <pre>
 * state     write   finish           close    lost connection, ErrorResponse
 * OPEN      queued  FINISHED, waits  CLOSED   FAILED
 * FINISHED  -       -                -        FAILED until PartitionFinished came
 * FAILED    error   error            CLOSED   -
 * CLOSED    error   error            -        -
 * </pre>
 *
 * <p>One thread calls {@link #write} and {@link #finish}; any thread may call {@link #close}. A
 * partition that is closed before it is finished has failed for its readers.
 */
public final class PipelinedPartition implements AutoCloseable {
    /** Buffers in addition to one for each subpartition: the credit of a TaskManager. */
    private static final int QUEUED_BUFFERS = 16;

    private final TaskManagerConnection connection;
    private final ConnectionPool pool;
    private final long number;
    private final long flushNanos;
    private final int bufferBytes;
    private final int maxBuffers;
    private final Thread sender;

    // Guarded by this object, which is notified when a buffer becomes free or the state changes.
    private final Buffer[] open;
    private final ArrayDeque<Buffer> ready = new ArrayDeque<>();
    private final ArrayDeque<Buffer> free = new ArrayDeque<>();
    private int openBuffers;
    private int buffers;
    private int nextFlushed;
    private long lastFlush;
    private boolean finishing;
    private boolean finished;
    private boolean closed;
    private IOException failure;
    private long waitedNanos;

    // Used by the sender's thread only.
    private long credit;
    private long sentBytes;
    private boolean finishSent;

    /** Bytes for one subpartition. */
    private static final class Buffer {
        final byte[] bytes;
        int subpartition;
        int length;

        Buffer(int capacity) {
            bytes = new byte[capacity];
        }
    }

    /**
     * Opens the partition on a leased connection, which is released or closed in the end.
     *
     * @param flushNanos minimum time between two flushes
     */
    public PipelinedPartition(
            TaskManagerConnection connection,
            ConnectionPool pool,
            long shuffleId,
            long mapAttemptId,
            int numSubpartitions,
            long flushNanos)
            throws IOException {
        this.connection = connection;
        this.pool = pool;
        this.number = connection.nextNumber();
        this.flushNanos = flushNanos;
        this.bufferBytes = connection.segmentBytes();
        this.maxBuffers = numSubpartitions + QUEUED_BUFFERS;
        this.open = new Buffer[numSubpartitions];
        this.lastFlush = System.nanoTime() - flushNanos;
        connection.setHandler(new Handler());
        try {
            connection.send(
                    new Message.OpenPipelinedPartition(
                            number,
                            shuffleId,
                            mapAttemptId,
                            numSubpartitions,
                            Message.PARTITION_PIPELINED_BOUNDED,
                            Message.CONSUME_WHEN_REGISTERED));
            connection.sendNow();
        } catch (IOException | RuntimeException e) {
            connection.close();
            throw e;
        }
        sender = new Thread(this::run, "sluice-pipelined-" + shuffleId + "-" + mapAttemptId);
        sender.setDaemon(true);
        sender.start();
    }

    /** Returns the TaskManager that has the partition. */
    public Message.HelloAck taskManager() {
        return connection.taskManager();
    }

    // ---- the task's side

    /**
     * Appends bytes to a subpartition; waits while no buffer is free.
     *
     * @throws ClientException.Interrupted if the thread was interrupted meanwhile
     * @throws IOException if the partition has failed
     */
    public synchronized void write(int subpartition, byte[] bytes, int offset, int length)
            throws IOException {
        checkOpen();
        int done = 0;
        while (done < length) {
            Buffer buffer = open[subpartition];
            if (buffer == null) {
                buffer = takeBuffer();
                buffer.subpartition = subpartition;
                open[subpartition] = buffer;
                if (openBuffers++ == 0) {
                    connection.wake();
                }
            }
            int n = Math.min(length - done, bufferBytes - buffer.length);
            System.arraycopy(bytes, offset + done, buffer.bytes, buffer.length, n);
            buffer.length += n;
            done += n;
            if (buffer.length == bufferBytes) {
                makeReady(subpartition);
                connection.wake();
            }
        }
    }

    private Buffer takeBuffer() throws IOException {
        long since = 0;
        while (free.isEmpty() && buffers == maxBuffers) {
            since = since == 0 ? System.nanoTime() : since;
            awaitChange();
            checkOpen();
        }
        if (since != 0) {
            waitedNanos += System.nanoTime() - since;
        }
        Buffer buffer = free.poll();
        if (buffer == null) {
            buffer = new Buffer(bufferBytes);
            buffers++;
        }
        buffer.length = 0;
        return buffer;
    }

    /**
     * Sends the rest, and waits until the TaskManager has everything, which depends on the readers.
     *
     * @throws ClientException.Interrupted if the thread was interrupted meanwhile
     * @throws IOException if the partition has failed
     */
    public synchronized void finish() throws IOException {
        checkOpen();
        finishing = true;
        connection.wake();
        while (!finished) {
            awaitChange();
            checkFailure();
        }
    }

    /** Returns the nanoseconds that {@link #write} has waited for buffers so far. */
    public synchronized long waitedNanos() {
        return waitedNanos;
    }

    /** Aborts the partition unless it is finished; idempotent. */
    @Override
    public synchronized void close() {
        if (finished || closed) {
            return;
        }
        closed = true;
        notifyAll();
        // The sender then closes the connection.
        connection.cancel();
    }

    /** Waits for one signal; callers check their conditions in a loop. */
    @SuppressWarnings("WaitNotInLoop")
    private void awaitChange() throws ClientException.Interrupted {
        try {
            wait();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new ClientException.Interrupted(
                    "the task was interrupted while its output waited for readers");
        }
    }

    private void checkOpen() throws IOException {
        checkFailure();
        if (finishing) {
            throw new IllegalStateException("the pipelined partition is finished");
        }
    }

    private void checkFailure() throws IOException {
        if (failure != null) {
            throw failure;
        }
        if (closed) {
            throw new ClientException.Interrupted("the pipelined partition was closed");
        }
    }

    // ---- the sender's side

    private void run() {
        try {
            while (!isFinished()) {
                connection
                        .waits()
                        .awaitWhileAlive(
                                this::isWork,
                                this::nanosToFlush,
                                "credit for a pipelined partition");
                send();
            }
            pool.release(connection);
        } catch (IOException | RuntimeException e) {
            connection.close();
            fail(
                    e instanceof IOException io
                            ? io
                            : new IOException(
                                    "the sender of the pipelined partition failed: " + e, e));
        }
    }

    private synchronized boolean isFinished() {
        return finished;
    }

    private synchronized boolean isWork() {
        return finished
                || (credit > 0 && !ready.isEmpty())
                || isFlushDue()
                || (finishing && !finishSent && openBuffers == 0 && ready.isEmpty());
    }

    /** Returns whether open buffers are due. Without credit they fill up instead. */
    private boolean isFlushDue() {
        return openBuffers > 0
                && credit > ready.size()
                && (finishing || System.nanoTime() - lastFlush >= flushNanos);
    }

    private synchronized long nanosToFlush() {
        return openBuffers > 0 && credit > ready.size()
                ? lastFlush + flushNanos - System.nanoTime()
                : Long.MAX_VALUE;
    }

    private void send() throws IOException {
        Buffer buffer;
        while ((buffer = next()) != null) {
            connection.send(
                    new Message.PipelinedData(number, buffer.subpartition, Message.DATA),
                    ByteBuffer.wrap(buffer.bytes, 0, buffer.length));
            credit--;
            sentBytes += buffer.length;
            recycle(buffer);
        }
        if (isAllSent()) {
            finishSent = true;
            connection.send(new Message.FinishPartition(number, sentBytes, 0));
        }
    }

    private synchronized Buffer next() {
        if (isFlushDue()) {
            flush();
        }
        return credit > 0 ? ready.poll() : null;
    }

    /** Flushes open buffers within the credit, round robin. */
    private void flush() {
        for (int i = 0; i < open.length && openBuffers > 0 && credit > ready.size(); i++) {
            int subpartition = nextFlushed;
            nextFlushed = nextFlushed + 1 < open.length ? nextFlushed + 1 : 0;
            if (open[subpartition] != null) {
                makeReady(subpartition);
            }
        }
        lastFlush = System.nanoTime();
    }

    private void makeReady(int subpartition) {
        ready.add(open[subpartition]);
        open[subpartition] = null;
        openBuffers--;
    }

    private synchronized boolean isAllSent() {
        return finishing && !finishSent && openBuffers == 0 && ready.isEmpty();
    }

    private void recycle(Buffer buffer) {
        change(() -> free.add(buffer));
    }

    private void fail(IOException error) {
        change(() -> failure = failure == null && !finished ? error : failure);
    }

    /** Changes the state and wakes the task's thread. */
    private synchronized void change(Runnable change) {
        change.run();
        notifyAll();
    }

    /** Waits for the sender to end, for tests. */
    boolean join(long millis) throws InterruptedException {
        sender.join(millis);
        return !sender.isAlive();
    }

    private final class Handler extends RoleHandler {
        Handler() {
            super("on a producer connection");
        }

        @Override
        public void onMessage(Message message) throws IOException {
            if (message instanceof Message.AddCredit add) {
                if (add.channel() == number) {
                    credit += add.credit();
                }
            } else if (message instanceof Message.PartitionFinished answer) {
                if (answer.partition() == number) {
                    change(() -> finished = true);
                }
            } else if (message instanceof Message.ErrorResponse response) {
                if (response.channel() == number) {
                    throw new ClientException.Remote(connection.endpoint().toString(), response);
                }
            } else if (!(message instanceof Message.PartitionOpened
                    || message instanceof Message.Pong
                    // Readers of this plugin do not send it.
                    || message instanceof Message.TaskEvent)) {
                throw unexpected(message);
            }
        }
    }
}
