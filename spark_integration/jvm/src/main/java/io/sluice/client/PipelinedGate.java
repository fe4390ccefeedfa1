package io.sluice.client;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;

/**
 * The consumer leg of a task that reads while its producers write: one channel for each of them, records as they come,
 * from whichever channel has one.
 *
 * <p>A channel has at most its credit under way, so a slow reader holds a bounded amount here, and its producers wait.
 * One thread reads; {@link #close} may come from another one, which ends the reader's wait.
 */
public final class PipelinedGate implements AutoCloseable {
  private final TaskManagerConnection connection;
  private final ConnectionPool pool;
  private final long gate;
  private final List<PipelinedChannel> channels = new ArrayList<>();
  private final ArrayDeque<PipelinedChannel> withBytes = new ArrayDeque<>();
  private final Record record = new Record();
  private final long waitedBefore;

  private PipelinedChannel last;
  private int openChannels;
  private long localBytes;
  private long remoteBytes;
  private long waitedInAll;
  private boolean gateClosed;
  private boolean failed;
  private volatile boolean done;
  private Message.ErrorResponse gateError;
  private volatile Thread owner;

  /** One record: {@code bytes[offset .. offset + length)}, valid until the next one is asked for. */
  public static final class Record {
    private int source;
    private byte[] bytes;
    private int offset;
    private int length;

    void set(int source, byte[] bytes, int offset, int length) {
      this.source = source;
      this.bytes = bytes;
      this.offset = offset;
      this.length = length;
    }

    /** Which of the gate's sources it came from. */
    public int source() {
      return source;
    }

    public byte[] bytes() {
      return bytes;
    }

    public int offset() {
      return offset;
    }

    public int length() {
      return length;
    }
  }

  /**
   * Opens the gate on a leased connection, which the gate gives back to {@code pool} or closes in the end.
   *
   * @param subpartition the one that is read
   * @param credit buffers each channel may have under way
   * @param sources one for each producer, with one map attempt each
   */
  public PipelinedGate(
      TaskManagerConnection connection,
      ConnectionPool pool,
      long shuffleId,
      int subpartition,
      int credit,
      List<Source> sources)
      throws IOException {
    this.connection = connection;
    this.pool = pool;
    this.gate = connection.nextNumber();
    this.waitedBefore = connection.waitedNanos();
    List<Message.GateChannel> requests = new ArrayList<>();
    for (Source source : sources) {
      long number = connection.nextNumber();
      channels.add(new PipelinedChannel(connection, number, source, channels.size(), credit));
      requests.add(
          new Message.GateChannel(
              number, source.taskManagerId(), source.host(), source.port(), source.mapAttemptIds()));
    }
    this.openChannels = channels.size();
    connection.setHandler(new Handler());
    try {
      connection.send(
          new Message.OpenGate(gate, shuffleId, subpartition, subpartition + 1L, credit, requests));
      connection.sendNow();
    } catch (IOException | RuntimeException e) {
      failed = true;
      finish(true);
      throw e;
    }
  }

