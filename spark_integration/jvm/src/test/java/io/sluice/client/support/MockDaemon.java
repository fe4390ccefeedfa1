package io.sluice.client.support;

import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Message;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.StandardProtocolFamily;
import java.net.StandardSocketOptions;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.Channels;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Predicate;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocket;

/**
 * A small TaskManager in memory. It keeps map outputs and serves them, with one thread for each
 * connection, and misbehaves as tests ask.
 */
public final class MockDaemon implements AutoCloseable {
    public static final String ID = "tm-mock";
    public static final int SEGMENT = 1024;
    public static final int LARGE_PAYLOAD = 100_000;

    /** Behaviour towards the next consumer leg. */
    public enum Mode {
        NORMAL,
        LARGE_PAYLOADS,
        BYTE_BY_BYTE,
        SLOW_READER,
        DISCONNECT_IN_DATA,
        SILENT,
        PARTITION_NOT_FOUND,
        WRONG_TOTALS,
        SKIP_A_BUFFER,
        CONNECTION_LOST,
        FLIP_A_BIT,
        OMIT_LAST_BLOCK
    }

    public volatile Mode mode = Mode.NORMAL;
    public volatile String id = ID;

    volatile String instanceId = "i";

    /** Which of how many data processes it is. */
    public volatile int process;

    public volatile int processes = 1;

    /** The port that it announces; by default that on which it listens. */
    public volatile int advertisedPort = -1;

    public volatile long features;

    /** The region areas; set by the test. */
    public volatile MockAreas areas;

    /** A fault of single sources, whatever the mode. */
    @FunctionalInterface
    public interface Fault {
        /**
         * Returns the error with which a channel ends in front of a buffer, or at its end, or null;
         * {@link ErrorCode#CHECKSUM_MISMATCH} damages the buffer.
         */
        ErrorCode at(Message.GateChannel channel, long buffer);
    }

    public volatile Fault fault = (channel, buffer) -> null;

    /** Whether a fault names the map output that it concerns, and the value it has. */
    public volatile boolean faultNamesOutput;

    public volatile String faultValue = "";

    /** TaskManagers whose sources are not served. */
    public volatile Set<String> silentSources = Set.of();

    /** Number of channels that meet the mode, and at which of their buffers. */
    public final AtomicInteger modeTimes = new AtomicInteger(Integer.MAX_VALUE);

    public volatile int modeFromBuffer = 1;

    /** Ends the connection on which a matching message arrives, once. */
    public final AtomicReference<Predicate<Message>> cut = new AtomicReference<>();

    /** Refuses every region from {@link #refusedFrom} on with this code, if not null. */
    public volatile ErrorCode refusal;

    public volatile long refusedFrom;

    /** Refuses every map output with this code, if not null. */
    public volatile ErrorCode refusesOutputs;

    /** Whether it grants no credit for regions. */
    volatile boolean withholdsCredit;

    public final Semaphore creditsWithheld = new Semaphore(0);
    public volatile boolean forgetsSecured;
    public volatile boolean answersPings;

    /** Told to a driver before a Pong, and once more after it. */
    public volatile List<Message> news = List.of();

    /** Told together with the HelloAck. */
    public volatile List<Message> newsAtConnect = List.of();

    /** Told before a Pong, once. */
    public volatile List<Message> newsAtPing = List.of();

    /** Whether the news of {@link #newsAtPing} come although their Pong is cut off. */
    public volatile boolean tellsBeforeCut;

    /** Whether the message of {@link #cut} still takes effect, and only its answer is lost. */
    public volatile boolean cutAfter;

    /** The regions of each committed map attempt, which are served one after the other. */
    public final Map<Long, List<TreeMap<Integer, byte[]>>> outputs = new ConcurrentHashMap<>();

    public final ConcurrentLinkedQueue<Message> received = new ConcurrentLinkedQueue<>();

    /** Map outputs that it reports as lost when they are checked. */
    volatile Set<Long> lacks = Set.of();

