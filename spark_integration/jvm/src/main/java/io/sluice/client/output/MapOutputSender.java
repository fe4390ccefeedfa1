package io.sluice.client.output;

import io.sluice.client.connection.ConnectionSource;
import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.failover.Patience;
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
 * Sends one map output: regions under credit, then commit or abort.
 *
 * <p>A connection is leased with the first region. The TaskManager secures each region but the last
 * before its buffer is reused, so secured regions outlive its process. When a connection is lost,
 * another one replaces it and the regions in hand are sent again. There are at most two: one that
 * is being secured, and the next one, which is being filled.
 *
 * <p>A TaskManager without room for the first region, or for the output at all, is passed over, and
 * another one gets the output. With regions behind it an output cannot move: its task must run
 * again.
 *
 * <p>{@link #finish} or {@link #abort} ends the output and gives the connection back. Not thread
 * safe.
 */
final class MapOutputSender {
    private static final Logger LOG = LoggerFactory.getLogger(MapOutputSender.class);

    private final ConnectionSource source;
    private final RegionAreas areas;
    private final long shuffleId;
    private final long mapAttemptId;
    private final int numSubpartitions;
    private final Replicas replicas;

    private ProducerLeg leg;
    private Endpoint endpoint;
    private Message.HelloAck taskManager;
    private Patience patience;
    private boolean interrupted;

    /** The last refusal for want of room after which another TaskManager was tried, or null. */
    private IOException refusal;

    /** The TaskManagers that have refused the output, and where they were reached. */
    private final Set<String> full = new HashSet<>();

    private final Set<Endpoint> fullEndpoints = new HashSet<>();
    private long creditWaitNanos;
    private long sharedBytes;

    /** Regions and bytes sent, and those of them that the TaskManager has secured. */
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

    /** Says which part of a map output the TaskManager already has when it is resumed. */
    private enum StoredPart {
        SECURED_REGIONS,
        NEXT_REGION_TOO,
        EVERYTHING
    }

    MapOutputSender(
            ConnectionSource source,
            RegionAreas areas,
            long shuffleId,
            long mapAttemptId,
            int numSubpartitions,
            Replicas replicas) {
        this.source = source;
        this.areas = areas;
        this.shuffleId = shuffleId;
        this.mapAttemptId = mapAttemptId;
        this.numSubpartitions = numSubpartitions;
        this.replicas = replicas;
    }

    /**
     * Sends the remaining bytes of {@code bytes}, a direct buffer, as the next region; more will
     * follow.
     *
     * <p>After the return, the caller may change the buffer of the previous region. This one must
     * stay unchanged until the next call of any method has returned.
     *
     * @param first number of the region's first subpartition
     * @param lengths bytes of each subpartition, {@code lengths[0 .. count)}
     * @param crc32c checksum of all bytes
     */
    void sendRegion(ByteBuffer bytes, long first, long[] lengths, int count, long crc32c)
            throws IOException {
        settle();
        long[] kept = Arrays.copyOf(lengths, count);
        send(
                new ProducerLeg.Region(
                        bytes, bytes.position(), bytes.limit(), first, kept, count, crc32c),
                true);
        patience = null;
    }

    /**
     * Sends the last region of the map output, like {@link #sendRegion}. Buffer and lengths must
     * stay unchanged until {@link #finish} or {@link #abort} has returned.
     */
    void sendLastRegion(ByteBuffer bytes, long first, long[] lengths, int count, long crc32c)
            throws IOException {
        settle();
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
                boolean secured = secure && leg.isResumable();
                if (stored == StoredPart.NEXT_REGION_TOO) {
                    count(region, true);
                    return;
                }
                leg.sendRegion(sentRegions, region);
                if (secured) {
                    leg.askToSecure(sentRegions);
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

    /** Waits until all sent regions are secured, if the TaskManager can secure regions. */
    private void settle() throws IOException {
        while (unsecured != null) {
            try {
                boolean lost = leg == null;
                StoredPart stored = open(unsecured);
                if (stored == StoredPart.SECURED_REGIONS) {
                    if (lost) {
                        leg.sendRegion(sentRegions, unsecured);
                        leg.askToSecure(sentRegions);
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

    /**
     * Requests the commit of the map output, without waiting for the answer. Must be followed by
     * {@link #finish}.
     */
    void askToFinish() throws IOException {
        settle();
        committingRegions = sentRegions;
        committingBytes = sentBytes;
        try {
            sendCommit();
        } catch (IOException e) {
            recoverCommit(e);
        }
    }

    /**
     * Waits for the commit; returns when the journal has the map output.
     *
     * @return the TaskManager that has the output
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
                source.giveBack(leg.connection());
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
            leg.askToFinish(sentBytes, sentRegions, replicas);
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

    /** Returns the nanoseconds spent waiting for credit so far. */
    long creditWaitNanos() {
        return creditWaitNanos + (leg == null ? 0 : leg.creditWaitNanos());
    }

    /**
     * Returns the bytes that went through a region area so far, including those that were sent
     * again.
     */
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
     * Makes sure that there is a connection on which the map output is open.
     *
     * @param next the next region to send, or null before the commit
     * @return the part that need not be sent any more
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
        areas.attach(leg);
        if (interrupted && leg.isResumable()) {
            return compare(leg.resume(shuffleId, mapAttemptId, numSubpartitions), next);
        }
        leg.open(shuffleId, mapAttemptId, numSubpartitions);
        return StoredPart.SECURED_REGIONS;
    }

    /**
     * Leases a connection to a TaskManager that has not refused the output.
     *
     * @throws IOException the last refusal, if every TaskManager that answers has refused it
     */
    private TaskManagerConnection leaseWithRoom() throws IOException {
        while (true) {
            TaskManagerConnection connection = source.lease();
            if (!full.contains(connection.taskManager().taskManagerId())) {
                return connection;
            }
            source.giveBack(connection);
            source.passOver(connection.endpoint());
            if (!fullEndpoints.add(connection.endpoint())) {
                throw refusal;
            }
        }
    }

    private StoredPart compare(Message.PartitionResumed found, ProducerLeg.Region next)
            throws IOException {
        if (found.committed()) {
            // The commit's answer was lost with the connection.
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
                "map output "
                        + mapAttemptId
                        + " cannot be resumed: the TaskManager at "
                        + endpoint
                        + " secured "
                        + securedRegions
                        + " regions of "
                        + securedBytes
                        + " bytes and now has "
                        + found
                        + ". Its task must run again");
    }

    /**
     * Prepares for another connection; returns when an attempt is worthwhile.
     *
     * @throws IOException {@code failure}, if another connection would not help or the time is over
     */
    private void recover(IOException failure) throws IOException {
        if (leg == null) {
            // The source of connections has already waited.
            throw failure;
        }
        boolean withoutRoom = ClientException.isWithoutRoom(failure);
        if (withoutRoom) {
            source.passOver(endpoint);
        }
        leg.connection().close();
        endLeg();
        if (withoutRoom && sentRegions == 0) {
            full.add(taskManager.taskManagerId());
            fullEndpoints.add(endpoint);
            if (refusal != null) {
                failure.addSuppressed(refusal);
            }
            refusal = failure;
            return;
        }
        // Regions lost by a TaskManager without resumable outputs may no longer be at hand.
        if (!ClientException.isLostConnection(failure) || securedRegions < sentRegions) {
            throw failure;
        }
        if (patience == null) {
            patience = new Patience(source.returnTimeoutMillis());
        } else if (!patience.pause("a TaskManager to take map output " + mapAttemptId)) {
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
