package io.sluice.client.connection;

import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.FrameWriter;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.LongSupplier;

/** Drives a socket while a thread waits: reads, writes, and pings a silent peer. */
public final class ConnectionWaits implements FrameWriter.Room {
    private static final String IO_TIMEOUT = "spark.sluice.io.timeout";
    private static final String SILENCE_TIMEOUT = "spark.sluice.io.silenceTimeout";
    private static final String CONNECT_TIMEOUT = "spark.sluice.io.connectTimeout";

    private static final long END_TIMEOUT_MILLIS = 5_000;

    /** The nonce of pings that no handler sent; no other ping has it. */
    private static final long SILENCE_NONCE = Long.MAX_VALUE;

    private final FrameSocket socket;
    private final long connectTimeoutMillis;
    private final long ioTimeoutMillis;
    private final long silenceTimeoutMillis;

    /** When bytes moved last during this wait, as {@link System#nanoTime}. */
    private long lastSign;

    /** Whether the TaskManager was pinged since. */
    private boolean asked;

    private long askedAt;

    /** Whether it has answered since the last read: a sign of life, but no progress. */
    private boolean ponged;

    /** Whether the last wait returned before its end, so that the next one continues it. */
    private boolean continues;

    public ConnectionWaits(FrameSocket socket, ClientOptions options) {
        this.socket = socket;
        this.connectTimeoutMillis = options.connectTimeoutMillis();
        this.ioTimeoutMillis = options.ioTimeoutMillis();
        this.silenceTimeoutMillis = options.silenceTimeoutMillis();
    }

    /** Connects the socket, and does the handshake of TLS within the same deadline. */
    public void connect() throws IOException {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(connectTimeoutMillis);
        if (!socket.connect()) {
            while (!socket.finishConnect()) {
                pause(deadline, deadline, "the connection", connectTimeoutMillis, CONNECT_TIMEOUT);
            }
        }
        while (!socket.encrypt()) {
            socket.watchForBoth();
            pause(
                    deadline,
                    deadline,
                    "the handshake of TLS",
                    connectTimeoutMillis,
                    CONNECT_TIMEOUT);
        }
    }

    @Override
    public void await(BooleanSupplier taken) throws IOException {
        await(taken, "the TaskManager to read");
    }

    /**
     * Sends buffered bytes and dispatches received frames until {@code done}.
     *
     * @throws ClientException.Deadline if nothing was read or written for {@code
     *     spark.sluice.io.timeout}
     * @throws ClientException.Silent if the TaskManager did not answer a ping
     */
    public void await(BooleanSupplier done, String what) throws IOException {
        await(done, what, Long.MAX_VALUE);
    }

    /**
     * Waits as above, but returns at the given time even if {@code done} does not hold.
     *
     * @param wakeAtNanos as {@link System#nanoTime}; {@code Long.MAX_VALUE} for never
     */
    public void await(BooleanSupplier done, String what, long wakeAtNanos) throws IOException {
        await(done, what, new Limit(ioTimeoutMillis, IO_TIMEOUT, true), wakeAtNanos);
    }

    /** Waits as above, with the deadline of a connect. */
    public void awaitSoon(BooleanSupplier done, String what) throws IOException {
        Limit limit = new Limit(connectTimeoutMillis, CONNECT_TIMEOUT, true);
        await(done, what, limit, Long.MAX_VALUE);
    }

    /** Waits for the handshake with one deadline, which received bytes do not extend. */
    void awaitHandshake(BooleanSupplier done) throws IOException {
        Limit limit = new Limit(connectTimeoutMillis, CONNECT_TIMEOUT, false);
        await(done, "the handshake", limit, Long.MAX_VALUE);
    }

    /** Waits as above for the orderly end of an operation. */
    public void awaitEnd(BooleanSupplier done, String what) throws IOException {
        Limit limit = new Limit(END_TIMEOUT_MILLIS, "fixed", true);
        await(done, what, limit, Long.MAX_VALUE);
    }

    /**
     * A timeout.
     *
     * @param setting its name in messages
     * @param isRenewed whether progress restarts it
     */
    private record Limit(long millis, String setting, boolean isRenewed) {}