    /** What drivers have told. */
    public final BlockingQueue<Message> told = new LinkedBlockingQueue<>();

    public volatile int largestPayload;
    public final Semaphore regionsReceived = new Semaphore(0);
    public final AtomicInteger connections = new AtomicInteger();
    private final List<SocketChannel> sockets = new ArrayList<>();

    /** The secured regions of map outputs that are not committed, by attempt. */
    public final Map<Long, List<TreeMap<Integer, byte[]>>> secured = new ConcurrentHashMap<>();

    /** Accepts TCP connections with TLS, if it is set. */
    private final SSLContext tls;

    private final ServerSocketChannel server;
    private final Endpoint endpoint;
    private final Thread acceptor;

    public MockDaemon() throws IOException {
        this((SSLContext) null);
    }

    /** Listens with mutual TLS, or without TLS if {@code tls} is null. */
    public MockDaemon(SSLContext tls) throws IOException {
        this(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), tls);
    }

    /** Listens at an address of this host, and advertises it. */
    public MockDaemon(String host, int port) throws IOException {
        this(new InetSocketAddress(InetAddress.getByName(host), port), null);
    }

    /** Listens on a Unix socket. */
    public MockDaemon(Path path) throws IOException {
        this(UnixDomainSocketAddress.of(path), null);
    }

    private MockDaemon(SocketAddress address, SSLContext tls) throws IOException {
        this.tls = tls;
        boolean unix = address instanceof UnixDomainSocketAddress;
        server =
                unix
                        ? ServerSocketChannel.open(StandardProtocolFamily.UNIX)
                        : ServerSocketChannel.open();
        server.bind(address, 50);
        endpoint =
                server.getLocalAddress() instanceof InetSocketAddress tcp
                        ? Endpoint.tcp(tcp.getAddress().getHostAddress(), tcp.getPort())
                        : new Endpoint(address.toString(), null, 0);
        acceptor = new Thread(this::accept, "mock-accept");
        acceptor.setDaemon(true);
        acceptor.start();
    }

    public Endpoint endpoint() {
        return endpoint;
    }

    private void accept() {
        try {
            while (true) {
                SocketChannel socket = server.accept();
                if (!endpoint.isUnix()) {
                    socket.setOption(StandardSocketOptions.TCP_NODELAY, true);
                }
                connections.incrementAndGet();
                synchronized (sockets) {
                    sockets.add(socket);
                }
                Thread thread = new Thread(() -> serve(socket), "mock-serve");
                thread.setDaemon(true);
                thread.start();
            }
        } catch (IOException e) {
            // Closed by the test.
        }
    }

    private void serve(SocketChannel socket) {
        try (socket) {
            if (tls == null) {
                serve(Channels.newInputStream(socket), Channels.newOutputStream(socket));
                return;
            }
            try (SSLSocket encrypted =
                    (SSLSocket)
                            tls.getSocketFactory().createSocket(socket.socket(), null, 0, true)) {
                encrypted.setUseClientMode(false);
                encrypted.setNeedClientAuth(true);
                serve(encrypted.getInputStream(), encrypted.getOutputStream());
            }
        } catch (IOException e) {
            // The client went away.
        }
    }

    private void serve(InputStream in, OutputStream out) throws IOException {
        new MockSession(this, new DataInputStream(new BufferedInputStream(in)), out).run();
    }

    /** Ends all connections so that the client's next write fails. */
    public void resetConnections() {
        synchronized (sockets) {
            try {
                for (SocketChannel socket : sockets) {
                    if (!endpoint.isUnix() && socket.isOpen()) {
                        socket.setOption(StandardSocketOptions.SO_LINGER, 0);
                    }
                    socket.close();
                }
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
            sockets.clear();
        }
    }

    @Override
    public void close() throws IOException {
        server.close();
        try {
            // The kernel keeps listening as long as a thread is inside accept().
            acceptor.join(5000);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        synchronized (sockets) {
            for (SocketChannel socket : sockets) {
                socket.close();
            }
        }
    }
}
