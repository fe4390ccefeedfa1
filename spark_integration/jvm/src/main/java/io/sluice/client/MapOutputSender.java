package io.sluice.client;

import java.io.IOException;
import java.nio.ByteBuffer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Sends one map output: regions under credit, then commit or abort.
 *
 * <p>A connection is leased with the first region. When it is lost another one takes its place, as long as everything that
 * the TaskManager may have lost can be sent again. Ends with {@link #finish} or {@link #abort}, which give the connection
 * back. Not thread safe.
 */
final class MapOutputSender {
  private static final Logger LOG = LoggerFactory.getLogger(MapOutputSender.class);

  private final ConnectionSource source;
  private final long shuffleId;
  private final long mapAttemptId;
  private final int numSubpartitions;

  private ProducerLeg leg;
  private long sentRegions;
  private long sentBytes;
  private Region last;
  private Patience patience;
  private long creditWaitNanos;

  /** A region as it is sent, and sent again if need be. */
  private record Region(
      ByteBuffer bytes, int start, int end, long first, long[] lengths, int count, long crc32c) {
    int length() {
      return end - start;
    }
  }

  MapOutputSender(ConnectionSource source, long shuffleId, long mapAttemptId, int numSubpartitions) {
    this.source = source;
    this.shuffleId = shuffleId;
    this.mapAttemptId = mapAttemptId;
    this.numSubpartitions = numSubpartitions;
  }

  /**
   * Sends the remaining bytes of {@code bytes}, a direct buffer, as the next region; others follow. Returns when the caller
   * may change the buffer.
   *
   * @param first number of the region's first subpartition
   * @param lengths the bytes of each, {@code lengths[0 .. count)}
   * @param crc32c checksum of all bytes
   */
  void sendRegion(ByteBuffer bytes, long first, long[] lengths, int count, long crc32c)
      throws IOException {
    send(new Region(bytes, bytes.position(), bytes.limit(), first, lengths, count, crc32c));
    bytes.position(bytes.limit());
    patience = null;
  }

  /**
   * As {@link #sendRegion}, for the last region of the map output: buffer and lengths stay unchanged until {@link #finish}
   * or {@link #abort} has returned.
   */
  void sendLastRegion(ByteBuffer bytes, long first, long[] lengths, int count, long crc32c)
      throws IOException {
    Region region = new Region(bytes, bytes.position(), bytes.limit(), first, lengths, count, crc32c);
    send(region);
    last = region;
  }

  private void send(Region region) throws IOException {
    while (true) {
      try {
        open().sendRegion(
            sentRegions, region.bytes, region.start, region.end, region.first, region.lengths, region.count, region.crc32c);
        sentRegions++;
        sentBytes += region.length();
        return;
      } catch (IOException e) {
        recover(e);
      }
    }
  }

  /**
   * Commits the map output; returns when it is in the journal.
   *
   * @return where it is
   */
  Message.HelloAck finish() throws IOException {
    while (true) {
      try {
        ProducerLeg open = open();
        open.finish(sentBytes, sentRegions);
        Message.HelloAck location = open.connection().taskManager();
        source.giveBack(open.connection());
        endLeg();
        return location;
      } catch (IOException e) {
        recover(e);
        sendLastAgain();
      }
    }
  }

  private void sendLastAgain() throws IOException {
    if (last != null) {
      sentRegions--;
      sentBytes -= last.length();
      send(last);
    }
  }

  /** Gives up the map output. Never throws. */
  void abort() {
    if (leg == null) {
      return;
    }
    if (leg.abort()) {
      source.giveBack(leg.connection());
    } else {
      leg.connection().close();
    }
    endLeg();
  }

  /** Time spent waiting for credit so far. */
  long creditWaitNanos() {
    return creditWaitNanos + (leg == null ? 0 : leg.creditWaitNanos());
  }

  private ProducerLeg open() throws IOException {
    if (leg == null) {
      leg = new ProducerLeg(source.lease(), shuffleId, mapAttemptId, numSubpartitions);
    }
    return leg;
  }

  private void endLeg() {
    if (leg != null) {
      creditWaitNanos += leg.creditWaitNanos();
      leg = null;
    }
  }

  /**
   * Makes ready to send again what may be lost; returns when it is worth an attempt.
   *
   * @throws IOException {@code failure}, if sending again is no remedy or the time for it is over
   */
  private void recover(IOException failure) throws IOException {
    if (leg == null) {
      // No connection could be had: the source has been patient already.
      throw failure;
    }
    Endpoint endpoint = leg.connection().endpoint();
    leg.connection().close();
    endLeg();
    if (!isTransient(failure) || !isAllAtHand()) {
      throw failure;
    }
    if (patience == null) {
      patience = new Patience(source.returnTimeoutMillis());
    } else if (!patience.pause("a TaskManager to take map output " + mapAttemptId)) {
      throw failure;
    }
    source.reconnected();
    LOG.info("Map output {} is sent again, the TaskManager at {} has lost it: {}", mapAttemptId, endpoint, failure.getMessage());
  }

  private static boolean isTransient(IOException failure) {
    return failure instanceof ClientException.ConnectionLost
        || failure instanceof ClientException.Remote remote && remote.code() == ErrorCode.SHUTTING_DOWN;
  }

  /** Whether every byte sent so far is still here. */
  private boolean isAllAtHand() {
    return sentRegions == 0 || sentRegions == 1 && last != null;
  }
}
