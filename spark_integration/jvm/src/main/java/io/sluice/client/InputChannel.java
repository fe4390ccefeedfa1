package io.sluice.client;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.zip.CRC32C;

/**
 * One request to a source: received buffers in order, cut into blocks when they are read, credit given back when a buffer is
 * used up. What goes wrong is kept until everything that came before it has been read.
 */
final class InputChannel {
  private final SourceProgress progress;
  private final int announceAt;
  private final ArrayDeque<Chunk> queue = new ArrayDeque<>();
  private final byte[] header = new byte[Blocks.HEADER_BYTES];
  private final CRC32C checksum = new CRC32C();

  private TaskManagerConnection connection;
  private long number;
  private long askAtNanos;
  private boolean local;
  private Chunk head;
  private long bytesToSkip;
  private int unannouncedCredit;
  private long nextSequence;
  private long receivedBytes;
  private long receivedBuffers;
  private boolean ended;
  private boolean complete;
  private SourceFailure failure;
  private boolean released;
  private boolean lost;

  /**
   * A channel that is still to be asked for.
   *
   * @param askAtNanos when, as {@link System#nanoTime}
   */
  InputChannel(SourceProgress progress, int credit, long askAtNanos) {
    this.progress = progress;
    this.bytesToSkip = progress.attemptBytes();
    this.announceAt = Math.max(1, credit / 2);
    this.askAtNanos = askAtNanos;
  }

  /** It is being asked for, on that connection and by that number. */
  void asked(TaskManagerConnection connection, long number) {
    this.connection = connection;
    this.number = number;
    this.local = source().taskManagerId().equals(connection.taskManager().taskManagerId());
  }

  boolean isAsked() {
    return connection != null;
  }

  long askAtNanos() {
    return askAtNanos;
  }

  long number() {
    return number;
  }

  SourceProgress progress() {
    return progress;
  }

  Source source() {
    return progress.source();
  }

  boolean isLocal() {
    return local;
  }

  boolean hasData() {
    return !queue.isEmpty() || head != null && head.remaining() > 0;
  }

  /** Nothing follows what is in the queue: its end or a failure has come. */
  boolean hasEnded() {
    return ended || failure != null;
  }

  /** There is something to do for the reader: data, an end to check, or a failure. */
  boolean isReady() {
    return hasData() || hasEnded() && !complete;
  }

  boolean isDrained() {
    return hasEnded() && !hasData();
  }

  /** Its end has come: nothing more of it depends on the connection. */
  boolean isReceived() {
    return ended;
  }

  boolean isOn(TaskManagerConnection other) {
    return connection == other;
  }

  // ---- arrival

  void add(Message.BufferResponse response, Chunk payload) {
    if (!isNext(response)) {
      connection.options().chunks().recycle(payload);
      return;
    }
    receivedBytes += payload.length;
    receivedBuffers++;
    queue.add(payload);
  }

