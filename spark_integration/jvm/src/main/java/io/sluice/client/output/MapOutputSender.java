package io.sluice.client.output;

import io.sluice.client.connection.ConnectionSource;
import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.failover.RetryDeadline;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Sends one map output: regions under credit, then commit or abort. Not thread safe.
 *
 * <p>The TaskManager secures each region but the last before its buffer is reused. After a lost
 * connection, the unsecured regions, at most two, are sent again on another one.
 *
 * <p>If a TaskManager has no room for the first region, another one gets the output. An output with
 * stored regions cannot move: its task must run again.
 */
final class MapOutputSender {
    private static final Logger LOG = LoggerFactory.getLogger(MapOutputSender.class);

    private final ConnectionSource source;
    private final RegionPool regions;
    private final long shuffleId;
    private final long mapAttemptId;
    private final int numSubpartitions;
    private final Replicas replicas;

    private ProducerLeg leg;
    private Endpoint endpoint;
    private Message.HelloAck taskManager;
    private RetryDeadline deadline;
    private boolean interrupted;

    /** The last refusal of a TaskManager without room, or null. */
    private IOException refusal;

    /** The TaskManagers without room for the output, and their endpoints. */
    private final Set<String> refusing = new HashSet<>();

    private final Set<Endpoint> refusingEndpoints = new HashSet<>();
    private long creditWaitNanos;
    private long sharedBytes;

    /** Regions and bytes sent, and those that the TaskManager has secured. */
    private long sentRegions;

    private long sentBytes;
    private long securedRegions;
    private long securedBytes;

    /** The region that is sent but not yet secured; not included in {@code sentRegions}. */
    private ProducerLeg.Region unsecured;

    /** The last region, kept until the commit. */
    private ProducerLeg.Region last;

    /** Regions and bytes of the whole map output after its commit was requested, otherwise -1. */
    private long committingRegions = -1;

    private long committingBytes;
    private boolean committed;

    /** Whether the commit was requested on the connection in use. */
    private boolean finishing;

    /** The part of a resumed map output that the TaskManager already has. */
    private enum StoredPart {
        SECURED_REGIONS,
        NEXT_REGION_TOO,
        EVERYTHING
    }

    MapOutputSender(
            ConnectionSource source,
            RegionPool regions,
            long shuffleId,
            long mapAttemptId,
            int numSubpartitions,
            Replicas replicas) {
        this.source = source;
        this.regions = regions;
        this.shuffleId = shuffleId;
        this.mapAttemptId = mapAttemptId;
        this.numSubpartitions = numSubpartitions;
        this.replicas = replicas;
    }

    /**
     * Sends the remaining bytes of {@code bytes}, a direct buffer, as the next region. The buffer
     * must stay unchanged until the next call of any method has returned.
     *
     * @param first number of the region's first subpartition
     * @param lengths bytes of each subpartition, {@code lengths[0 .. count)}
     * @param crc32c checksum of all bytes
     */
    void sendRegion(ByteBuffer bytes, long first, long[] lengths, int count, long crc32c)
            throws IOException {
        awaitSecured();
        long[] kept = Arrays.copyOf(lengths, count);
        send(
                new ProducerLeg.Region(
                        bytes, bytes.position(), bytes.limit(), first, kept, count, crc32c),
                true);
        deadline = null;
    }

    /** Sends the last region, which must stay unchanged until {@link #finish} or {@link #abort}. */
    void sendLastRegion(ByteBuffer bytes, long first, long[] lengths, int count, long crc32c)
            throws IOException {
        awaitSecured();
        ProducerLeg.Region region =
                new ProducerLeg.Region(
                        bytes, bytes.position(), bytes.limit(), first, lengths, count, crc32c);
        send(region, false);
        last = region;
    }

    private void send(ProducerLeg.Region region, boolean secure) throws IOException {
        while (true) {
            try {
                StoredPart stored = open(region);
                if (stored == StoredPart.EVERYTHING) {
                    return;
                }
                if (stored == StoredPart.NEXT_REGION_TOO) {
                    count(region, true);
                    return;
                }
                leg.sendRegion(sentRegions, region);
                if (secure) {
                    leg.requestSecure(sentRegions);
                    unsecured = region;
                } else {
                    count(region, false);
                }
                return;
            } catch (IOException e) {
                recover(e);
            }
        }
    }

    /** Waits until all sent regions are secured. */
    private void awaitSecured() throws IOException {
        while (unsecured != null) {
            try {
                boolean lost = leg == null;
                StoredPart stored = open(unsecured);
                if (stored == StoredPart.SECURED_REGIONS) {
                    if (lost) {
                        leg.sendRegion(sentRegions, unsecured);
                        leg.requestSecure(sentRegions);
                    }
                    leg.awaitSecured(sentRegions);
                }
                count(unsecured, true);
                unsecured = null;
            } catch (IOException e) {
                recover(e);
            }
        }
    }

    private void count(ProducerLeg.Region region, boolean secured) {
        sentRegions++;
        sentBytes += region.length();
        if (secured) {
            securedRegions = sentRegions;
            securedBytes = sentBytes;
        }
    }

    /** Requests the commit; must be followed by {@link #finish}. */
    void requestCommit() throws IOException {
        awaitSecured();
        committingRegions = sentRegions;
        committingBytes = sentBytes;
        try {
            sendCommit();
        } catch (IOException e) {
            recoverCommit(e);
        }
    }

    /**
     * Waits for the commit, and releases the connection.
     *
     * @return the TaskManager that has the output in its journal
     */
    Message.HelloAck finish() throws IOException {
        while (true) {
            try {
                if (!finishing) {
                    sendCommit();
                }
                if (!committed) {
                    leg.awaitFinished();
                }
                source.release(leg.connection());
                endLeg();
                return taskManager;
            } catch (IOException e) {
                recoverCommit(e);
            }
        }
    }

