package io.sluice.client;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.IOException;
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
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Predicate;
import java.util.zip.CRC32C;

/**
 * A small TaskManager in memory: keeps map outputs and serves them, one thread for each connection,
 * with the behaviours that tests ask for.
 */
final class MockDaemon implements AutoCloseable {
    static final String ID = "tm-mock";
    private static final int SEGMENT = 1024;
    private static final int LARGE_PAYLOAD = 100_000;

    /** What the daemon does instead of the next consumer leg. */
    enum Mode {
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

    volatile Mode mode = Mode.NORMAL;
    volatile String id = ID;
    volatile long features = Frames.FEATURE_RESUMABLE_OUTPUTS;

    /** What it shares with {@link Frames#FEATURE_REGION_AREAS}; to be set by the test. */
    volatile MockAreas areas;

    /** How many channels meet the mode, and at which of their buffers. */
    final AtomicInteger modeTimes = new AtomicInteger(Integer.MAX_VALUE);

    volatile int modeFromBuffer = 1;

    /** The connection on which such a message comes ends there, once. */
    final AtomicReference<Predicate<Message>> cut = new AtomicReference<>();

    volatile boolean forgetsSecured;
    volatile boolean answersPings;

    /** Whether that message still has its effect, and only the answer is lost. */
    volatile boolean cutAfter;

    /** Of each committed map attempt its regions, which are served one after the other. */
    final Map<Long, List<TreeMap<Integer, byte[]>>> outputs = new ConcurrentHashMap<>();

    final ConcurrentLinkedQueue<Message> received = new ConcurrentLinkedQueue<>();
    volatile int largestPayload;
    final Semaphore regionsReceived = new Semaphore(0);
    final AtomicInteger connections = new AtomicInteger();
    private final List<SocketChannel> sockets = new ArrayList<>();

    /** The regions that are secured of map outputs that are not committed, by attempt. */
    private final Map<Long, List<TreeMap<Integer, byte[]>>> secured = new ConcurrentHashMap<>();

    private final ServerSocketChannel server;
    private final Endpoint endpoint;
    private final Thread acceptor;

    MockDaemon() throws IOException {
        this(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
    }

    /** Listens on a Unix socket. */
    MockDaemon(Path path) throws IOException {
        this(UnixDomainSocketAddress.of(path));
    }

    private MockDaemon(SocketAddress address) throws IOException {
        boolean unix = address instanceof UnixDomainSocketAddress;
        server =
                unix
                        ? ServerSocketChannel.open(StandardProtocolFamily.UNIX)
                        : ServerSocketChannel.open();
        server.bind(address, 50);
        endpoint =
                server.getLocalAddress() instanceof InetSocketAddress tcp
                        ? Endpoint.tcp("127.0.0.1", tcp.getPort())
                        : new Endpoint(address.toString(), null, 0);
        acceptor = new Thread(this::accept, "mock-accept");
        acceptor.setDaemon(true);
        acceptor.start();
    }

    Endpoint endpoint() {
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
            DataInputStream in =
                    new DataInputStream(new BufferedInputStream(Channels.newInputStream(socket)));
            new Session(in, Channels.newOutputStream(socket)).run();
        } catch (IOException e) {
            // The client went away.
        }
    }

