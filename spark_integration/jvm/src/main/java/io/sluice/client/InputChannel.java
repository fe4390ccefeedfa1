package io.sluice.client;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.zip.CRC32C;

/**
 * One source of a gate: received buffers in order, cut into blocks when they are read, credit given back when a buffer is
 * used up.
 */
final class InputChannel {
  private static final int ENDED = -1;

  private final TaskManagerConnection connection;
  private final long number;
  private final Source source;
  private final boolean local;
  private final int announceAt;
  private final ArrayDeque<Chunk> queue = new ArrayDeque<>();
  private final byte[] header = new byte[Blocks.HEADER_BYTES];
  private final CRC32C checksum = new CRC32C();
  private final Map<Long, Integer> attempts = new HashMap<>();
  private final boolean[] attemptDone;

  private Chunk head;
  private int unannouncedCredit;
  private long nextSequence;
  private long receivedBytes;
  private long receivedBuffers;
  private boolean ended;
  private boolean complete;
  private int attempt = -1;
  private int attemptBegun;
  private int attemptEnded;

  /** For each partition of the range, of the current attempt: blocks so far, or {@link #ENDED}. */
  private int[] blocksSeen = new int[0];

  private int attemptsDone;

  InputChannel(TaskManagerConnection connection, long number, Source source, int credit) {
    this.connection = connection;
    this.number = number;
    this.source = source;
    this.local = source.taskManagerId().equals(connection.taskManager().taskManagerId());
    this.announceAt = Math.max(1, credit / 2);
    long[] ids = source.mapAttemptIds();
    this.attemptDone = new boolean[ids.length];
    for (int i = 0; i < ids.length; i++) {
      attempts.put(ids[i], i);
    }
  }

  long number() {
    return number;
  }

  Source source() {
    return source;
  }

  boolean isLocal() {
    return local;
  }

  boolean hasData() {
    return !queue.isEmpty() || head != null && head.remaining() > 0;
  }

  boolean hasEnded() {
    return ended;
  }

  /** There is something to do for the reader: data, or an end to check. */
  boolean isReady() {
    return hasData() || ended && !complete;
  }

  boolean isDrained() {
    return ended && !hasData();
  }

  boolean isComplete() {
    return complete;
  }

  // ---- arrival

  void add(Message.BufferResponse response, Chunk payload) throws IOException {
    checkSequence(response);
    receivedBytes += payload.length;
    receivedBuffers++;
    queue.add(payload);
  }