    private void await(BooleanSupplier done, String what, Limit limit, long wakeAtNanos)
            throws IOException {
        long timeoutNanos = TimeUnit.MILLISECONDS.toNanos(limit.millis());
        long deadline = System.nanoTime() + timeoutNanos;
        boolean watches = limit.isRenewed() && silenceTimeoutMillis < limit.millis();
        if (!continues) {
            sign(System.nanoTime());
        }
        continues = false;
        while (true) {
            socket.checkUsable();
            // Read and write in every round, so that a full peer cannot block both sides.
            boolean wrote = socket.write();
            boolean received = socket.read();
            if (done.getAsBoolean()) {
                return;
            }
            long now = System.nanoTime();
            if (wrote || received) {
                sign(now);
            }
            boolean progress = wrote || (received && !ponged);
            ponged = false;
            boolean wakes = wakeAtNanos != Long.MAX_VALUE;
            if (wakes && wakeAtNanos - now <= 0) {
                continues = true;
                return;
            }
            if (progress && limit.isRenewed()) {
                deadline = now + timeoutNanos;
            }
            if ((wrote || received) && deadline - now > 0) {
                continue;
            }
            socket.watchForBoth();
            long wakeAt = wakes ? wakeAtNanos : deadline;
            if (watches) {
                long checkAt = checkSilence(now, what);
                wakeAt = checkAt - wakeAt < 0 ? checkAt : wakeAt;
            }
            pause(deadline, wakeAt, what, limit.millis(), limit.setting());
        }
    }

    private void sign(long now) {
        lastSign = now;
        asked = false;
    }

    /**
     * Pings the TaskManager after half of the longest silence; returns when to check again. A ping
     * that does not fit behind unsent bytes is not needed: sending them is a sign of life, too.
     */
    private long checkSilence(long now, String what) throws IOException {
        long halfNanos = TimeUnit.MILLISECONDS.toNanos(silenceTimeoutMillis) / 2;
        if (!asked) {
            if (now - lastSign < halfNanos) {
                return lastSign + halfNanos;
            }
            asked = true;
            askedAt = now; // not lastSign: this process may have paused before it asked
            if (socket.writer().takeAlone(new Message.Ping(SILENCE_NONCE))) {
                socket.write();
            }
        } else if (now - askedAt >= halfNanos) {
            throw new ClientException.Silent(
                    socket.endpoint().toString(), what, silenceTimeoutMillis, SILENCE_TIMEOUT);
        }
        return askedAt + halfNanos;
    }

    /** Takes a Pong if it answers a ping of a wait, so that no handler expects it. */
    boolean takes(Message.Pong pong) {
        boolean ours = pong.nonce() == SILENCE_NONCE;
        ponged |= ours;
        return ours;
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
        // Rounded up: select(0) has no timeout.
        socket.pause(TimeUnit.NANOSECONDS.toMillis(mostNanos) + 1);
    }

    /**
     * Waits without limit while the TaskManager is alive: after half of {@code
     * spark.sluice.io.silenceTimeout} without a byte it is pinged, and has the other half to
     * answer.
     *
     * @param mostNanos returns the maximum of the next pause, after which {@code done} is checked
     * @throws ClientException.Deadline if the TaskManager does not answer the ping
     */
    public void awaitWhileAlive(BooleanSupplier done, LongSupplier mostNanos, String what)
            throws IOException {
        long limitMillis = Math.min(ioTimeoutMillis, silenceTimeoutMillis);
        long silenceNanos = TimeUnit.MILLISECONDS.toNanos(limitMillis) / 2;
        long heardAt = System.nanoTime();
        boolean pinged = false;
        while (true) {
            socket.checkUsable();
            boolean wrote = socket.write();
            boolean received = socket.read();
            if (done.getAsBoolean()) {
                return;
            }
            long now = System.nanoTime();
            if (received) {
                heardAt = now;
                pinged = false;
            }
            if (wrote || received) {
                continue;
            }
            long left = heardAt + silenceNanos - now;
            if (left <= 0) {
                if (pinged) {
                    throw new ClientException.Deadline(
                            socket.endpoint().toString(), what, limitMillis, SILENCE_TIMEOUT);
                }
                pinged = true;
                heardAt = now;
                socket.writer().send(new Message.Ping(now), this);
                continue;
            }
            long pauseNanos = Math.max(1, Math.min(left, mostNanos.getAsLong()));
            socket.watchForBoth();
            // Rounded up: a pause that ends too early would spin.
            socket.pause((pauseNanos + 999_999) / 1_000_000);
        }
    }
}
