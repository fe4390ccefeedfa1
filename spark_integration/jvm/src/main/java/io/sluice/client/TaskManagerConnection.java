package io.sluice.client;

import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.LongSupplier;

/**
 * One connection to a TaskManager, driven by the thread that uses it.
 *
 * <p>The socket is non-blocking, so an interrupt of the thread does not close it: it only ends the wait,
 * with {@link ClientException.Interrupted}. After any exception but a {@link ClientException.Remote} that
 * names a channel the connection must be closed. Not thread safe, except {@link #cancel}.
 */
public final class TaskManagerConnection implements AutoCloseable {
  private static final int RECEIVE_BYTES = 256 * 1024;
  private static final int SEND_BYTES = 256 * 1024;

  /** Payloads from here on are written from where they are; smaller ones are joined in the send buffer. */
  private static final int UNCOPIED_BYTES = 64 * 1024;

  private final Endpoint endpoint;
  private final ClientOptions options;
  private final int role;
  private final SocketChannel channel;
  private final Selector selector;
  private final SelectionKey key;
  private final ByteBuffer in = ByteBuffer.allocateDirect(RECEIVE_BYTES);
  private final ByteBuffer out = ByteBuffer.allocateDirect(SEND_BYTES);
  private final ByteBuffer[] outAndPayload = {out, null};
  private final MessageEncoder encoder = new MessageEncoder();
  private final FrameReader reader;
  private final Dispatcher dispatcher = new Dispatcher();

  private FrameHandler handler;
  private Message.HelloAck ack;
  private Long pongNonce;
  private long nextNumber;
  private long waitedNanos;
  private boolean open = true;
  private boolean insideFrame;
  private volatile boolean cancelled;

  private TaskManagerConnection(
      Endpoint endpoint, ClientOptions options, int role, SocketChannel channel, Selector selector)
      throws IOException {
    this.endpoint = endpoint;
    this.options = options;
    this.role = role;
    this.channel = channel;
    this.selector = selector;
    this.key = channel.register(selector, SelectionKey.OP_CONNECT);
    this.reader = new FrameReader(options.chunks());
  }

  /**
   * Connects and shakes hands.
   *
   * @param role {@link Message#ROLE_PRODUCER}, {@link Message#ROLE_CONSUMER} or {@link Message#ROLE_DRIVER}
   * @throws ClientException.ConnectFailed nobody answers as a TaskManager does within the deadline
   */
  public static TaskManagerConnection connect(Endpoint endpoint, ClientOptions options, int role)
      throws ClientException {
    SocketChannel channel = null;
    Selector selector = null;
    try {
      channel =
          endpoint.isUnix() ? SocketChannel.open(StandardProtocolFamily.UNIX) : SocketChannel.open();
      channel.configureBlocking(false);
      if (!endpoint.isUnix()) {
        channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        channel.setOption(StandardSocketOptions.SO_KEEPALIVE, true);
      }
      selector = Selector.open();
      TaskManagerConnection connection =
          new TaskManagerConnection(endpoint, options, role, channel, selector);
      connection.establish();
      return connection;
    } catch (ClientException.Interrupted e) {
      closeQuietly(channel, selector);
      throw e;
    } catch (IOException | RuntimeException e) {
      // An unresolved host name is a RuntimeException of NIO.
      closeQuietly(channel, selector);
      throw new ClientException.ConnectFailed(endpoint.toString(), String.valueOf(e.getMessage()), e);
    }
  }

  private void establish() throws IOException {
    if (!channel.connect(endpoint.address())) {
      long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(options.connectTimeoutMillis());
      while (!channel.finishConnect()) {
        select(deadline, deadline, "the connection", options.connectTimeoutMillis(), "spark.sluice.io.connectTimeout");
      }
    }
    String name = options.name();
    send(
        new Message.Hello(
            Frames.MAGIC,
            Frames.VERSION,
            Frames.VERSION,
            role,
            options.applicationId(),
            new byte[0],
            0,
            0,
            Frames.FEATURE_LARGE_PAYLOADS | Frames.FEATURE_RESUMABLE_OUTPUTS,
            name.substring(0, Math.min(name.length(), 256))));
    handler = new HandshakeHandler();
    await(
        () -> ack != null,
        "the handshake",
        options.connectTimeoutMillis(),
        "spark.sluice.io.connectTimeout");
    handler = null;
    if (ack.version() != Frames.VERSION
        || ack.segmentSizeBytes() < 1
        || ack.segmentSizeBytes() > Frames.MAX_SEGMENT_BYTES) {
      throw new ClientException.Protocol(
          ErrorCode.UNSUPPORTED_VERSION, "the handshake's answer cannot be used: " + ack, null);
    }
    boolean large = (ack.features() & Frames.FEATURE_LARGE_PAYLOADS) != 0;
    reader.allowPayload(
        segmentBytes(), large ? Frames.MAX_LARGE_PAYLOAD_BYTES : segmentBytes());
  }