  void end(Message.BufferResponse response, Message.EndOfPartition event) throws IOException {
    checkSequence(response);
    if (event.totalBytes() != receivedBytes || event.totalBuffers() != receivedBuffers) {
      throw failure(
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
    ended = true;
  }

  void fail(Message.ErrorResponse response) throws SourceFailure {
    ClientException.Remote cause =
        new ClientException.Remote(connection.endpoint().toString(), response);
    throw failure(response.mapAttemptId(), cause.code(), cause.getMessage(), cause);
  }

  private void checkSequence(Message.BufferResponse response) throws SourceFailure {
    if (ended || response.sequenceNumber() != nextSequence) {
      throw failure(
          null,
          ErrorCode.SEQUENCE_GAP,
          "buffer " + response.sequenceNumber() + " came, " + nextSequence + " was due",
          null);
    }
    nextSequence = nextSequence + 1 & 0xFFFF_FFFFL;
  }

  // ---- reading

  /** Reads and verifies the next block; its bytes stay valid until the next call. */
  void readBlock(Block block, InputGate gate) throws IOException {
    parseHeader(block, gate);
    int stored = block.length;
    if (head != null && head.remaining() >= stored) {
      block.bytes = head.bytes;
      block.offset = head.position;
      head.position += stored;
    } else {
      block.bytes = gate.blockBuffer();
      block.offset = 0;
      copy(block.bytes, stored, gate, block.mapAttemptId);
    }
    checksum.reset();
    checksum.update(block.bytes, block.offset, stored);
    if ((int) checksum.getValue() != Blocks.getInt(header, Blocks.CRC)) {
      throw corrupt(block, "the checksum of block " + block.number + " does not match");
    }
    follow(block, gate);
  }

  private void parseHeader(Block block, InputGate gate) throws IOException {
    copy(header, Blocks.HEADER_BYTES, gate, null);
    block.mapAttemptId = Blocks.getLong(header, Blocks.MAP_ATTEMPT);
    block.subpartition = Blocks.getInt(header, Blocks.SUBPARTITION);
    block.length = Blocks.getInt(header, Blocks.STORED_LENGTH);
    block.flags = header[Blocks.FLAGS];
    block.number = Blocks.getShort(header, Blocks.NUMBER);
    Integer index = attempts.get(block.mapAttemptId);
    if (index == null) {
      throw failure(
          null,
          ErrorCode.STORAGE_CORRUPT,
          "a block of map attempt " + block.mapAttemptId + " came, which was not asked for",
          null);
    }
    if (index != attempt) {
      finishAttempt();
      if (attemptDone[index]) {
        throw corrupt(block, "its blocks are not in one piece");
      }
      beginAttempt(index, gate);
    }
    if (!gate.inRange(block.subpartition)) {
      throw corrupt(block, "partition " + block.subpartition + " was not asked for");
    }
    if (block.length < (block.isEnd() ? 0 : 1)
        || block.length > Blocks.MAX_STORED_BYTES
        || Blocks.getInt(header, Blocks.RAW_LENGTH) != block.length
        || header[Blocks.CODEC] != Blocks.CODEC_NONE
        || (block.flags & ~(Blocks.FIRST | Blocks.LAST | Blocks.END)) != 0
        || block.isEnd() && !block.isLast()) {
      throw corrupt(
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

  private void beginAttempt(int index, InputGate gate) {
    attempt = index;
    attemptBegun = 0;
    attemptEnded = 0;
    if (blocksSeen.length == gate.numSubpartitions()) {
      Arrays.fill(blocksSeen, 0);
    } else {
      blocksSeen = new int[gate.numSubpartitions()];
    }
  }

  /** The blocks of each partition are numbered without a gap, over all of its streams, up to its end. */
  private void follow(Block block, InputGate gate) throws SourceFailure {
    int at = gate.indexOf(block.subpartition);
    int seen = blocksSeen[at];
    if (seen == ENDED) {
      throw corrupt(block, "partition " + block.subpartition + " goes on behind its end");
    }
    if (block.number != (seen & 0xFFFF)) {
      throw corrupt(
          block,
          "block " + block.number + " of partition " + block.subpartition + " came, " + (seen & 0xFFFF) + " was due");
    }
    if (seen == 0) {
      attemptBegun++;
    }
    blocksSeen[at] = block.isEnd() ? ENDED : seen + 1;
    if (block.isEnd()) {
      attemptEnded++;
    }
  }

  private void finishAttempt() throws SourceFailure {
    if (attempt < 0) {
      return;
    }
    int wanted = source.streams()[attempt];
    if (attemptBegun != wanted) {
      throw corrupt(
          source.mapAttemptIds()[attempt],
          "it has " + attemptBegun + " of the " + wanted + " partitions that Spark knows of");
    }
    if (attemptEnded != wanted) {
      throw corrupt(
          source.mapAttemptIds()[attempt],
          (wanted - attemptEnded) + " of its " + wanted + " partitions have no last block");
    }
    attemptDone[attempt] = true;
    attemptsDone++;
    attempt = -1;
  }

  /** Everything has been read: checks that nothing is missing. */
  void complete() throws IOException {
    releaseHead();
    finishAttempt();
    if (attemptsDone != attemptDone.length) {
      for (int i = 0; i < attemptDone.length; i++) {
        if (!attemptDone[i]) {
          throw corrupt(source.mapAttemptIds()[i], "no block of it came");
        }
      }
    }
    complete = true;
  }

  private void copy(byte[] into, int length, InputGate gate, Long mapAttemptId) throws IOException {
    int have = 0;
    while (have < length) {
      if (head == null || head.remaining() == 0) {
        releaseHead();
        head = queue.poll();
        if (head == null) {
          if (ended) {
            throw failure(
                mapAttemptId, ErrorCode.STORAGE_CORRUPT, "the data end inside a block", null);
          }
          gate.awaitData(this);
          continue;
        }
      }
      int n = Math.min(head.remaining(), length - have);
      System.arraycopy(head.bytes, head.position, into, have, n);
      head.position += n;
      have += n;
    }
  }

  private void releaseHead() throws IOException {
    if (head == null) {
      return;
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

  // ---- failures

  SourceFailure corrupt(Block block, String what) {
    return corrupt(block.mapAttemptId, what);
  }

  SourceFailure corrupt(long mapAttemptId, String what) {
    return failure(mapAttemptId, ErrorCode.CHECKSUM_MISMATCH, what, null);
  }

  private SourceFailure failure(Long mapAttemptId, ErrorCode code, String what, Throwable cause) {
    String where =
        " (TaskManager "
            + source.taskManagerId()
            + " at "
            + source.host()
            + ":"
            + source.port()
            + (mapAttemptId == null ? "" : ", map attempt " + mapAttemptId)
            + ")";
    return new SourceFailure(source, mapAttemptId, code, code + ": " + what + where, cause);
  }
}
