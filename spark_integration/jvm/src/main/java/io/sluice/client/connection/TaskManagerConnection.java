package io.sluice.client.connection;

import io.sluice.client.tls.TlsRefusals;
import io.sluice.client.wire.Chunk;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.FrameHandler;
import io.sluice.client.wire.Frames;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.UnresolvedAddressException;
import java.util.List;
import java.util.function.BooleanSupplier;

/**
 * A connection to a TaskManager, driven by the thread that uses it. An interrupt ends its wait with
 * {@link ClientException.Interrupted}. After any exception except a {@link ClientException.Remote}
 * that names a channel, the connection must be closed. Not thread safe, except {@link #cancel} and
 * {@link #wake}.
 */
public final class TaskManagerConnection implements AutoCloseable {
    /** Maximum number of a partition, gate or channel; 0 follows. */
    public static final long MAX_NUMBER = 0x7FFF_FFFFL;

    private final ClientOptions options;
    private final int role;
    private final FrameSocket socket;
    private final ConnectionWaits waits;

    private FrameHandler handler;
    private Message.HelloAck ack;
    private long nextNumber;
    private RegionArea regionArea;

    private TaskManagerConnection(Endpoint endpoint, ClientOptions options, int role)
            throws IOException {
        this.options = options;
        this.role = role;
        this.socket = FrameSocket.open(endpoint, options, new Dispatcher());
        this.waits = new ConnectionWaits(socket, options);
    }

    /**
     * Connects and does the handshake.
     *
     * @param role {@link Message#ROLE_PRODUCER}, {@link Message#ROLE_CONSUMER} or {@link
     *     Message#ROLE_DRIVER}
     * @throws ClientException.ConnectFailed if no TaskManager answers within the deadline
     */
    public static TaskManagerConnection connect(Endpoint endpoint, ClientOptions options, int role)
            throws ClientException {
        return connect(endpoint, options, role, null);
    }

    /**
     * Connects and does the handshake, as above.
     *
     * @param next handles the messages that follow the handshake; null to drop them
     */
    static TaskManagerConnection connect(
            Endpoint endpoint, ClientOptions options, int role, FrameHandler next)
            throws ClientException {
        TaskManagerConnection connection = null;
        try {
            connection = new TaskManagerConnection(endpoint, options, role);
            connection.waits.connect();
            connection.shakeHands(next);
            return connection;
        } catch (IOException | RuntimeException e) {
            // NIO throws a RuntimeException for an unresolved host name.
            if (connection != null) {
                connection.close();
            }
            if (e instanceof ClientException.Interrupted interrupted) {
                throw interrupted;
            }
            Exception cause = TlsRefusals.in(e);
            throw new ClientException.ConnectFailed(endpoint.toString(), reason(cause), cause);
        }
    }

    /** Returns the reason of a failure. */
    private static String reason(Exception failure) {
        if (failure instanceof UnresolvedAddressException) {
            return "the host name is unknown";
        }
        return failure.getMessage() == null
                ? failure.getClass().getSimpleName()
                : failure.getMessage();
    }

    private void shakeHands(FrameHandler next) throws IOException {
        Handshake handshake =
                new Handshake(
                        hello(),
                        Handshake.credentialFor(role, options.credential()),
                        socket.dialed(),
                        socket.channelBinding(),
                        this::send,
                        () -> handler = next);
        send(handshake.hello());
        handler = handshake;
        waits.awaitHandshake(() -> handshake.ack() != null);
        ack = handshake.ack();
        if (ack.version() != Frames.VERSION
                || ack.process() >= ack.processes()
                || ack.segmentSizeBytes() < 1
                || ack.segmentSizeBytes() > Frames.MAX_SEGMENT_BYTES) {
            throw new ClientException.Protocol(
                    ErrorCode.UNSUPPORTED_VERSION,
                    "this client does not support the answer to the handshake: " + ack,
                    null);
        }
        if (options.tls().needsEncryptedPeers() && (ack.features() & Frames.PEERS_ENCRYPTED) == 0) {
            throw TlsRefusals.unencryptedPeers();
        }
        socket.reader().allowPayload(segmentBytes(), Frames.MAX_LARGE_PAYLOAD_BYTES);
    }

    private Message.Hello hello() {
        String name = options.name();
        return new Message.Hello(
                Frames.MAGIC,
                Frames.VERSION,
                Frames.VERSION,
                role,
                options.applicationId(),
                new byte[0],
                0,
                0,
                Frames.PEERS_ENCRYPTED
                        | Frames.TRACES
                        | (role == Message.ROLE_CONSUMER ? Frames.DAMAGE_REPORTS : 0)
                        | (role == Message.ROLE_DRIVER ? Frames.MEMBERS : 0)
                        | (options.remoteCopies() ? Frames.REMOTE_COPIES : 0),
                name.substring(0, Math.min(name.length(), 256)));
    }

    public Endpoint endpoint() {
        return socket.endpoint();
    }

    public Message.HelloAck taskManager() {
        return ack;
    }

