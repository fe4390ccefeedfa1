package io.sluice.client.gate;

import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.wire.Chunk;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.util.ArrayDeque;

/**
 * Receives the answer to one request of a gate to a source: keeps the buffers in order, and returns
 * credit for each buffer that is used up. Subclasses interpret the bytes.
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

    /** The reason why nothing more comes, or null. */
    SourceFailure failure;

    ConsumerChannel(int credit) {
        this.announceAt = Math.max(1, credit / 2);
    }

    abstract Source source();

    /**
     * Makes the failure of this source; {@code mapAttemptId} is null if no single attempt is to
     * blame.
     */
    abstract SourceFailure failure(Long mapAttemptId, ErrorCode code, String what, Throwable cause);

    /** Called when data, the end, or a failure has arrived. */
    void arrived() throws SourceFailure {}

    /** Remembers the connection and the number under which the channel is requested. */
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

    /**
     * Returns whether the end has arrived, after which the channel no longer depends on the
     * connection.
     */
    final boolean isReceived() {
        return ended;
    }

    /**
     * Returns whether nothing follows the buffers in the queue, because the end or a failure has
     * arrived.
     */
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
                    "received buffer "
                            + response.sequenceNumber()
                            + (ended ? " after the end" : ", expected buffer " + nextSequence),
                    null);
            return false;
        }
        nextSequence = nextSequence + 1 & 0xFFFF_FFFFL;
        return true;
    }

    // ---- reading

    /** Makes the next buffer the head; returns whether there was one. */
    final boolean nextHead() {
        head = queue.poll();
        return head != null;
    }

    /** Turns a head that is used up into credit; returns whether it was used up. */
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

    /** Recycles all buffers, read or unread, and from now on those that still arrive. */
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
