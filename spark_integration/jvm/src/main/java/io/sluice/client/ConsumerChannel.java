package io.sluice.client;

import java.io.IOException;
import java.util.ArrayDeque;

/**
 * One request of a gate to a source: received buffers in order, and credit given back when a buffer
 * is used up. What the bytes mean is for the kind of gate to say.
 */
abstract class ConsumerChannel {
    private final int announceAt;
    private final ArrayDeque<Chunk> queue = new ArrayDeque<>();

    private TaskManagerConnection connection;
    private long number;
    private boolean local;
    private int unannouncedCredit;
    private long nextSequence;
    private long receivedBytes;
    private long receivedBuffers;
    private boolean ended;
    private boolean released;

    /** The buffer that is being read, or null. */
    Chunk head;

    /** Why nothing more comes, or null. */
    SourceFailure failure;

    ConsumerChannel(int credit) {
        this.announceAt = Math.max(1, credit / 2);
    }

    abstract Source source();

    /**
     * What is thrown of this source; {@code mapAttemptId} is null if the failure is of no attempt
     * in particular.
     */
    abstract SourceFailure failure(Long mapAttemptId, ErrorCode code, String what, Throwable cause);

    /** Something came: data, the end, or a failure. */
    void arrived() throws SourceFailure {}

    /** It is being asked for, on that connection and by that number. */
    final void asked(TaskManagerConnection connection, long number) {
        this.connection = connection;
        this.number = number;
        this.local = source().taskManagerId().equals(connection.taskManager().taskManagerId());
    }

    final boolean isAsked() {
        return connection != null;
    }

    final boolean isOn(TaskManagerConnection other) {
        return connection == other;
    }

    final long number() {
        return number;
    }

    final boolean isLocal() {
        return local;
    }

    final boolean hasData() {
        return !queue.isEmpty() || (head != null && head.remaining() > 0);
    }

    /** Its end has come: nothing more of it depends on the connection. */
    final boolean isReceived() {
        return ended;
    }

    /** Nothing follows what is in the queue: its end or a failure has come. */
    final boolean hasEnded() {
        return ended || failure != null;
    }

    // ---- arrival

    final void add(Message.BufferResponse response, Chunk payload) throws SourceFailure {
        if (isNext(response)) {
            receivedBytes += payload.length;
            receivedBuffers++;
            queue.add(payload);
            arrived();
        } else {
            connection.options().chunks().recycle(payload);
        }
    }

    final void end(Message.BufferResponse response, Message.EndOfPartition event)
            throws SourceFailure {
        if (!isNext(response)) {
            return;
        }
        if (event.totalBytes() == receivedBytes && event.totalBuffers() == receivedBuffers) {
            ended = true;
            arrived();
            return;
        }
        fail(
                null,
                ErrorCode.END_OF_PARTITION_MISMATCH,
                ("received "
                                + receivedBytes
                                + " bytes in "
                                + receivedBuffers
                                + " buffers, announced ")
                        + (event.totalBytes() + " in " + event.totalBuffers()),
                null);
    }

    final void fail(Message.ErrorResponse response) throws SourceFailure {
        if (!hasEnded() && !released) {
            ClientException.Remote cause =
                    new ClientException.Remote(connection.endpoint().toString(), response);
            fail(response.mapAttemptId(), cause.code(), cause.getMessage(), cause);
        }
    }

    private void fail(Long mapAttemptId, ErrorCode code, String what, Throwable cause)
            throws SourceFailure {
        failure = failure(mapAttemptId, code, what, cause);
        arrived();
    }

    private boolean isNext(Message.BufferResponse response) throws SourceFailure {
        if (failure != null || released) {
            return false;
        }
        if (ended || response.sequenceNumber() != nextSequence) {
            fail(
                    null,
                    ErrorCode.SEQUENCE_GAP,
                    "buffer "
                            + response.sequenceNumber()
                            + " came, "
                            + (ended ? "no more" : nextSequence)
                            + " was due",
                    null);
            return false;
        }
        nextSequence = nextSequence + 1 & 0xFFFF_FFFFL;
        return true;
    }

    // ---- reading

    /** Makes the next buffer the head, if there is one. */
    final boolean nextHead() {
        head = queue.poll();
        return head != null;
    }

    /** A head that is used up becomes credit. Says whether it was. */
    final boolean releaseHead() throws IOException {
        if (head == null || head.remaining() > 0) {
            return false;
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
        return true;
    }

    /** Gives back all buffers, read or not, and those that still come. */
    final void release() {
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