  public Endpoint endpoint() {
    return endpoint;
  }

  public Message.HelloAck taskManager() {
    return ack;
  }

  int role() {
    return role;
  }

  ClientOptions options() {
    return options;
  }

  /** Whether both sides know a feature of the protocol. */
  boolean has(long feature) {
    return (ack.features() & feature) != 0;
  }

  /** The TaskManager's segment size: the largest payload where nothing larger was agreed. */
  int segmentBytes() {
    return (int) ack.segmentSizeBytes();
  }

  /** A number for a partition, gate or channel that is not in use on this connection. */
  long nextNumber() {
    nextNumber = (nextNumber + 1) & 0x7FFF_FFFFL;
    return nextNumber;
  }

  /** Nanoseconds spent waiting so far. */
  public long waitedNanos() {
    return waitedNanos;
  }

  void setHandler(FrameHandler handler) {
    this.handler = handler;
  }

  /** Ends a wait of another thread on this connection; the connection can only be closed then. */
  public void cancel() {
    cancelled = true;
    selector.wakeup();
  }

  /** Puts a message into the send buffer; waits for room when it is full. */
  void send(Message message) throws IOException {
    putHead(message, 0);
    insideFrame = false;
  }

  /**
   * Sends a message with its payload; returns when {@code payload} has been taken, that is when the caller may change it.
   *
   * @param payload a direct buffer; its position is moved to its limit
   */
  void send(Message message, ByteBuffer payload) throws IOException {
    putHead(message, payload.remaining());
    if (payload.remaining() < UNCOPIED_BYTES) {
      put(payload);
    } else {
      outAndPayload[1] = payload;
      await(
          () -> !payload.hasRemaining(),
          "the TaskManager to read",
          options.ioTimeoutMillis(),
          "spark.sluice.io.timeout");
      outAndPayload[1] = null;
    }
    insideFrame = false;
  }

  private void putHead(Message message, int payloadBytes) throws IOException {
    if (insideFrame) {
      throw new ClientException.ConnectionLost(
          endpoint.toString(), "a frame on it was given up half way", null);
    }
    byte[] control = encoder.encode(message);
    if (control.length > Frames.MAX_CONTROL_BYTES) {
      throw new ClientException.Protocol(
          ErrorCode.FRAME_TOO_LARGE,
          "a message of "
              + control.length
              + " bytes (limit "
              + Frames.MAX_CONTROL_BYTES
              + "): use fewer map tasks or partitions",
          null);
    }
    if (out.remaining() < Frames.PREFIX_BYTES) {
      makeRoom();
    }
    insideFrame = true;
    out.putInt(control.length).putInt(payloadBytes);
    put(ByteBuffer.wrap(control));
  }

  private void put(ByteBuffer bytes) throws IOException {
    while (bytes.hasRemaining()) {
      if (!out.hasRemaining()) {
        makeRoom();
      }
      int n = Math.min(out.remaining(), bytes.remaining());
      out.put(out.position(), bytes, bytes.position(), n);
      out.position(out.position() + n);
      bytes.position(bytes.position() + n);
    }
  }

  private void makeRoom() throws IOException {
    await(
        () -> out.remaining() >= SEND_BYTES / 2,
        "the TaskManager to read",
        options.ioTimeoutMillis(),
        "spark.sluice.io.timeout");
  }

  /**
   * Sends a message if that is possible at once, also for an interrupted thread; then the connection can only be closed.
   */
  void sendLast(Message message) {
    if (insideFrame || !open || out.position() > 0) {
      return;
    }
    byte[] control = encoder.encode(message);
    out.putInt(control.length).putInt(0).put(control);
    try {
      write();
    } catch (IOException e) {
      // Then the end of the connection has to say it.
    }
  }

  /** Sends what the socket takes now. */
  void sendNow() throws IOException {
    checkUsable();
    write();
  }

  /** Sends all that is buffered; waits for the socket to take it. Dispatches what has come. */
  void flush() throws IOException {
    await(() -> out.position() == 0, "the TaskManager to read");
  }

