package io.sluice.client.gate;

import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.wire.Chunk;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.DataProcesses;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.util.ArrayDeque;

/**
 * Queues the payloads of one source, and returns credit for each one that is consumed. Subclasses
 * interpret the bytes.
 */
abstract class ConsumerChannel {
    private final int announceAt;

    /** The payloads to read, of which each may be a chain of chunks. */
    private final ArrayDeque<Chunk> queue = new ArrayDeque<>();

    private TaskManagerConnection connection;
    private long number;
    private boolean direct;
    private boolean local;
    private int unannouncedCredit;
    private long nextSequence;
    private long receivedBytes;
    private long receivedBuffers;
    private boolean ended;
    private boolean released;

    /** The chunk being read, or null. */
    Chunk head;

    /** The chunks of the same payload behind it, or null. */
    private Chunk rest;

    /** Why the source failed, or null. */
    SourceFailure failure;

    ConsumerChannel(int credit) {
        this.announceAt = Math.max(1, credit / 2);
    }

    abstract Source source();

    /** Makes a failure of this source; {@code mapAttemptId} is null if several are affected. */
    abstract SourceFailure failure(Long mapAttemptId, ErrorCode code, String what, Throwable cause);

    /** Called after data, the end, or a failure has arrived. */
    void onArrival() throws SourceFailure {}

    /** Records on which connection and under which number the channel is requested. */
    final void requested(TaskManagerConnection connection, long number) {
        this.connection = connection;
        this.number = number;
        Message.HelloAck own = connection.taskManager();
        this.direct = source().taskManagerId().equals(own.taskManagerId());
        this.local =
                direct
                        || (own.processes() > 1
                                && DataProcesses.of(own)
                                        .contains(source().host(), source().port()));
    }

    final boolean isRequested() {
        return connection != null;
    }

    final boolean isOn(TaskManagerConnection other) {
        return connection == other;
    }

    final long number() {
        return number;
    }

    /** Returns whether the process at the other end of the connection has the data itself. */
    final boolean isDirect() {
        return direct;
    }

    /** Returns whether a process of the own TaskManager has the data. */
    final boolean isLocal() {
        return local;
    }

    final boolean hasData() {
        return !queue.isEmpty() || rest != null || (head != null && head.remaining() > 0);
    }

    /** Returns whether the end has arrived: the channel no longer needs the connection. */
    final boolean isReceived() {
        return ended;
    }

    /** Returns whether the end or a failure has arrived. */
    final boolean hasEnded() {
        return ended || failure != null;
    }

    // ---- arrival

    /** Takes a payload; returns its bytes, 0 if it is not wanted. */
    final long add(Message.BufferResponse response, Chunk payload) throws SourceFailure {
        if (!isNext(response)) {
            connection.options().chunks().recycle(payload);
            return 0;
        }
        long bytes = 0;
        for (Chunk chunk = payload; chunk != null; chunk = chunk.next) {
            bytes += chunk.length;
        }
        queue.add(payload);
        receivedBytes += bytes;
        receivedBuffers++;
        onArrival();
        return bytes;
    }

    final void end(Message.BufferResponse response, Message.EndOfPartition event)
            throws SourceFailure {
        if (!isNext(response)) {
            return;
        }
        if (event.totalBytes() == receivedBytes && event.totalBuffers() == receivedBuffers) {
            ended = true;
            onArrival();
            return;
        }
        fail(
                null,
                ErrorCode.END_OF_PARTITION_MISMATCH,
                String.format(
                        "received %d bytes in %d buffers, announced %d in %d",
                        receivedBytes, receivedBuffers, event.totalBytes(), event.totalBuffers()),
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
        onArrival();
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

    /** Makes the next chunk the head; returns whether there was one. */
    final boolean nextHead() {
        head = rest != null ? rest : queue.poll();
        if (head == null) {
            return false;
        }
        rest = head.next;
        head.next = null;
        return true;
    }

    /**
     * Recycles a consumed head, and returns the credit of its payload after the last chunk.
     *
     * @return whether it was consumed
     */
    final boolean releaseHead() throws IOException {
        if (head == null || head.remaining() > 0) {
            return false;
        }
        connection.options().chunks().recycle(head);
        head = null;
        if (rest != null) {
            return true;
        }
        unannouncedCredit++;
        if (unannouncedCredit >= announceAt && !hasEnded()) {
            int credit = unannouncedCredit;
            unannouncedCredit = 0;
            connection.send(new Message.AddCredit(number, credit));
            connection.sendNow();
        }
        return true;
    }

    /** Recycles all buffers, and those that still arrive. */
    final void release() {
        released = true;
        if (connection == null) {
            return;
        }
        if (head != null) {
            connection.options().chunks().recycle(head);
            head = null;
        }
        connection.options().chunks().recycle(rest);
        rest = null;
        queue.forEach(connection.options().chunks()::recycle);
        queue.clear();
    }
}
