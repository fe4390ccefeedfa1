package io.sluice.client.output;

import io.sluice.client.connection.RegionArea;
import io.sluice.client.connection.RoleHandler;
import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.connection.TaskTrace;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Frames;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Arrays;

/** Sends one map output on one connection, for {@link MapOutputSender}. */
final class ProducerLeg extends RoleHandler {
    private final TaskManagerConnection connection;
    private final long partition;

    private long credit;
    private int payloadBytes;
    private long regionNumber;
    private long creditWaitNanos;
    private long sharedBytes;
    private Message.RegionAreaAttached attached;
    private long securedRegion = -1;
    private Message.PartitionResumed resumed;
    private boolean finished;
    private boolean aborted;
    private Message.ErrorResponse error;

    /**
     * A region.
     *
     * @param bytes a direct buffer with the region in {@code [start .. end)}
     * @param first number of the region's first subpartition
     * @param lengths bytes of each subpartition, {@code lengths[0 .. count)}
     * @param count number of subpartitions
     * @param crc32c checksum of all bytes
     */
    record Region(
            ByteBuffer bytes,
            int start,
            int end,
            long first,
            long[] lengths,
            int count,
            long crc32c) {
        int length() {
            return end - start;
        }
    }

    ProducerLeg(TaskManagerConnection connection) {
        super("on a producer connection");
        this.connection = connection;
        this.partition = connection.nextNumber();
        connection.setHandler(this);
    }

    /** Opens a map output, without waiting for the answer. */
    void open(long shuffleId, long mapAttemptId, int numSubpartitions) throws IOException {
        connection.send(
                new Message.OpenPartition(partition, shuffleId, mapAttemptId, numSubpartitions));
    }

    /** Joins the map output to the trace of its task, if it has one. */
    void trace(TaskTrace trace) throws IOException {
        if (trace != null) {
            trace.send(connection, partition);
        }
    }

    /** Resumes a map output after the regions that the TaskManager has. */
    Message.PartitionResumed resume(long shuffleId, long mapAttemptId, int numSubpartitions)
            throws IOException {
        connection.send(
                new Message.ResumePartition(partition, shuffleId, mapAttemptId, numSubpartitions));
        connection
                .waits()
                .await(() -> resumed != null || error != null, "a map output to be resumed");
        check();
        return resumed;
    }

    /** Sends AttachRegionArea; returns the answer. */
    Message.RegionAreaAttached attachArea(String token, long sizeBytes) throws IOException {
        attached = null;
        connection.send(new Message.AttachRegionArea(token, sizeBytes));
        connection.waits().await(() -> attached != null, "a region area");
        return attached;
    }

    /** Requests that all regions up to this one survive the TaskManager's process. */
    void requestSecure(long region) throws IOException {
        connection.send(new Message.SecureRegion(partition, region));
        connection.flush();
    }

    /** Waits until all regions up to this one are secured. */
    void awaitSecured(long region) throws IOException {
        connection
                .waits()
                .await(() -> securedRegion >= region || error != null, "a region to be secured");
        check();
    }

    TaskManagerConnection connection() {
        return connection;
    }

    /**
     * Sends a region. Bytes in the region area are not sent: the TaskManager takes them before it
     * answers the next message, {@link #requestSecure} or {@link #requestCommit}.
     */
    void sendRegion(long number, Region region) throws IOException {
        ByteBuffer bytes = region.bytes();
        int start = region.start();
        int length = region.length();
        // The writer uses its array again, which may be longer.
        long[] lengths = Arrays.copyOf(region.lengths(), region.count());
        RegionArea area = connection.regionArea();
        long slot = area == null ? -1 : area.offsetOf(bytes);
        if (slot >= 0) {
            // Sent together with the next message.
            connection.send(
                    new Message.SharedRegion(
                            partition,
                            number,
                            region.first(),
                            lengths,
                            region.crc32c(),
                            slot + start));
            sharedBytes += length;
            return;
        }
        credit = 0;
        regionNumber = number;
        // RegionOpened may change it, before the first credit.
        payloadBytes = connection.segmentBytes();
        connection.send(
                new Message.BeginRegion(
                        partition, number, region.first(), lengths, region.crc32c()));
        int offset = 0;
        while (offset < length) {
            if (credit == 0) {
                long before = connection.waitedNanos();
                connection.waits().await(() -> credit > 0 || error != null, "credit for a region");
                creditWaitNanos += connection.waitedNanos() - before;
                check();
            }
            int n = Math.min(payloadBytes, length - offset);
            bytes.limit(start + offset + n).position(start + offset);
            connection.send(new Message.RegionData(partition, offset), bytes);
            credit--;
            offset += n;
        }
        // The task may now compute for minutes: do not leave a frame half sent.
        connection.flush();
        check();
    }