    private void sendCommit() throws IOException {
        if (sentRegions < committingRegions) {
            send(last, false);
        }
        open(null);
        if (!committed) {
            leg.requestCommit(sentBytes, sentRegions, replicas);
        }
        finishing = true;
    }

    private void recoverCommit(IOException failure) throws IOException {
        finishing = false;
        if (sentRegions == committingRegions && last != null) {
            sentRegions--;
            sentBytes -= last.length();
        }
        recover(failure);
    }

    /** Aborts the map output. Never throws. */
    void abort() {
        if (leg == null) {
            return;
        }
        if (leg.abort()) {
            source.release(leg.connection());
        } else {
            leg.connection().close();
        }
        endLeg();
    }

    /** Returns the data process that takes the output; valid after the first region. */
    int process() {
        return taskManager.process();
    }

    /** Returns the nanoseconds waited for credit. */
    long creditWaitNanos() {
        return creditWaitNanos + (leg == null ? 0 : leg.creditWaitNanos());
    }

    /** Returns the bytes sent through a region area, resent bytes included. */
    long sharedBytes() {
        return sharedBytes + (leg == null ? 0 : leg.sharedBytes());
    }

    private void endLeg() {
        creditWaitNanos += leg.creditWaitNanos();
        sharedBytes += leg.sharedBytes();
        leg = null;
    }

    // ---- connections

    /**
     * Opens the map output on a connection, unless it is open.
     *
     * @param next the next region to send, or null before the commit
     * @return the part that the TaskManager has
     */
    private StoredPart open(ProducerLeg.Region next) throws IOException {
        if (leg != null) {
            return StoredPart.SECURED_REGIONS;
        }
        leg =
                new ProducerLeg(
                        securedRegions > 0
                                ? source.leaseAgain(endpoint, taskManager.taskManagerId())
                                : leaseWithRoom());
        endpoint = leg.connection().endpoint();
        taskManager = leg.connection().taskManager();
        regions.areas(taskManager.process()).attach(leg);
        if (interrupted) {
            Message.PartitionResumed resumed =
                    leg.resume(shuffleId, mapAttemptId, numSubpartitions);
            leg.trace(source.trace());
            return compare(resumed, next);
        }
        leg.open(shuffleId, mapAttemptId, numSubpartitions);
        leg.trace(source.trace());
        return StoredPart.SECURED_REGIONS;
    }

    /**
     * Leases a connection to a TaskManager that may have room.
     *
     * @throws IOException the last refusal, if every TaskManager that answers has refused
     */
    private TaskManagerConnection leaseWithRoom() throws IOException {
        while (true) {
            TaskManagerConnection connection = source.lease();
            if (!refusing.contains(connection.taskManager().taskManagerId())) {
                return connection;
            }
            source.release(connection);
            source.avoid(connection.endpoint());
            if (!refusingEndpoints.add(connection.endpoint())) {
                throw refusal;
            }
        }
    }

    private StoredPart compare(Message.PartitionResumed found, ProducerLeg.Region next)
            throws IOException {
        if (found.committed()) {
            // The answer to the commit was lost with the connection.
            if (found.regions() == committingRegions && found.totalBytes() == committingBytes) {
                sentRegions = committingRegions;
                sentBytes = committingBytes;
                committed = true;
                return StoredPart.EVERYTHING;
            }
        } else if (found.regions() == securedRegions && found.totalBytes() == securedBytes) {
            return StoredPart.SECURED_REGIONS;
        } else if (next != null
                && found.regions() == securedRegions + 1
                && found.totalBytes() == securedBytes + next.length()) {
            return StoredPart.NEXT_REGION_TOO;
        }
        throw new IOException(
                String.format(
                        "map output %d cannot be resumed: the TaskManager at %s secured %d regions"
                                + " of %d bytes and now has %s. Its task must run again",
                        mapAttemptId, endpoint, securedRegions, securedBytes, found));
    }

    /**
     * Closes the connection, and waits before the next attempt.
     *
     * @throws IOException {@code failure}, if it is final or the deadline has passed
     */
    private void recover(IOException failure) throws IOException {
        if (leg == null) {
            // The source of connections has already waited.
            throw failure;
        }
        boolean withoutRoom = ClientException.isWithoutRoom(failure);
        if (withoutRoom) {
            source.avoid(endpoint);
        }
        boolean silent = failure instanceof ClientException.Silent;
        if (silent) {
            source.silent(leg.connection());
        }
        leg.connection().close();
        endLeg();
        if (silent && securedRegions > 0) {
            // It has these regions, so the task must run again, with another TaskManager.
            throw failure;
        }
        if (withoutRoom && sentRegions == 0) {
            refusing.add(taskManager.taskManagerId());
            refusingEndpoints.add(endpoint);
            if (refusal != null) {
                failure.addSuppressed(refusal);
            }
            refusal = failure;
            return;
        }
        // Without resumable outputs, the buffers of lost regions may be reused already.
        if (!ClientException.isLostConnection(failure) || securedRegions < sentRegions) {
            throw failure;
        }
        if (deadline == null) {
            deadline = new RetryDeadline(source.returnTimeoutMillis());
        } else if (!deadline.pause("a TaskManager to take map output " + mapAttemptId)) {
            throw failure;
        }
        interrupted = true;
        source.reconnected();
        LOG.info(
                "Map output {} continues after {} secured regions: {}",
                mapAttemptId,
                securedRegions,
                failure.getMessage());
    }
}