  /**
   * The next record; waits for one as long as a producer lives.
   *
   * @return null when all producers have finished and everything they wrote was read; the gate is closed then
   * @throws SourceFailure a producer failed
   * @throws ClientException the connection to the own TaskManager failed
   */
  public Record next() throws IOException {
    owner = Thread.currentThread();
    synchronized (this) {
      if (done) {
        if (openChannels > 0) {
          throw new ClientException.Interrupted("the gate was closed while it was read");
        }
        return null;
      }
      try {
        Record found = find();
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

  private Record find() throws IOException {
    if (last != null && last.releaseHead()) {
      // A buffer of each in turn.
      withBytes.add(withBytes.remove());
    }
    last = null;
    while (true) {
      PipelinedChannel channel = withBytes.peek();
      if (channel == null) {
        if (openChannels == 0) {
          return null;
        }
        connection.awaitPatiently(
            () -> !withBytes.isEmpty() || openChannels == 0 || gateError != null,
            () -> Long.MAX_VALUE,
            "records of running tasks");
        if (gateError != null) {
          throw new ClientException.Remote(connection.endpoint().toString(), gateError);
        }
      } else if (channel.next(record)) {
        last = channel;
        return record;
      } else {
        withBytes.remove();
        channel.setQueued(false);
        if (channel.hasEnded()) {
          openChannels--;
        }
      }
    }
  }

  /** Nanoseconds this gate has waited for records so far. */
  public synchronized long waitedNanos() {
    // Once the connection is given back it counts for others.
    return done ? waitedInAll : connection.waitedNanos() - waitedBefore;
  }

  /** Bytes received so far from producers at the own TaskManager. */
  public synchronized long localBytes() {
    return localBytes;
  }

  /** Bytes received so far from producers at other TaskManagers. */
  public synchronized long remoteBytes() {
    return remoteBytes;
  }

  /**
   * Ends the gate: the connection goes back to the pool if the TaskManager confirms, else it is closed. Idempotent.
   */
  @Override
  public void close() {
    if (done) {
      return;
    }
    Thread reader = owner;
    boolean own = reader == null || reader == Thread.currentThread();
    if (!own) {
      // The reader may sit in a wait, with the lock held.
      connection.cancel();
    }
    synchronized (this) {
      failed |= !own;
      finish(own);
    }
  }

  /** Another thread may still look at the bytes of the last record: then nothing is recycled. */
  private void finish(boolean recycle) {
    if (done) {
      return;
    }
    waitedInAll = connection.waitedNanos() - waitedBefore;
    done = true;
    if (recycle) {
      channels.forEach(PipelinedChannel::release);
    }
    if (failed || !closeGate()) {
      connection.close();
    } else {
      pool.giveBack(connection);
    }
  }

  private boolean closeGate() {
    try {
      connection.send(new Message.CloseGate(gate));
      connection.awaitEnd(() -> gateClosed, "the end of a gate");
      return gateError == null;
    } catch (IOException e) {
      // The connection is given up, which closes the gate too.
      return false;
    }
  }

  private PipelinedChannel channel(long number) throws ClientException.Protocol {
    for (PipelinedChannel channel : channels) {
      if (channel.number() == number) {
        return channel;
      }
    }
    throw new ClientException.Protocol(
        ErrorCode.UNKNOWN_CHANNEL, "message for channel " + number + ", which was never asked for", null);
  }

  private void look(PipelinedChannel channel) {
    if (!channel.isQueued()) {
      channel.setQueued(true);
      withBytes.add(channel);
    }
  }

  private final class Handler implements FrameHandler {
    @Override
    public void onMessage(Message message) throws IOException {
      if (message instanceof Message.GateClosed closed) {
        gateClosed |= closed.gate() == gate;
      } else if (message instanceof Message.ErrorResponse response) {
        if (response.channel() == gate) {
          gateError = response;
          gateClosed = true;
        } else if (!done) {
          channel(response.channel()).fail(response);
        }
      } else if (!(message instanceof Message.GateOpened
          || message instanceof Message.BacklogAnnouncement
          || message instanceof Message.Pong)) {
        throw new ClientException.Protocol(
            ErrorCode.UNEXPECTED_MESSAGE, "on a consumer connection: " + message, null);
      }
    }

    @Override
    public void onBuffer(Message.BufferResponse response, Chunk payload) throws IOException {
      if (done) {
        connection.options().chunks().recycle(payload);
        return;
      }
      PipelinedChannel channel = channel(response.channel());
      if (channel.isLocal()) {
        localBytes += payload.length;
      } else {
        remoteBytes += payload.length;
      }
      channel.add(response, payload);
      look(channel);
    }

    @Override
    public void onEnd(Message.BufferResponse response, Message.EndOfPartition event) throws IOException {
      if (!done) {
        PipelinedChannel channel = channel(response.channel());
        channel.end(response, event);
        look(channel);
      }
    }
  }
}
