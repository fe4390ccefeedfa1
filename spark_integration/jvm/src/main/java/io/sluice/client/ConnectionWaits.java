package io.sluice.client;

import java.io.IOException;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.LongSupplier;

/**
 * How the thread of a connection waits: what moves meanwhile, after how long it gives up, and when
 * it asks for a sign of life.
 */
final class ConnectionWaits implements FrameWriter.Room {
    private static final String IO_TIMEOUT = "spark.sluice.io.timeout";
    private static final String CONNECT_TIMEOUT = "spark.sluice.io.connectTimeout";

    private static final long END_TIMEOUT_MILLIS = 5_000;

    private final FrameSocket socket;
    private final long connectTimeoutMillis;
    private final long ioTimeoutMillis;

    ConnectionWaits(FrameSocket socket, ClientOptions options) {
        this.socket = socket;
        this.connectTimeoutMillis = options.connectTimeoutMillis();
        this.ioTimeoutMillis = options.ioTimeoutMillis();
    }

    /** Connects the socket. */
    void connect() throws IOException {
        if (!socket.connect()) {
            long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(connectTimeoutMillis);
            while (!socket.finishConnect()) {
                pause(deadline, deadline, "the connection", connectTimeoutMillis, CONNECT_TIMEOUT);
            }
        }
    }

    /** Sends what is buffered until {@code taken}. */
    @Override
    public void await(BooleanSupplier taken) throws IOException {
        await(taken, "the TaskManager to read");
    }

    /**
     * Sends what is buffered and dispatches what arrives until {@code done}.
     *
     * @throws ClientException.Deadline nothing was read or written for {@code
     *     spark.sluice.io.timeout}
     */
    void await(BooleanSupplier done, String what) throws IOException {
        await(done, what, Long.MAX_VALUE);
    }

    /**
     * As above, but returns at a certain time whatever has come.
     *
     * @param wakeAtNanos as {@link System#nanoTime}; {@code Long.MAX_VALUE} for never
     */
    void await(BooleanSupplier done, String what, long wakeAtNanos) throws IOException {
        await(done, what, ioTimeoutMillis, IO_TIMEOUT, wakeAtNanos);
    }

    /** As above, for what takes no longer than a connect. */
    void awaitSoon(BooleanSupplier done, String what) throws IOException {
        await(done, what, connectTimeoutMillis, CONNECT_TIMEOUT, Long.MAX_VALUE);
    }

    /** As above, for the end of something that is given up if need be. */
    void awaitEnd(BooleanSupplier done, String what) throws IOException {
        await(done, what, END_TIMEOUT_MILLIS, "fixed", Long.MAX_VALUE);
    }

    private void await(
            BooleanSupplier done, String what, long timeoutMillis, String setting, long wakeAtNanos)
            throws IOException {
        long timeoutNanos = TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        long deadline = System.nanoTime() + timeoutNanos;
        while (true) {
            socket.checkUsable();
            // Both directions move in every round, so that a full peer cannot block us both.
            boolean wrote = socket.write();
            boolean heard = socket.read();
            if (done.getAsBoolean()) {
                return;
            }
            long now = System.nanoTime();
            boolean wakes = wakeAtNanos != Long.MAX_VALUE;
            if (wakes && wakeAtNanos - now <= 0) {
                return;
            }
            if (wrote || heard) {
                deadline = now + timeoutNanos;
                continue;
            }
            socket.watchForBoth();
            pause(deadline, wakes ? wakeAtNanos : deadline, what, timeoutMillis, setting);
        }
    }

    private void pause(
            long deadline, long wakeAtNanos, String what, long timeoutMillis, String setting)
            throws IOException {
        long now = System.nanoTime();
        if (TimeUnit.NANOSECONDS.toMillis(deadline - now) <= 0) {
            throw new ClientException.Deadline(
                    socket.endpoint().toString(), what, timeoutMillis, setting);
        }
        long mostNanos = Math.min(deadline - now, Math.max(0, wakeAtNanos - now));
        // Rounded up: zero would be for ever.
        socket.pause(TimeUnit.NANOSECONDS.toMillis(mostNanos) + 1);
    }

    /**
     * For what may take any time because somebody else is slow. The TaskManager has to show that it
     * is alive: after half of {@code spark.sluice.io.timeout} without a byte from it, it is asked,
     * and has the other half.
     *
     * @param mostNanos asked before each pause: look at {@code done} again after at most that long,
     *     though nothing came
     * @throws ClientException.Deadline the TaskManager gives no sign of life
     */
    void awaitPatiently(BooleanSupplier done, LongSupplier mostNanos, String what)
            throws IOException {
        long patienceNanos = TimeUnit.MILLISECONDS.toNanos(ioTimeoutMillis) / 2;
        long lastSign = System.nanoTime();
        boolean asked = false;
        while (true) {
            socket.checkUsable();
            boolean wrote = socket.write();
            boolean heard = socket.read();
            if (done.getAsBoolean()) {
                return;
            }
            long now = System.nanoTime();
            if (heard) {
                lastSign = now;
                asked = false;
            }
            if (wrote || heard) {
                continue;
            }
            long left = lastSign + patienceNanos - now;
            if (left <= 0) {
                if (asked) {
                    throw new ClientException.Deadline(
                            socket.endpoint().toString(), what, ioTimeoutMillis, IO_TIMEOUT);
                }
                asked = true;
                lastSign = now;
                socket.writer().send(new Message.Ping(now), this);
                continue;
            }
            long pauseNanos = Math.max(1, Math.min(left, mostNanos.getAsLong()));
            socket.watchForBoth();
            // Rounded up: a pause that ends too early would go round and round for the rest of a
            // millisecond.
            socket.pause((pauseNanos + 999_999) / 1_000_000);
        }
    }
}