  /** Reads and dispatches what is there now, without waiting. */
  void receiveNow() throws IOException {
    checkUsable();
    read();
    write();
  }

  /**
   * Sends what is buffered and dispatches what arrives until {@code done}.
   *
   * @throws ClientException.Deadline nothing was read or written for {@code spark.sluice.io.timeout}
   */
  void await(BooleanSupplier done, String what) throws IOException {
    await(done, what, options.ioTimeoutMillis(), "spark.sluice.io.timeout");
  }

  void await(BooleanSupplier done, String what, long timeoutMillis, String setting) throws IOException {
    await(done, what, timeoutMillis, setting, Long.MAX_VALUE);
  }

  /**
   * As {@link #await(BooleanSupplier, String)}, but returns at a certain time whatever has come.
   *
   * @param wakeAtNanos as {@link System#nanoTime}; {@code Long.MAX_VALUE} for never
   */
  void awaitUntil(BooleanSupplier done, String what, long wakeAtNanos) throws IOException {
    await(done, what, options.ioTimeoutMillis(), "spark.sluice.io.timeout", wakeAtNanos);
  }

  private void await(
      BooleanSupplier done, String what, long timeoutMillis, String setting, long wakeAtNanos)
      throws IOException {
    long timeoutNanos = TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
    long deadline = System.nanoTime() + timeoutNanos;
    while (true) {
      checkUsable();
      // Bitwise or: both sides move in every round, so that a full peer cannot block us both.
      boolean moved = write() | read();
      if (done.getAsBoolean()) {
        return;
      }
      long now = System.nanoTime();
      boolean wakes = wakeAtNanos != Long.MAX_VALUE;
      if (wakes && wakeAtNanos - now <= 0) {
        return;
      }
      if (moved) {
        deadline = now + timeoutNanos;
        continue;
      }
      watchForBoth();
      select(deadline, wakes ? wakeAtNanos : deadline, what, timeoutMillis, setting);
    }
  }

  private void watchForBoth() {
    boolean unsent = out.position() > 0 || outAndPayload[1] != null;
    int interest = SelectionKey.OP_READ | (unsent ? SelectionKey.OP_WRITE : 0);
    if (key.interestOps() != interest) {
      key.interestOps(interest);
    }
  }

