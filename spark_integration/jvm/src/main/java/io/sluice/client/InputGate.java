package io.sluice.client;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/**
 * The consumer leg for one task: one channel for each source, read stream by stream.
 *
 * <p>At the border between two streams the gate takes whichever channel has data, so no channel waits for another;
 * inside a stream it reads that channel. What arrives meanwhile on the others stays in their queues, which their
 * credit bounds. One thread reads; {@link #close} may come from another one, which ends the reader's wait.
 */
public final class InputGate implements AutoCloseable {
  private static final long CLOSE_TIMEOUT_MILLIS = 5_000;

  private final TaskManagerConnection connection;
  private final ConnectionPool pool;
  private final long gate;
  private final int startSubpartition;
  private final int endSubpartition;
  private final List<InputChannel> channels = new ArrayList<>();
  private final byte[] blockBuffer = new byte[Blocks.MAX_STORED_BYTES];
  private final long waitedBefore;

  private BlockStream stream;
  private int nextChannel;
  private int openChannels;
  private long localBytes;
  private long remoteBytes;
  private long waitedInAll;
  private boolean gateClosed;
  private boolean failed;
  private volatile boolean done;
  private Message.ErrorResponse gateError;
  private volatile Thread owner;

  /**
   * Opens the gate on a leased connection, which the gate gives back to {@code pool} or closes in the end.
   *
   * @param startSubpartition first partition wanted
   * @param endSubpartition behind the last partition wanted
   * @param credit buffers each channel may have under way
   */
  public InputGate(
      TaskManagerConnection connection,
      ConnectionPool pool,
      long shuffleId,
      int startSubpartition,
      int endSubpartition,
      int credit,
      List<Source> sources)
      throws IOException {
    this.connection = connection;
    this.pool = pool;
    this.startSubpartition = startSubpartition;
    this.endSubpartition = endSubpartition;
    this.gate = connection.nextNumber();
    this.waitedBefore = connection.waitedNanos();
    List<Message.GateChannel> requests = new ArrayList<>();
    for (Source source : sources) {
      long number = connection.nextNumber();
      channels.add(new InputChannel(connection, number, source, credit));
      requests.add(
          new Message.GateChannel(
              number, source.taskManagerId(), source.host(), source.port(), source.mapAttemptIds()));
    }
    this.openChannels = channels.size();
    connection.setHandler(new Handler());
    try {
      connection.send(
          new Message.OpenGate(
              gate, shuffleId, startSubpartition, endSubpartition, credit, requests));
      connection.sendNow();
    } catch (IOException | RuntimeException e) {
      failed = true;
      finish(true);
      throw e;
    }
  }

  /**
   * The next stream, of whichever channel has data; the rest of the one before is skipped (and checked).
   *
   * @return null when all channels have ended and everything that was announced has come; the gate is closed then
   * @throws SourceFailure a source failed
   * @throws ClientException the connection to the own TaskManager failed
   */
  public BlockStream nextStream() throws IOException {
    owner = Thread.currentThread();
    if (stream != null) {
      stream.drain();
      stream = null;
    }
    synchronized (this) {
      if (done) {
        if (openChannels > 0) {
          throw new ClientException.Interrupted("the gate was closed while it was read");
        }
        return null;
      }
      try {
        stream = openStream();
        if (stream == null) {
          finish(true);
        }
        return stream;
      } catch (IOException | RuntimeException e) {
        failed = true;
        throw e;
      }
    }
  }

  private BlockStream openStream() throws IOException {
    while (openChannels > 0) {
      InputChannel channel = pick();
      if (channel == null) {
        connection.await(() -> pick() != null || gateError != null, "map outputs");
        checkGate();
      } else if (channel.isDrained()) {
        channel.complete();
        openChannels--;
      } else {
        BlockStream next = new BlockStream(this, channel);
        if (!next.isEmpty()) {
          return next;
        }
      }
    }
    return null;
  }

  private InputChannel pick() {
    int n = channels.size();
    for (int i = 0; i < n; i++) {
      int index = nextChannel + i < n ? nextChannel + i : nextChannel + i - n;
      InputChannel channel = channels.get(index);
      if (channel.isReady()) {
        // The next search begins behind this one: round robin.
        nextChannel = index + 1 < n ? index + 1 : 0;
        return channel;
      }
    }
    return null;
  }

