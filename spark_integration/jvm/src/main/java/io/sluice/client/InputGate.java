package io.sluice.client;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;
import java.util.function.BooleanSupplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The consumer leg for one task: one channel for each source, read stream by stream.
 *
 * <p>At the border between two streams the gate takes whichever channel has data, so no channel waits for another;
 * inside a stream it reads that channel. What arrives meanwhile on the others stays in their queues, which their
 * credit bounds. One thread reads; {@link #close} may come from another one, which ends the reader's wait.
 *
 * <p>What can still be had is asked for again where it left off: the rest of a source once after a damaged block, and for a
 * while when its TaskManager, or the own one, is out of reach ({@link SourceRetries}).
 */
public final class InputGate implements AutoCloseable {
  private static final Logger LOG = LoggerFactory.getLogger(InputGate.class);

  private final ConnectionSource connections;
  private final long shuffleId;
  private final int startSubpartition;
  private final int endSubpartition;
  private final int credit;
  private final List<InputChannel> channels = new ArrayList<>();
  private final byte[] blockBuffer = new byte[Blocks.MAX_STORED_BYTES];

  private ConsumerLeg leg;
  private BlockStream stream;
  private Patience patience;
  private int nextChannel;
  private int openChannels;
  private int unasked;
  private long localBytesBefore;
  private long remoteBytesBefore;
  private long waitedBefore;
  private boolean failed;
  private volatile boolean done;
  private volatile boolean cancelled;
  private volatile TaskManagerConnection inUse;
  private volatile Thread owner;

  /**
   * Opens the gate.
   *
   * @param connections gives the gate a connection, and another one when that is lost
   * @param startSubpartition first partition wanted
   * @param endSubpartition behind the last partition wanted
   * @param credit buffers each channel may have under way
   */
  public InputGate(
      ConnectionSource connections,
      long shuffleId,
      int startSubpartition,
      int endSubpartition,
      int credit,
      List<Source> sources)
      throws IOException {
    this.connections = connections;
    this.shuffleId = shuffleId;
    this.startSubpartition = startSubpartition;
    this.endSubpartition = endSubpartition;
    this.credit = credit;
    long now = System.nanoTime();
    for (Source source : sources) {
      SourceRetries retries = new SourceRetries(connections.returnTimeoutMillis());
      SourceProgress progress = new SourceProgress(source, startSubpartition, endSubpartition, retries);
      channels.add(new InputChannel(progress, credit, now));
    }
    this.openChannels = channels.size();
    this.unasked = channels.size();
    connect();
    try {
      ask();
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
   * @throws SourceFailure a source failed for good
   * @throws ClientException the connection to the own TaskManager failed, and no other can take its place
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
    InputChannel channel = null;
    while (openChannels > 0) {
      try {
        channel = pick();
        if (channel == null) {
          await(() -> pick() != null);
        } else if (channel.isDrained()) {
          channel.complete();
          openChannels--;
        } else {
          BlockStream next = new BlockStream(this, channel);
          if (!next.isEmpty()) {
            return next;
          }
        }
      } catch (IOException e) {
        recover(channel, e);
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

  /** Reads the next block of a stream; waits for it, wherever it comes from in the end. */
  synchronized void readBlock(BlockStream reader, Block block) throws IOException {
    while (true) {
      if (done) {
        throw new ClientException.Interrupted("the gate was closed while it was read");
      }
      try {
        reader.channel().readBlock(block, this);
        return;
      } catch (IOException e) {
        try {
          reader.goOn(recover(reader.channel(), e));
        } catch (IOException | RuntimeException last) {
          failed = true;
          throw last;
        }
      } catch (RuntimeException e) {
        failed = true;
        throw e;
      }
    }
  }

  void awaitData(InputChannel channel) throws IOException {
    await(() -> channel.hasData() || channel.hasEnded());
  }

  /** Waits, and meanwhile asks for those channels whose time has come. */
  private void await(BooleanSupplier ready) throws IOException {
    while (!ready.getAsBoolean()) {
      leg.await(ready, ask());
    }
  }

  byte[] blockBuffer() {
    return blockBuffer;
  }

  // ---- asking, and asking again

  private void connect() throws IOException {
    long start = System.nanoTime();
    TaskManagerConnection connection = connections.lease();
    waitedBefore += System.nanoTime() - start;
    if (cancelled) {
      connections.giveBack(connection);
      throw new ClientException.Interrupted("the gate was closed while it was read");
    }
    leg = new ConsumerLeg(connection, shuffleId, startSubpartition, endSubpartition, credit);
    inUse = connection;
  }

  /** Asks for the channels that are due; says when the next one is, {@code Long.MAX_VALUE} for never. */
  private long ask() throws IOException {
    long next = Long.MAX_VALUE;
    if (unasked == 0) {
      return next;
    }
    long now = System.nanoTime();
    List<InputChannel> due = new ArrayList<>();
    for (InputChannel channel : channels) {
      if (!channel.isAsked()) {
        long left = channel.askAtNanos() - now;
        if (left <= 0) {
          due.add(channel);
        } else if (next == Long.MAX_VALUE || channel.askAtNanos() - next < 0) {
          next = channel.askAtNanos();
        }
      }
    }
    if (!due.isEmpty()) {
      unasked -= due.size();
      leg.ask(due);
    }
    return next;
  }

  /**
   * Asks again for what failed.
   *
   * @param channel the one that was to be read
   * @return the channel that takes its place; if a map attempt was half read, it goes on there
   * @throws IOException {@code failure}, if it is final
   */
  private InputChannel recover(InputChannel channel, IOException failure) throws IOException {
    if (failure instanceof SourceFailure source) {
      if (channel.isLost()) {
        return replace(channel, System.nanoTime(), source);
      }
      OptionalLong at = channel.progress().retries().nextAttempt(source);
      if (at.isEmpty()) {
        throw failure;
      }
      return replace(channel, at.getAsLong(), source);
    }
    if (failure instanceof ClientException.Deadline && !cancelled) {
      throw blame(channel, failure);
    }
    if (!ClientException.isLostConnection(failure) || cancelled) {
      throw failure;
    }
    return reconnect(channel, failure);
  }

  /** Nothing came for too long: if the own TaskManager is well, it is the source's that stands still. */
  private IOException blame(InputChannel waitedFor, IOException failure) throws IOException {
    List<InputChannel> candidates = new ArrayList<>(channels);
    if (waitedFor != null) {
      candidates.add(0, waitedFor);
    }
    for (InputChannel candidate : candidates) {
      if (candidate.isAsked() && !candidate.isReceived() && !candidate.isLocal()) {
        return leg.isAlive()
            ? candidate.progress().failure(null, ErrorCode.DEADLINE_EXCEEDED, failure.getMessage(), failure)
            : failure;
      }
    }
    return failure;
  }

  private InputChannel replace(InputChannel channel, long atNanos, SourceFailure failure)
      throws IOException {
    List<InputChannel> rest = rest(channel, atNanos);
    if (rest.isEmpty() && !channel.isLost()) {
      // Every map output of it was complete, and yet something does not add up.
      throw failure;
    }
    LOG.info("Asking again for what is left of a source: {}", failure.getMessage());
    if (failure.isDamage()) {
      connections.refetched();
    } else if (!channel.isLost()) {
      connections.reconnected();
    }
    leg.retire(channel);
    put(channel, rest);
    return rest.isEmpty() ? null : rest.get(0);
  }

  /** The own TaskManager is gone: all that is left is asked for again, through it or another one. */
  private InputChannel reconnect(InputChannel channel, IOException failure) throws IOException {
    if (patience == null) {
      patience = new Patience(connections.returnTimeoutMillis());
    } else if (!patience.pause("a TaskManager to read from")) {
      throw failure;
    }
    LOG.info("Reading goes on after a lost connection: {}", failure.getMessage());
    waitedBefore += leg.waitedNanos();
    addBytes();
    leg.connection().close();
    connections.reconnected();
    InputChannel replacement = channel;
    for (InputChannel lost : List.copyOf(channels)) {
      if (lost.isReceived() || !lost.isAsked()) {
        continue;
      }
      if (lost == channel) {
        // It stands somewhere inside of a block, and has nothing more to give.
        List<InputChannel> rest = rest(lost, System.nanoTime());
        lost.release();
        put(lost, rest);
        replacement = rest.isEmpty() ? null : rest.get(0);
      } else {
        // What has come of the others is read before the rest is asked for.
        lost.lose(failure);
      }
    }
    connect();
    return replacement;
  }

  private List<InputChannel> rest(InputChannel channel, long atNanos) {
    List<InputChannel> rest = new ArrayList<>();
    for (SourceProgress part : channel.progress().rest()) {
      rest.add(new InputChannel(part, credit, atNanos));
    }
    return rest;
  }

  private void put(InputChannel old, List<InputChannel> rest) {
    channels.remove(old);
    channels.addAll(rest);
    openChannels += rest.size() - 1;
    unasked += rest.size();
    nextChannel = 0;
  }

  /** A block was read: the own TaskManager does its work. */
  void progress() {
    patience = null;
  }

  // ---- what is counted

  /** Nanoseconds this gate has waited so far, for connections and for data. */
  public synchronized long waitedNanos() {
    return waitedBefore + (done ? 0 : leg.waitedNanos());
  }

  /** Bytes received so far from the own TaskManager's store, block headers included. */
  public synchronized long localBytes() {
    return localBytesBefore + (done ? 0 : leg.localBytes());
  }

  /** Bytes received so far from other TaskManagers, block headers included. */
  public synchronized long remoteBytes() {
    return remoteBytesBefore + (done ? 0 : leg.remoteBytes());
  }

  private void addBytes() {
    localBytesBefore += leg.localBytes();
    remoteBytesBefore += leg.remoteBytes();
  }

  // ---- the end

  /** Whether nobody has begun to read yet. */
  boolean isIdle() {
    return owner == null;
  }

  /** Whether the calling thread is the one that reads. */
  public boolean isReadByCaller() {
    return owner == Thread.currentThread();
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
      cancelled = true;
      inUse.cancel();
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
    if (recycle) {
      channels.forEach(InputChannel::release);
    }
    waitedBefore += leg.waitedNanos();
    boolean clean = !failed && leg.close();
    addBytes();
    done = true;
    if (clean) {
      connections.giveBack(leg.connection());
    } else {
      leg.connection().close();
    }
  }
}