    /** Ends all connections so that the client's next write fails. */
    void resetConnections() {
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
            // The kernel listens on as long as a thread is inside accept().
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

    private final class Session {
        private final DataInputStream in;
        private final OutputStream out;
        private final Map<Long, Long> credits = new HashMap<>();
        private boolean muted;
        private List<TreeMap<Integer, byte[]>> output;
        private long attempt;
        private Message.BeginRegion region;
        private ByteArrayOutputStream regionBytes;
        private String area;
        private Message.SharedRegion shared;

        Session(DataInputStream in, OutputStream out) {
            this.in = in;
            this.out = out;
        }

        void send(Message message, byte[] payload) throws IOException {
            if (muted) {
                return;
            }
            byte[] frame = TestFrames.frame(message, payload);
            if (mode == Mode.BYTE_BY_BYTE) {
                for (byte b : frame) {
                    out.write(b);
                    out.flush();
                }
            } else {
                out.write(frame);
            }
        }

        void send(Message message) throws IOException {
            send(message, new byte[0]);
        }

        void run() throws IOException {
            while (true) {
                TestFrames.Received frame = TestFrames.read(in);
                received.add(frame.message());
                Predicate<Message> cutHere = cut.get();
                if (cutHere != null
                        && cutHere.test(frame.message())
                        && cut.compareAndSet(cutHere, null)) {
                    muted = true;
                    if (cutAfter) {
                        handle(frame.message(), frame.payload());
                    }
                    throw new IOException("cut as asked");
                }
                handle(frame.message(), frame.payload());
            }
        }

        private void handle(Message message, byte[] payload) throws IOException {
            if (message instanceof Message.Hello hello) {
                long agreed = hello.features() & (mode == Mode.LARGE_PAYLOADS ? -1L : features);
                send(new Message.HelloAck(1, id, SEGMENT, 0, agreed, "127.0.0.1", endpoint.port()));
                send(new Message.Ping(-1L));
            } else if (message instanceof Message.OpenPartition open) {
                output = new ArrayList<>();
                attempt = open.mapAttemptId();
                send(new Message.PartitionOpened(open.partition()));
            } else if (message instanceof Message.BeginRegion begin) {
                beginRegion(begin);
            } else if (message instanceof Message.ResumePartition resume) {
                resume(resume);
            } else if (message instanceof Message.AttachRegionArea attach) {
                Message.RegionAreaAttached answer = areas.attach(attach);
                area = answer.token();
                send(answer);
            } else if (message instanceof Message.SharedRegion where) {
                shared = where;
            } else if (message instanceof Message.SecureRegion secure) {
                takeShared();
                secured.put(attempt, List.copyOf(output));
                send(new Message.RegionSecured(secure.partition(), secure.region()));
            } else if (message instanceof Message.RegionData data) {
                regionData(data, payload);
            } else if (message instanceof Message.FinishPartition finish) {
                finish(finish);
            } else if (message instanceof Message.AbortPartition abort) {
                output = null;
                send(new Message.PartitionAborted(abort.partition()));
            } else if (message instanceof Message.OpenGate open) {
                open(open);
            } else if (message instanceof Message.CloseGate close) {
                send(new Message.GateClosed(close.gate()));
            } else if (message instanceof Message.Ping ping && answersPings) {
                send(new Message.Pong(ping.nonce()));
            } else if (message instanceof Message.AddCredit add) {
                credits.merge(add.channel(), add.credit(), Long::sum);
            }
        }

        private void resume(Message.ResumePartition resume) throws IOException {
            attempt = resume.mapAttemptId();
            List<TreeMap<Integer, byte[]>> found = outputs.get(attempt);
            boolean committed = found != null;
            if (!committed) {
                if (forgetsSecured) {
                    secured.clear();
                }
                found = secured.getOrDefault(attempt, List.of());
                output = new ArrayList<>(found);
            }
            send(
                    new Message.PartitionResumed(
                            resume.partition(), found.size(), bytes(found), committed));
        }

        private static long bytes(List<? extends Map<Integer, byte[]>> regions) {
            return regions.stream()
                    .flatMap(slices -> slices.values().stream())
                    .mapToLong(slice -> slice.length)
                    .sum();
        }

        private int payloadBytes() {
            return mode == Mode.LARGE_PAYLOADS ? LARGE_PAYLOAD : SEGMENT;
        }

        private void beginRegion(Message.BeginRegion begin) throws IOException {
            region = begin;
            regionBytes = new ByteArrayOutputStream();
            long length = 0;
            for (long one : begin.lengths()) {
                length += one;
            }
            if (mode == Mode.LARGE_PAYLOADS) {
                send(new Message.RegionOpened(begin.partition(), begin.region(), LARGE_PAYLOAD));
            }
            long needed = (length + payloadBytes() - 1) / payloadBytes();
            while (needed > 0) {
                long grant = Math.min(needed, 3);
                send(new Message.AddCredit(begin.partition(), grant));
                needed -= grant;
            }
        }

        private void regionData(Message.RegionData data, byte[] payload) throws IOException {
            if (mode == Mode.SLOW_READER) {
                LockSupport.parkNanos(50_000);
            }
            if (data.offset() != regionBytes.size()) {
                fail(data.partition(), ErrorCode.REGION_MISMATCH, null);
                return;
            }
            regionBytes.write(payload);
            largestPayload = Math.max(largestPayload, payload.length);
            long length = 0;
            for (long one : region.lengths()) {
                length += one;
            }
            if (regionBytes.size() == length) {
                endRegion(regionBytes.toByteArray());
            }
        }

        private void endRegion(byte[] bytes) throws IOException {
            CRC32C crc = new CRC32C();
            crc.update(bytes);
            if (crc.getValue() != region.crc32c()) {
                fail(region.partition(), ErrorCode.CHECKSUM_MISMATCH, null);
            }
            TreeMap<Integer, byte[]> slices = new TreeMap<>();
            int offset = 0;
            for (int i = 0; i < region.lengths().length; i++) {
                int n = (int) region.lengths()[i];
                if (n > 0) {
                    slices.put(
                            (int) region.firstSubpartition() + i,
                            Arrays.copyOfRange(bytes, offset, offset + n));
                }
                offset += n;
            }
            output.add(slices);
            regionsReceived.release();
        }

        /** As late as a TaskManager may: what a client changes too early is found damaged. */
        private void takeShared() throws IOException {
            if (shared != null) {
                region = shared.region();
                int length = (int) Arrays.stream(region.lengths()).sum();
                endRegion(areas.read(area, shared.areaOffset(), length));
                shared = null;
            }
        }

        private void finish(Message.FinishPartition finish) throws IOException {
            takeShared();
            if (bytes(output) != finish.totalBytes() || output.size() != finish.regions()) {
                fail(finish.partition(), ErrorCode.REGION_MISMATCH, null);
                return;
            }
            if (outputs.putIfAbsent(attempt, output) != null) {
                fail(finish.partition(), ErrorCode.DUPLICATE_MAP_OUTPUT, null);
                return;
            }
            send(new Message.PartitionFinished(finish.partition()));
        }

        private void open(Message.OpenGate open) throws IOException {
            send(new Message.GateOpened(open.gate()));
            for (Message.GateChannel channel : open.channels()) {
                credits.put(channel.channel(), open.initialCredit());
                serve(open, channel);
            }
        }

        private void serve(Message.OpenGate open, Message.GateChannel channel) throws IOException {
            if (mode == Mode.SILENT) {
                return;
            }
            ByteArrayOutputStream all = new ByteArrayOutputStream();
            for (long id : channel.mapAttemptIds()) {
                List<TreeMap<Integer, byte[]>> done = outputs.get(id);
                if (done == null || mode == Mode.PARTITION_NOT_FOUND) {
                    fail(channel.channel(), ErrorCode.PARTITION_NOT_FOUND, id);
                    return;
                }
                for (TreeMap<Integer, byte[]> slices : done) {
                    for (byte[] bytes :
                            slices.subMap(
                                            (int) open.startSubpartition(),
                                            (int) open.endSubpartition())
                                    .values()) {
                        all.write(bytes);
                    }
                }
            }
            byte[] bytes = all.toByteArray();
            Mode now = mode;
            int length = now == Mode.OMIT_LAST_BLOCK ? bytes.length - 129 : bytes.length;
            long sequence = 0;
            for (int offset = 0; offset < length; ) {
                waitForCredit(channel.channel());
                int n = Math.min(payloadBytes(), length - offset);
                byte[] payload = Arrays.copyOfRange(bytes, offset, offset + n);
                if (sequence == modeFromBuffer && goesWrong(now)) {
                    if (now == Mode.DISCONNECT_IN_DATA) {
                        byte[] frame =
                                TestFrames.frame(
                                        new Message.BufferResponse(
                                                channel.channel(), sequence, 0, 0),
                                        payload);
                        out.write(frame, 0, frame.length / 2);
                        throw new IOException("disconnect as asked");
                    } else if (now == Mode.CONNECTION_LOST) {
                        fail(channel.channel(), ErrorCode.CONNECTION_LOST, null);
                        return;
                    } else if (now == Mode.SKIP_A_BUFFER) {
                        sequence++;
                    } else {
                        payload[n - 1] ^= 1;
                    }
                }
                send(
                        new Message.BufferResponse(channel.channel(), sequence++, 0, Message.DATA),
                        payload);
                offset += n;
            }
            long total = now == Mode.WRONG_TOTALS ? length + 1 : length;
            byte[] event = TestEvents.endOfPartition(total, sequence);
            send(new Message.BufferResponse(channel.channel(), sequence, 0, Message.EVENT), event);
        }

        /** Whether something is to go wrong at a buffer, once more. */
        private boolean goesWrong(Mode now) {
            return switch (now) {
                case FLIP_A_BIT, DISCONNECT_IN_DATA, CONNECTION_LOST, SKIP_A_BUFFER ->
                        modeTimes.getAndUpdate(left -> Math.max(0, left - 1)) > 0;
                default -> false;
            };
        }

        private void waitForCredit(long channel) throws IOException {
            while (credits.get(channel) == 0) {
                TestFrames.Received frame = TestFrames.read(in);
                received.add(frame.message());
                handle(frame.message(), frame.payload());
            }
            credits.merge(channel, -1L, Long::sum);
        }

        private void fail(long channel, ErrorCode code, Long attempt) throws IOException {
            send(
                    new Message.ErrorResponse(
                            channel, code.number(), 1, false, "as asked", "", "", attempt));
        }
    }
}