  /** Reads the next block of {@code channel} into {@code block}; waits for it. */
  synchronized void readBlock(InputChannel channel, Block block) throws IOException {
    if (done) {
      throw new ClientException.Interrupted("the gate was closed while it was read");
    }
    try {
      channel.readBlock(block, this);
    } catch (IOException | RuntimeException e) {
      failed = true;
      throw e;
    }
  }

  void awaitData(InputChannel channel) throws IOException {
    connection.await(() -> channel.hasData() || channel.hasEnded() || gateError != null, "map outputs");
    checkGate();
  }

  byte[] blockBuffer() {
    return blockBuffer;
  }

  boolean inRange(int subpartition) {
    return subpartition >= startSubpartition && subpartition < endSubpartition;
  }

  /** Place of a partition within the range. */
  int indexOf(int subpartition) {
    return subpartition - startSubpartition;
  }

  int numSubpartitions() {
    return endSubpartition - startSubpartition;
  }

  private void checkGate() throws IOException {
    if (gateError != null) {
      throw new ClientException.Remote(connection.endpoint().toString(), gateError);
    }
  }

  /** Nanoseconds this gate has waited for data so far. */
  public synchronized long waitedNanos() {
    // Once the connection is given back it counts for others.
    return done ? waitedInAll : connection.waitedNanos() - waitedBefore;
  }

  /** Bytes received so far from the own TaskManager's store, block headers included. */
  public synchronized long localBytes() {
    return localBytes;
  }

  /** Bytes received so far from other TaskManagers, block headers included. */
  public synchronized long remoteBytes() {
    return remoteBytes;
  }

  /** The source served by the own TaskManager if it has not been read to its end, else null. */
  public synchronized Source unfinishedLocalSource() {
    for (InputChannel channel : channels) {
      if (channel.isLocal() && !channel.isComplete()) {
        return channel.source();
      }
    }
    return null;
  }

  /** Whether nobody has begun to read yet. */
  boolean isIdle() {
    return owner == null;
  }

  /** Whether the calling thread is the one that reads. */
  public boolean isReadByCaller() {
    return owner == Thread.currentThread();
  }

  public Endpoint endpoint() {
    return connection.endpoint();
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

  /** Another thread may still look at the bytes of the last block: then nothing is recycled. */
  private void finish(boolean recycle) {
    if (done) {
      return;
    }
    waitedInAll = connection.waitedNanos() - waitedBefore;
    done = true;
    if (recycle) {
      channels.forEach(InputChannel::release);
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
      connection.await(() -> gateClosed, "the end of a gate", CLOSE_TIMEOUT_MILLIS, "fixed");
      return gateError == null;
    } catch (IOException e) {
      // The connection is given up, which closes the gate too.
      return false;
    }
  }

  private InputChannel channel(long number) throws ClientException.Protocol {
    // Numbers were taken one after the other; the wrap at 2^31 makes a search necessary.
    long first = channels.isEmpty() ? 0 : channels.get(0).number();
    long index = number - first;
    if (index >= 0 && index < channels.size() && channels.get((int) index).number() == number) {
      return channels.get((int) index);
    }
    for (InputChannel channel : channels) {
      if (channel.number() == number) {
        return channel;
      }
    }
    throw new ClientException.Protocol(
        ErrorCode.UNKNOWN_CHANNEL, "message for channel " + number + ", which was never asked for", null);
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
      } else if (!(message instanceof Message.GateOpened)
          && !(message instanceof Message.BacklogAnnouncement)) {
        throw new ClientException.Protocol(
            ErrorCode.UNEXPECTED_MESSAGE, "on a consumer connection: " + message, null);
      }
    }

    @Override
    public void onBuffer(Message.BufferResponse response, Chunk payload) throws IOException {
      InputChannel channel = channel(response.channel());
      if (channel.isLocal()) {
        localBytes += payload.length;
      } else {
        remoteBytes += payload.length;
      }
      if (done) {
        connection.options().chunks().recycle(payload);
      } else {
        channel.add(response, payload);
      }
    }

    @Override
    public void onEnd(Message.BufferResponse response, Message.EndOfPartition event) throws IOException {
      if (!done) {
        channel(response.channel()).end(response, event);
      }
    }
  }
}