  /**
   * As {@link #await}, for what may take any time because somebody else is slow. The TaskManager has to show that it is
   * alive: after half of {@code spark.sluice.io.timeout} without a byte from it, it is asked, and has the other half.
   *
   * @param mostNanos asked before each pause: look at {@code done} again after at most that long, though nothing came
   * @throws ClientException.Deadline the TaskManager gives no sign of life
   */
  void awaitPatiently(BooleanSupplier done, LongSupplier mostNanos, String what) throws IOException {
    long patienceNanos = TimeUnit.MILLISECONDS.toNanos(options.ioTimeoutMillis()) / 2;
    long lastSign = System.nanoTime();
    boolean asked = false;
    while (true) {
      checkUsable();
      boolean wrote = write();
      boolean heard = read();
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
              endpoint.toString(), what, options.ioTimeoutMillis(), "spark.sluice.io.timeout");
        }
        asked = true;
        lastSign = now;
        send(new Message.Ping(now));
        continue;
      }
      long pause = Math.max(1, Math.min(left, mostNanos.getAsLong()));
      watchForBoth();
      // Rounded up: a pause that ends too early would go round and round for the rest of a millisecond.
      pauseForSocket((pause + 999_999) / 1_000_000, now);
    }
  }

  /** Ends the pause of a thread in {@link #awaitPatiently}, which looks at its condition again. Thread safe. */
  void wake() {
    selector.wakeup();
  }

  private void select(
      long deadline, long wakeAtNanos, String what, long timeoutMillis, String setting) throws IOException {
    long before = System.nanoTime();
    if (TimeUnit.NANOSECONDS.toMillis(deadline - before) <= 0) {
      throw new ClientException.Deadline(endpoint.toString(), what, timeoutMillis, setting);
    }
    long mostNanos = Math.min(deadline - before, Math.max(0, wakeAtNanos - before));
    // Rounded up: zero would be for ever.
    pauseForSocket(TimeUnit.NANOSECONDS.toMillis(mostNanos) + 1, before);
  }

  private void pauseForSocket(long millis, long before) throws IOException {
    selector.select(millis);
    selector.selectedKeys().clear();
    waitedNanos += System.nanoTime() - before;
    checkUsable();
  }

  private void checkUsable() throws ClientException {
    if (cancelled) {
      throw new ClientException.Interrupted("the shuffle operation was cancelled");
    }
    if (Thread.currentThread().isInterrupted()) {
      throw new ClientException.Interrupted("the task was interrupted while it used a TaskManager");
    }
    if (!open) {
      throw new ClientException.ConnectionLost(endpoint.toString(), "it was closed before", null);
    }
  }

  private boolean read() throws IOException {
    boolean moved = false;
    // Bounded, so that a fast sender cannot keep us from looking at what came.
    for (int round = 0; round < 4; round++) {
      in.clear();
      int n;
      try {
        n = channel.read(in);
      } catch (IOException e) {
        throw new ClientException.ConnectionLost(endpoint.toString(), e.getMessage(), e);
      }
      if (n < 0) {
        throw new ClientException.ConnectionLost(
            endpoint.toString(),
            reader.atBorder() ? "the TaskManager closed it" : "it ended inside a frame",
            null);
      }
      if (n == 0) {
        break;
      }
      moved = true;
      in.flip();
      reader.feed(in, dispatcher);
      if (n < RECEIVE_BYTES) {
        break;
      }
    }
    return moved;
  }

  private boolean write() throws IOException {
    if (pongNonce != null && !insideFrame && out.remaining() >= 64) {
      byte[] control = encoder.encode(new Message.Pong(pongNonce));
      pongNonce = null;
      out.putInt(control.length).putInt(0).put(control);
    }
    boolean uncopied = outAndPayload[1] != null;
    if (out.position() == 0 && !uncopied) {
      return false;
    }
    out.flip();
    try {
      return (uncopied ? channel.write(outAndPayload) : channel.write(out)) > 0;
    } catch (IOException e) {
      throw whyWriteFailed(e);
    } finally {
      out.compact();
    }
  }

  /** The TaskManager may have said why before it closed: an ErrorResponse waits to be read. */
  private IOException whyWriteFailed(IOException failure) {
    try {
      while (read()) {
        continue;
      }
    } catch (ClientException.Remote | SourceFailure answer) {
      return answer;
    } catch (IOException e) {
      failure.addSuppressed(e);
    }
    return new ClientException.ConnectionLost(endpoint.toString(), failure.getMessage(), failure);
  }

  /** Whether an idle connection can serve again: nothing unexpected came and the other side is there. */
  boolean isReusable() {
    try {
      setHandler(null);
      receiveNow();
      return open && out.position() == 0 && reader.atBorder();
    } catch (IOException e) {
      return false;
    }
  }

  @Override
  public void close() {
    open = false;
    reader.discard();
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
      // Nothing is left to save: the connection is given up.
    }
  }

  /** Answers what concerns the connection itself and passes on the rest. */
  private final class Dispatcher implements FrameHandler {
    @Override
    public void onMessage(Message message) throws IOException {
      if (message instanceof Message.Ping ping) {
        // Sent by write(), never from here: a frame may be half written.
        pongNonce = ping.nonce();
      } else if (message instanceof Message.ErrorResponse response && response.channel() == null) {
        open = false;
        throw new ClientException.Remote(endpoint.toString(), response);
      } else if (message instanceof Message.CloseRequest) {
        open = false;
        throw new ClientException.ConnectionLost(
            endpoint.toString(), "the TaskManager is shutting down", null);
      } else if (handler != null) {
        handler.onMessage(message);
      }
      // Without a handler the connection is idle: late answers of the last user are dropped.
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
    public void onEnd(Message.BufferResponse response, Message.EndOfPartition event) throws IOException {
      if (handler != null) {
        handler.onEnd(response, event);
      }
    }
  }

  private final class HandshakeHandler implements FrameHandler {
    @Override
    public void onMessage(Message message) throws IOException {
      if (!(message instanceof Message.HelloAck answer) || ack != null) {
        throw new ClientException.Protocol(
            ErrorCode.UNEXPECTED_MESSAGE, "expected HelloAck, got " + message, null);
      }
      ack = answer;
    }

    @Override
    public void onBuffer(Message.BufferResponse response, Chunk payload) throws IOException {
      throw new ClientException.Protocol(
          ErrorCode.UNEXPECTED_MESSAGE, "data before the handshake", null);
    }

    @Override
    public void onEnd(Message.BufferResponse response, Message.EndOfPartition event) throws IOException {
      throw new ClientException.Protocol(
          ErrorCode.UNEXPECTED_MESSAGE, "data before the handshake", null);
    }
  }
}