    /** Returns the nanoseconds waited for credit. */
    long creditWaitNanos() {
        return creditWaitNanos;
    }

    /** Returns the bytes sent through the region area. */
    long sharedBytes() {
        return sharedBytes;
    }

    /** Requests the commit; must be followed by {@link #awaitFinished}. */
    void requestCommit(long totalBytes, long regions, Replicas replicas) throws IOException {
        if (replicas.count() > 1) {
            // Sent together with the next message.
            connection.send(
                    new Message.ReplicatePartition(
                            partition, replicas.count(), replicas.isSynchronous()));
        }
        // The driver warns of a TaskManager without a remote tier.
        if (replicas.isRemote()
                && (connection.taskManager().features() & Frames.REMOTE_COPIES) != 0) {
            connection.send(new Message.ReplicateToRemote(partition, replicas.isSynchronous()));
        }
        connection.send(new Message.FinishPartition(partition, totalBytes, regions));
        connection.flush();
    }

    /** Waits for the journal of the TaskManager, and of those with synchronous copies. */
    void awaitFinished() throws IOException {
        // The answer may have come with the flush, before the TaskManager closed the connection.
        if (!finished && error == null) {
            connection.waits().await(() -> finished || error != null, "the commit of a map output");
        }
        check();
        connection.setHandler(null);
    }

    /** Aborts the map output; returns whether the connection can be used again. */
    boolean abort() {
        try {
            connection.send(new Message.AbortPartition(partition));
            connection
                    .waits()
                    .awaitEnd(() -> aborted || error != null, "the end of an aborted map output");
            connection.setHandler(null);
            return aborted;
        } catch (IOException e) {
            // Sent without waiting, so that the TaskManager does not keep secured regions.
            connection.sendLast(new Message.AbortPartition(partition));
            return false;
        }
    }

    private static int checkedPayload(Message.RegionOpened opened) throws ClientException.Protocol {
        if (opened.payloadBytes() > Frames.MAX_SEGMENT_BYTES) {
            throw new ClientException.Protocol(
                    ErrorCode.FRAME_TOO_LARGE,
                    opened + " (limit " + Frames.MAX_SEGMENT_BYTES + " bytes)",
                    null);
        }
        return (int) opened.payloadBytes();
    }

    private void check() throws ClientException.Remote {
        if (error != null) {
            throw new ClientException.Remote(connection.endpoint().toString(), error);
        }
    }

    @Override
    public void onMessage(Message message) throws IOException {
        if (message instanceof Message.AddCredit add) {
            if (add.channel() == partition) {
                credit += add.credit();
            }
        } else if (message instanceof Message.RegionOpened opened) {
            if (opened.partition() == partition && opened.region() == regionNumber) {
                payloadBytes = checkedPayload(opened);
            }
        } else if (message instanceof Message.RegionSecured secured) {
            if (secured.partition() == partition) {
                securedRegion = secured.region();
            }
        } else if (message instanceof Message.RegionAreaAttached answer) {
            attached = answer;
        } else if (message instanceof Message.PartitionResumed answer) {
            if (answer.partition() == partition) {
                resumed = answer;
            }
        } else if (message instanceof Message.PartitionFinished answer) {
            finished |= answer.partition() == partition;
        } else if (message instanceof Message.PartitionAborted answer) {
            aborted |= answer.partition() == partition;
        } else if (message instanceof Message.ErrorResponse response) {
            if (response.channel() == partition) {
                error = response;
            }
        } else if (!(message instanceof Message.PartitionOpened)) {
            throw unexpected(message);
        }
    }
}
