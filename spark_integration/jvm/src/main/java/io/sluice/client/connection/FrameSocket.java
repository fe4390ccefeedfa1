package io.sluice.client.connection;

import io.sluice.client.tls.Tls;
import io.sluice.client.tls.TlsChannel;
import io.sluice.client.tls.TlsRefusals;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.FrameHandler;
import io.sluice.client.wire.FrameReader;
import io.sluice.client.wire.FrameWriter;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardProtocolFamily;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Frames on a non-blocking socket. Only {@link #pause} waits. Not thread safe, except {@link
 * #cancel} and {@link #wake}.
 */
public final class FrameSocket implements AutoCloseable {
    private static final int RECEIVE_BYTES = 256 * 1024;

    private final Endpoint endpoint;
    private final SocketChannel channel;
    private final Tls tls;
    private final Selector selector;
    private final SelectionKey key;
    private final FrameHandler handler;

    /** Direct without TLS; on the heap for decrypted bytes. */
    private final ByteBuffer in;

    private final FrameReader reader;
    private final FrameWriter writer;

    /** TLS on the channel, once it is connected; null on a connection without TLS. */
    private TlsChannel encrypted;

    /** Other sockets that end the pauses of this one, with their keys in its selector. */
    private final Map<FrameSocket, SelectionKey> watched = new HashMap<>();

    private long waitedNanos;
    private boolean open = true;
    private volatile boolean cancelled;

    private FrameSocket(
            Endpoint endpoint,
            ClientOptions options,
            FrameHandler handler,
            SocketChannel channel,
            Selector selector)
            throws IOException {
        this.endpoint = endpoint;
        this.tls = endpoint.isUnix() ? Tls.OFF : options.tls();
        this.in =
                tls.isOn()
                        ? ByteBuffer.allocate(RECEIVE_BYTES)
                        : ByteBuffer.allocateDirect(RECEIVE_BYTES);
        this.channel = channel;
        this.selector = selector;
        this.key = channel.register(selector, SelectionKey.OP_CONNECT);
        this.handler = handler;
        this.reader = new FrameReader(options.chunks());
        this.writer = new FrameWriter(endpoint);
    }

    /** Opens a socket that is not connected yet. */
    public static FrameSocket open(Endpoint endpoint, ClientOptions options, FrameHandler handler)
            throws IOException {
        SocketChannel channel = null;
        Selector selector = null;
        try {
            channel =
                    endpoint.isUnix()
                            ? SocketChannel.open(StandardProtocolFamily.UNIX)
                            : SocketChannel.open();
            channel.configureBlocking(false);
            if (!endpoint.isUnix()) {
                channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
                channel.setOption(StandardSocketOptions.SO_KEEPALIVE, true);
            }
            selector = Selector.open();
            return new FrameSocket(endpoint, options, handler, channel, selector);
        } catch (IOException | RuntimeException e) {
            closeQuietly(channel, selector);
            throw e;
        }
    }

    /** Begins to connect; returns whether the socket is connected. */
    boolean connect() throws IOException {
        return channel.connect(endpoint.address());
    }

    boolean finishConnect() throws IOException {
        return channel.finishConnect();
    }

    /** Continues the TLS handshake, if any; returns whether it is done. */
    boolean encrypt() throws IOException {
        if (!tls.isOn()) {
            return true;
        }
        if (encrypted == null) {
            encrypted = new TlsChannel(channel, tls.engine(endpoint), tls.hasCertificate());
        }
        in.clear();
        return encrypted.handshake(in);
    }

    /** Returns the endpoint and, of a host name, the address that it is connected to. */
    String dialed() throws IOException {
        if (endpoint.isUnix()) {
            return Endpoint.UNIX;
        }
        InetSocketAddress remote = (InetSocketAddress) channel.getRemoteAddress();
        Endpoint reached = Endpoint.tcp(remote.getAddress().getHostAddress(), remote.getPort());
        return endpoint.equals(reached) ? endpoint.toString() : endpoint + " " + reached;
    }

    /** Returns the SHA-256 of the server's certificate, for proofs; empty without TLS. */
    byte[] channelBinding() {
        return encrypted == null ? new byte[0] : encrypted.binding();
    }

    Endpoint endpoint() {
        return endpoint;
    }

    FrameReader reader() {
        return reader;
    }

    FrameWriter writer() {
        return writer;
    }

    /** Reads and dispatches available bytes; returns whether there were any. */
    boolean read() throws IOException {
        boolean moved = false;
        // Bounded, so that the caller can check its condition.
        for (int round = 0; round < 4; round++) {
            in.clear();
            int n;
            try {
                n = encrypted == null ? channel.read(in) : encrypted.read(in);
            } catch (IOException e) {
                throw new ClientException.ConnectionLost(endpoint.toString(), e.getMessage(), e);
            }
            if (n < 0 && reader.isTlsAlert()) {
                throw TlsRefusals.needsTls(null);
            }
            if (n < 0) {
                throw new ClientException.ConnectionLost(
                        endpoint.toString(),
                        reader.atBorder()
                                ? "the TaskManager closed it"
                                : "it ended in the middle of a frame",
                        null);
            }
            if (n == 0) {
                break;
            }
            moved = true;
            in.flip();
            reader.feed(in, handler);
            // TLS delivers whole records, which may not fill the buffer.
            if (encrypted == null ? n < RECEIVE_BYTES : !encrypted.hasReceived()) {
                break;
            }
        }
        return moved;
    }

    /** Writes as much as the socket takes; returns whether it took anything. */
    boolean write() throws IOException {
        try {
            if (encrypted == null) {
                return writer.writeTo(channel);
            }
            boolean moved = encrypted.flush();
            return writer.writeTo(encrypted) || moved;
        } catch (IOException e) {
            throw whyWriteFailed(e);
        }
    }

    /** Returns the reason of a failed write, which the TaskManager may have sent before. */
    private IOException whyWriteFailed(IOException failure) {
        try {
            boolean more = true;
            while (more) {
                more = read();
            }
        } catch (ClientException e) {
            if (e instanceof ClientException.Remote
                    || e.getCause() instanceof ClientException.Refused) {
                return e;
            }
            failure.addSuppressed(e);
        } catch (IOException fromHandler) {
            return fromHandler;
        }
        return new ClientException.ConnectionLost(
                endpoint.toString(), failure.getMessage(), failure);
    }

    /** Makes the next pauses end when bytes arrive or can be sent, also on watched sockets. */
    void watchForBoth() {
        update(key);
        watched.forEach(FrameSocket::update);
    }

    private void update(SelectionKey ofThis) {
        int interest = interest();
        // The key of a watched socket is cancelled when that socket is closed.
        if (ofThis.isValid() && ofThis.interestOps() != interest) {
            ofThis.interestOps(interest);
        }
    }

    private int interest() {
        boolean wants = writer.isWanting();
        return encrypted != null
                ? encrypted.interest(wants)
                : SelectionKey.OP_READ | (wants ? SelectionKey.OP_WRITE : 0);
    }

    /** Returns whether everything has been sent. */
    boolean isFlushed() {
        return writer.isEmpty() && (encrypted == null || !encrypted.hasUnsent());
    }

    /** Waits for the socket; 0 is without limit. */
    void pause(long millis) throws IOException {
        long before = System.nanoTime();
        selector.select(millis);
        selector.selectedKeys().clear();
        waitedNanos += System.nanoTime() - before;
        checkUsable();
    }

    /** Returns the nanoseconds spent in pauses so far. */
    long waitedNanos() {
        return waitedNanos;
    }

    /** Ends the pause of another thread. */
    void wake() {
        selector.wakeup();
    }

    /** Registers the socket for reads with another selector. */
    SelectionKey register(Selector other, Object attachment) throws IOException {
        return channel.register(other, SelectionKey.OP_READ, attachment);
    }

    /** Lets the pauses of this socket end when others can read, or send what is left. */
    void watch(List<FrameSocket> others) throws IOException {
        for (FrameSocket other : others) {
            if (other.channel.isOpen()) {
                watched.put(other, other.channel.register(selector, other.interest()));
            }
        }
    }

    /** Ends a {@link #watch}. */
    void unwatch() throws IOException {
        watched.values().forEach(SelectionKey::cancel);
        watched.clear();
        // Only a selection removes them. Until then the channels could not be closed or watched.
        selector.selectNow();
        selector.selectedKeys().clear();
    }

    /** Ends the pause of another thread and makes the socket unusable. */
    void cancel() {
        cancelled = true;
        selector.wakeup();
    }

    /** Called after the TaskManager has announced the end of the connection. */
    void end() {
        open = false;
    }

    boolean isOpen() {
        return open;
    }

    void checkUsable() throws ClientException {
        if (cancelled) {
            throw new ClientException.Interrupted("the shuffle operation was cancelled");
        }
        if (Thread.currentThread().isInterrupted()) {
            throw new ClientException.Interrupted(
                    "the task was interrupted while it used a TaskManager");
        }
        if (!open) {
            throw new ClientException.ConnectionLost(
                    endpoint.toString(), "it had been closed already", null);
        }
    }

    @Override
    public void close() {
        open = false;
        reader.discard();
        try {
            if (encrypted != null) {
                encrypted.close();
            }
        } catch (IOException e) {
            // The connection is closed anyway.
        }
        closeQuietly(channel, selector);
    }

    private static void closeQuietly(SocketChannel channel, Selector selector) {
        try {
            if (channel != null) {
                channel.close();
            }
            if (selector != null) {
                selector.close();
            }
        } catch (IOException e) {
            // The connection is closed anyway.
        }
    }
}