  void end(Message.BufferResponse response, Message.EndOfPartition event) {
    if (!isNext(response)) {
      return;
    }
    if (event.totalBytes() == receivedBytes && event.totalBuffers() == receivedBuffers) {
      ended = true;
    } else {
      failure =
          progress.failure(
              null,
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
  }

  void fail(Message.ErrorResponse response) {
    if (!hasEnded() && !released) {
      ClientException.Remote cause =
          new ClientException.Remote(connection.endpoint().toString(), response);
      failure = progress.failure(response.mapAttemptId(), cause.code(), cause.getMessage(), cause);
    }
  }

  /** Its connection is gone; what has come by then can still be read. */
  void lose(IOException cause) {
    if (!hasEnded()) {
      lost = true;
      failure = progress.failure(null, ErrorCode.CONNECTION_LOST, cause.getMessage(), cause);
    }
  }

  boolean isLost() {
    return lost;
  }

  private boolean isNext(Message.BufferResponse response) {
    if (failure != null || released) {
      return false;
    }
    if (ended || response.sequenceNumber() != nextSequence) {
      failure =
          progress.failure(
              null,
              ErrorCode.SEQUENCE_GAP,
              "buffer " + response.sequenceNumber() + " came, " + nextSequence + " was due",
              null);
      return false;
    }
    nextSequence = nextSequence + 1 & 0xFFFF_FFFFL;
    return true;
  }

  // ---- reading

  /** Reads and verifies the next block; its bytes stay valid until the next call. */
  void readBlock(Block block, InputGate gate) throws IOException {
    skip(gate);
    parseHeader(block, gate);
    int stored = block.length;
    if (head != null && head.remaining() >= stored) {
      block.bytes = head.bytes;
      block.offset = head.position;
      head.position += stored;
    } else {
      block.bytes = gate.blockBuffer();
      block.offset = 0;
      copy(block.bytes, stored, gate);
    }
    checksum.reset();
    checksum.update(block.bytes, block.offset, stored);
    if ((int) checksum.getValue() != Blocks.getInt(header, Blocks.CRC)) {
      throw progress.corrupt(block, "the checksum of block " + block.number + " does not match");
    }
    progress.read(block);
    gate.progress();
  }

  private void parseHeader(Block block, InputGate gate) throws IOException {
    copy(header, Blocks.HEADER_BYTES, gate);
    block.mapAttemptId = Blocks.getLong(header, Blocks.MAP_ATTEMPT);
    block.subpartition = Blocks.getInt(header, Blocks.SUBPARTITION);
    block.length = Blocks.getInt(header, Blocks.STORED_LENGTH);
    block.flags = header[Blocks.FLAGS];
    block.number = Blocks.getShort(header, Blocks.NUMBER);
    progress.check(block);
    if (block.length < (block.isEnd() ? 0 : 1)
        || block.length > Blocks.MAX_STORED_BYTES
        || Blocks.getInt(header, Blocks.RAW_LENGTH) != block.length
        || header[Blocks.CODEC] != Blocks.CODEC_NONE
        || (block.flags & ~(Blocks.FIRST | Blocks.LAST | Blocks.END)) != 0
        || block.isEnd() && !block.isLast()) {
      throw progress.corrupt(
          block,
          "a block header makes no sense (length "
              + block.length
              + ", codec "
              + header[Blocks.CODEC]
              + ", flags "
              + block.flags
              + ")");
    }
  }

  /** Everything has been read: checks that nothing is missing. */
  void complete() throws IOException {
    releaseHead();
    if (failure != null) {
      throw failure;
    }
    progress.complete();
    complete = true;
  }

  /** Passes over what the request before this one brought already. */
  private void skip(InputGate gate) throws IOException {
    while (bytesToSkip > 0) {
      takeHead(gate);
      int n = (int) Math.min(head.remaining(), bytesToSkip);
      head.position += n;
      bytesToSkip -= n;
    }
  }

  private void copy(byte[] into, int length, InputGate gate) throws IOException {
    int have = 0;
    while (have < length) {
      takeHead(gate);
      int n = Math.min(head.remaining(), length - have);
      System.arraycopy(head.bytes, head.position, into, have, n);
      head.position += n;
      have += n;
    }
  }

  /** Waits for a buffer with something left to read. */
  private void takeHead(InputGate gate) throws IOException {
    while (head == null || head.remaining() == 0) {
      releaseHead();
      head = queue.poll();
      if (head == null) {
        if (failure != null) {
          throw failure;
        }
        if (ended) {
          // Says what is missing, if it knows.
          progress.complete();
          throw progress.failure(
              progress.attemptId(), ErrorCode.STORAGE_CORRUPT, "the data end inside a block", null);
        }
        gate.awaitData(this);
      }
    }
  }

  private void releaseHead() throws IOException {
    if (head == null) {
      return;
    }
    connection.options().chunks().recycle(head);
    head = null;
    unannouncedCredit++;
    if (unannouncedCredit >= announceAt && !hasEnded()) {
      int credit = unannouncedCredit;
      unannouncedCredit = 0;
      connection.send(new Message.AddCredit(number, credit));
      connection.sendNow();
    }
  }

  /** Gives back all buffers, read or not, and those that still come. */
  void release() {
    released = true;
    if (connection == null) {
      return;
    }
    if (head != null) {
      connection.options().chunks().recycle(head);
      head = null;
    }
    queue.forEach(connection.options().chunks()::recycle);
    queue.clear();
  }
}