    int role() {
        return role;
    }

    public ClientOptions options() {
        return options;
    }

    /** Returns the TaskManager's segment size, the maximum payload without large payloads. */
    public int segmentBytes() {
        return (int) ack.segmentSizeBytes();
    }

    /** Returns an unused number for a partition, gate or channel. */
    public long nextNumber() {
        nextNumber = (nextNumber + 1) & MAX_NUMBER;
        return nextNumber;
    }

    /** Returns the region area attached to this connection, also while it is idle; or null. */
    public RegionArea regionArea() {
        return regionArea;
    }

    public void setRegionArea(RegionArea area) {
        regionArea = area;
    }

    /** Returns the methods that send and dispatch until a condition holds. */
    public ConnectionWaits waits() {
        return waits;
    }

    /** Returns the nanoseconds spent waiting so far. */
    public long waitedNanos() {
        return socket.waitedNanos();
    }

    public void setHandler(FrameHandler handler) {
        this.handler = handler;
    }

    /** Ends another thread's wait. The connection must then be closed. */
    public void cancel() {
        socket.cancel();
    }

    /** Makes {@link ConnectionWaits#awaitWhileAlive} on another thread check its condition. */
    public void wake() {
        socket.wake();
    }

    // ---- sending and receiving

    /** Puts a message into the send buffer; waits for room if it is full. */
    public void send(Message message) throws IOException {
        socket.writer().send(message, waits);
    }

    /**
     * Sends a message with its payload; returns when the caller may change {@code payload}.
     *
     * @param payload a direct buffer; its position is moved to its limit
     */
    public void send(Message message, ByteBuffer payload) throws IOException {
        socket.writer().send(message, payload, waits);
    }

    /** Sends a message if possible at once, even on an interrupted thread, before the close. */
    public void sendLast(Message message) {
        if (socket.isOpen() && socket.writer().takeAlone(message)) {
            try {
                socket.write();
            } catch (IOException e) {
                // The TaskManager notices the end of the connection.
            }
        }
    }

    /** Sends as much as the socket takes now. */
    public void sendNow() throws IOException {
        socket.checkUsable();
        socket.write();
    }

    /** Sends everything buffered, and dispatches received frames meanwhile. */
    public void flush() throws IOException {
        waits.await(socket::isFlushed);
    }

    /** Sends what the socket takes and dispatches what has arrived, without waiting. */
    public void receive() throws IOException {
        socket.checkUsable();
        socket.write();
        while (socket.read()) {
            socket.write();
        }
    }

    /** Registers the connection for reads with a selector. */
    SelectionKey register(Selector selector, Object attachment) throws IOException {
        return socket.register(selector, attachment);
    }

    /**
     * Sends and dispatches until {@code done}, which is also asked when others have received bytes
     * or can send. It should call their {@link #receive}.
     *
     * @param wakeAtNanos as for {@link ConnectionWaits#await(BooleanSupplier, String, long)}
     */
    public void awaitWith(
            List<TaskManagerConnection> others, BooleanSupplier done, String what, long wakeAtNanos)
            throws IOException {
        try {
            socket.watch(others.stream().map(each -> each.socket).toList());
            waits.await(done, what, wakeAtNanos);
        } finally {
            if (socket.isOpen()) {
                socket.unwatch();
            }
        }
    }

    /** Returns whether an idle connection can be used again. */
    boolean isReusable() {
        try {
            setHandler(null);
            socket.checkUsable();
            socket.read();
            socket.write();
            return socket.isOpen() && socket.isFlushed() && socket.reader().atBorder();
        } catch (IOException e) {
            return false;
        }
    }

    @Override
    public void close() {
        socket.close();
    }

    /** Handles messages about the connection itself and forwards all others. */
    private final class Dispatcher implements FrameHandler {
        @Override
        public void onMessage(Message message) throws IOException {
            if (message instanceof Message.Ping ping) {
                // Sent by write(), because a frame may be half written here.
                socket.writer().pong(ping.nonce());
            } else if (message instanceof Message.ErrorResponse response
                    && response.channel() == null) {
                socket.end();
                throw new ClientException.Remote(endpoint().toString(), response);
            } else if (message instanceof Message.CloseRequest) {
                socket.end();
                throw new ClientException.ConnectionLost(
                        endpoint().toString(), "the TaskManager is shutting down", null);
            } else if (handler != null
                    && !(message instanceof Message.Pong pong && waits.takes(pong))) {
                handler.onMessage(message);
            }
            // Without a handler, late answers for the last user are dropped.
        }

        @Override
        public void onBuffer(Message.BufferResponse response, Chunk payload) throws IOException {
            if (handler != null) {
                handler.onBuffer(response, payload);
            } else {
                options.chunks().recycle(payload);
            }
        }

        @Override
        public void onEnd(Message.BufferResponse response, Message.EndOfPartition event)
                throws IOException {
            if (handler != null) {
                handler.onEnd(response, event);
            }
        }
    }
}
