package io.sluice.client;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.Arrays;

/**
 * One producer of a pipelined gate: received buffers in order, cut into records. A record is its length (4 bytes, big
 * endian) and its bytes; it may span buffers.
 */
final class PipelinedChannel {
  static final int LENGTH_BYTES = 4;

  /** The first memory of a record that spans buffers: a length that is wrong must not take any amount of it. */
  private static final int FIRST_JOINED_BYTES = 64 * 1024;

  private final TaskManagerConnection connection;
  private final long number;
  private final Source source;
  private final int index;
  private final int announceAt;
  private final ArrayDeque<Chunk> queue = new ArrayDeque<>();

  private Chunk head;
  private final byte[] length = new byte[LENGTH_BYTES];
  private int lengthHave;
  private byte[] joined = new byte[0];
  private int joinedHave;
  private int wanted = -1;

  private long nextSequence;
  private long receivedBytes;
  private long receivedBuffers;
  private int unannouncedCredit;
  private boolean ended;
  private boolean queued;

  PipelinedChannel(TaskManagerConnection connection, long number, Source source, int index, int credit) {
    this.connection = connection;
    this.number = number;
    this.source = source;
    this.index = index;
    this.announceAt = Math.max(1, credit / 2);
  }

  long number() {
    return number;
  }

  boolean isLocal() {
    return source.taskManagerId().equals(connection.taskManager().taskManagerId());
  }

  /** Whether the gate has it among those to look at. */
  boolean isQueued() {
    return queued;
  }

  void setQueued(boolean queued) {
    this.queued = queued;
  }

  boolean hasEnded() {
    return ended;
  }

  // ---- arrival

  void add(Message.BufferResponse response, Chunk payload) throws SourceFailure {
    checkSequence(response);
    receivedBytes += payload.length;
    receivedBuffers++;
    queue.add(payload);
  }

  void end(Message.BufferResponse response, Message.EndOfPartition event) throws SourceFailure {
    checkSequence(response);
    if (event.totalBytes() != receivedBytes || event.totalBuffers() != receivedBuffers) {
      throw failure(
          ErrorCode.END_OF_PARTITION_MISMATCH,
          "received "
              + receivedBytes
              + " bytes in "
              + receivedBuffers
              + " buffers, announced "
              + event.totalBytes()
              + " in "
              + event.totalBuffers(),
          null);
    }
    ended = true;
  }

  void fail(Message.ErrorResponse response) throws SourceFailure {
    ClientException.Remote cause =
        new ClientException.Remote(connection.endpoint().toString(), response);
    throw failure(cause.code(), cause.getMessage(), cause);
  }

  private void checkSequence(Message.BufferResponse response) throws SourceFailure {
    if (ended || response.sequenceNumber() != nextSequence) {
      throw failure(
          ErrorCode.SEQUENCE_GAP,
          "buffer " + response.sequenceNumber() + " came, " + (ended ? "no more" : nextSequence) + " was expected",
          null);
    }
    nextSequence = (nextSequence + 1) & 0xFFFF_FFFFL;
  }

  // ---- records

  /**
   * The next whole record, if it has arrived.
   *
   * @return false when its end, or all of it, is still to come
   */
  boolean next(PipelinedGate.Record record) throws IOException {
    while (true) {
      releaseHead();
      if (head == null) {
        head = queue.poll();
        if (head == null) {
          checkEnd();
          return false;
        }
      }
      if (lengthHave == 0 && head.remaining() >= LENGTH_BYTES) {
        int bytes = integer(head.bytes, head.position);
        checkLength(bytes);
        if (head.remaining() - LENGTH_BYTES >= bytes) {
          record.set(index, head.bytes, head.position + LENGTH_BYTES, bytes);
          head.position += LENGTH_BYTES + bytes;
          return true;
        }
      }
      if (join()) {
        record.set(index, joined, 0, wanted);
        lengthHave = 0;
        joinedHave = 0;
        wanted = -1;
        return true;
      }
    }
  }

  /** Takes from the head what belongs to the record at hand; says whether it is whole. */
  private boolean join() throws SourceFailure {
    int n = Math.min(head.remaining(), LENGTH_BYTES - lengthHave);
    System.arraycopy(head.bytes, head.position, length, lengthHave, n);
    lengthHave += n;
    head.position += n;
    if (lengthHave < LENGTH_BYTES) {
      return false;
    }
    if (wanted < 0) {
      wanted = integer(length, 0);
      checkLength(wanted);
    }
    n = Math.min(head.remaining(), wanted - joinedHave);
    if (joinedHave + n > joined.length) {
      long more = Math.max(Math.max(2L * joined.length, FIRST_JOINED_BYTES), (long) joinedHave + n);
      joined = Arrays.copyOf(joined, (int) Math.min(more, wanted));
    }
    System.arraycopy(head.bytes, head.position, joined, joinedHave, n);
    joinedHave += n;
    head.position += n;
    return joinedHave == wanted;
  }

  /** The bytes of the last record are not needed any more: what is used up becomes credit. Says whether a buffer was. */
  boolean releaseHead() throws IOException {
    if (head == null || head.remaining() > 0) {
      return false;
    }
    connection.options().chunks().recycle(head);
    head = null;
    unannouncedCredit++;
    if (unannouncedCredit >= announceAt && !ended) {
      int credit = unannouncedCredit;
      unannouncedCredit = 0;
      connection.send(new Message.AddCredit(number, credit));
      connection.sendNow();
    }
    return true;
  }

  /** Gives back all buffers, read or not. */
  void release() {
    if (head != null) {
      connection.options().chunks().recycle(head);
      head = null;
    }
    queue.forEach(connection.options().chunks()::recycle);
    queue.clear();
  }

  private void checkEnd() throws SourceFailure {
    if (ended && lengthHave > 0) {
      throw failure(ErrorCode.STORAGE_CORRUPT, "the data end inside a record", null);
    }
  }

  private void checkLength(int bytes) throws SourceFailure {
    if (bytes < 0) {
      throw failure(
          ErrorCode.STORAGE_CORRUPT,
          "a record of " + Integer.toUnsignedString(bytes) + " bytes (limit " + Integer.MAX_VALUE + ")",
          null);
    }
  }

  private static int integer(byte[] bytes, int at) {
    return (bytes[at] & 0xFF) << 24
        | (bytes[at + 1] & 0xFF) << 16
        | (bytes[at + 2] & 0xFF) << 8
        | bytes[at + 3] & 0xFF;
  }

  private SourceFailure failure(ErrorCode code, String what, Throwable cause) {
    long attempt = source.mapAttemptIds()[0];
    String where =
        " (pipelined, TaskManager "
            + source.taskManagerId()
            + " at "
            + source.host()
            + ":"
            + source.port()
            + ", map attempt "
            + attempt
            + ")";
    return new SourceFailure(source, attempt, code, code + ": " + what + where, cause);
  }
}
