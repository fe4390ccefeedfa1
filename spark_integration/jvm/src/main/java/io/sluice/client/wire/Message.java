package io.sluice.client.wire;

import java.util.Objects;

/**
 * Declares every message of the wire protocol (docs/reference/wire.md). The components of a record
 * are in the order on the wire.
 *
 * <p>A {@code long} carries unsigned 32-bit numbers as they are, and unsigned 64-bit numbers in its
 * bits.
 */
public sealed interface Message {

    int ROLE_PRODUCER = 2;
    int ROLE_CONSUMER = 3;
    int ROLE_DRIVER = 4;

    int DATA = 0;
    int EVENT = 1;
    int BLOCKING_EVENT = 3;
    int EVENT_END_OF_PARTITION = 1;

    record Hello(
            String magic,
            long versionMin,
            long versionMax,
            long role,
            String applicationId,
            byte[] token,
            long segmentSizeBytes,
            long flowControl,
            long features,
            String name)
            implements Message {
        // A record compares arrays by identity; messages are compared by content.
        @Override
        public boolean equals(Object other) {
            return other instanceof Hello hello
                    && magic.equals(hello.magic)
                    && versionMin == hello.versionMin
                    && versionMax == hello.versionMax
                    && role == hello.role
                    && applicationId.equals(hello.applicationId)
                    && java.util.Arrays.equals(token, hello.token)
                    && segmentSizeBytes == hello.segmentSizeBytes
                    && flowControl == hello.flowControl
                    && features == hello.features
                    && name.equals(hello.name);
        }

        @Override
        public int hashCode() {
            return Objects.hash(applicationId, role, name);
        }
    }

    record HelloAck(
            long version,
            String taskManagerId,
            long segmentSizeBytes,
            long flowControl,
            long features,
            String advertisedHost,
            int dataPort,
            String instanceId)
            implements Message {
        /** The HelloAck of a TaskManager without an instance id, such as an older release. */
        public HelloAck(
                long version,
                String taskManagerId,
                long segmentSizeBytes,
                long flowControl,
                long features,
                String advertisedHost,
                int dataPort) {
            this(
                    version,
                    taskManagerId,
                    segmentSizeBytes,
                    flowControl,
                    features,
                    advertisedHost,
                    dataPort,
                    "");
        }
    }

    /** Answers a Hello with a claim, which is to be proven. */
    record Challenge(byte[] nonce) implements Message {
        @Override
        public boolean equals(Object other) {
            return other instanceof Challenge challenge
                    && java.util.Arrays.equals(nonce, challenge.nonce);
        }

        @Override
        public int hashCode() {
            return java.util.Arrays.hashCode(nonce);
        }
    }

    /** Shows that its sender has the key that the Hello claimed; both sides send one. */
    record Proof(byte[] proof) implements Message {
        @Override
        public boolean equals(Object other) {
            return other instanceof Proof answer && java.util.Arrays.equals(proof, answer.proof);
        }

        @Override
        public int hashCode() {
            return java.util.Arrays.hashCode(proof);
        }
    }

    record PartitionRequest(
            long channel,
            String applicationId,
            long shuffleId,
            long[] mapAttemptIds,
            long startSubpartition,
            long endSubpartition,
            long initialCredit)
            implements Message {
        @Override
        public boolean equals(Object other) {
            return other instanceof PartitionRequest request
                    && channel == request.channel
                    && applicationId.equals(request.applicationId)
                    && shuffleId == request.shuffleId
                    && java.util.Arrays.equals(mapAttemptIds, request.mapAttemptIds)
                    && startSubpartition == request.startSubpartition
                    && endSubpartition == request.endSubpartition
                    && initialCredit == request.initialCredit;
        }

        @Override
        public int hashCode() {
            return Objects.hash(channel, applicationId, shuffleId);
        }
    }

    record BufferResponse(long channel, long sequenceNumber, long backlog, int dataType)
            implements Message {}

    record ChecksummedBuffer(
            long channel, long sequenceNumber, long backlog, int dataType, long crc32c)
            implements Message {}

    record AddCredit(long channel, long credit) implements Message {}

    record BacklogAnnouncement(long channel, long backlog) implements Message {}

    record ResumeConsumption(long channel) implements Message {}

    record CancelPartitionRequest(long channel) implements Message {}

    record TaskEvent(long channel, long eventType) implements Message {}

    /** Reports a failure; {@code channel} and {@code mapAttemptId} may be null. */
    record ErrorResponse(
            Long channel,
            long code,
            int fault,
            boolean retryable,
            String message,
            String value,
            String limit,
            Long mapAttemptId)
            implements Message {}

    record CloseRequest() implements Message {}

    record Ping(long nonce) implements Message {}

    record Pong(long nonce) implements Message {}

    record PipelinedData(long partition, long subpartition, int dataType) implements Message {}

    record OpenPipelinedPartition(
            long partition,
            long shuffleId,
            long mapAttemptId,
            long numSubpartitions,
            long partitionType,
            long consumption)
            implements Message {}

    record OpenPartition(long partition, long shuffleId, long mapAttemptId, long numSubpartitions)
            implements Message {}

    record PartitionOpened(long partition) implements Message {}

    record ResumePartition(long partition, long shuffleId, long mapAttemptId, long numSubpartitions)
            implements Message {}

    record PartitionResumed(long partition, long regions, long totalBytes, boolean committed)
            implements Message {}

    record SecureRegion(long partition, long region) implements Message {}

    record RegionSecured(long partition, long region) implements Message {}

    /**
     * Begins a region. The lengths are {@code lengths[0 .. count)}; the array is recycled and may
     * be longer.
     */
    record BeginRegion(
            long partition,
            long region,
            long firstSubpartition,
            long[] lengths,
            int count,
            long crc32c)
            implements Message {
        @Override
        public boolean equals(Object other) {
            return other instanceof BeginRegion begin
                    && partition == begin.partition
                    && region == begin.region
                    && firstSubpartition == begin.firstSubpartition
                    && java.util.Arrays.equals(lengths, 0, count, begin.lengths, 0, begin.count)
                    && crc32c == begin.crc32c;
        }

        @Override
        public int hashCode() {
            return Objects.hash(partition, region, crc32c);
        }
    }

    /**
     * Requests a region area: a known one by its token, or a new one by its size. An empty token
     * with size 0 detaches the area.
     */
    record AttachRegionArea(String token, long sizeBytes) implements Message {}

    /**
     * Answers each AttachRegionArea; an empty token says that no area is attached to the connection
     * now.
     */
    record RegionAreaAttached(String token, String path, long sizeBytes) implements Message {}

    /**
     * Announces a region whose bytes are in the region area: the fields of a BeginRegion, and the
     * offset in the area.
     */
    record SharedRegion(BeginRegion region, long areaOffset) implements Message {}

    record RegionOpened(long partition, long region, long payloadBytes) implements Message {}

    record RegionData(long partition, long offset) implements Message {}

    record FinishPartition(long partition, long totalBytes, long regions) implements Message {}

    record PartitionFinished(long partition) implements Message {}

    record AbortPartition(long partition) implements Message {}

    record PartitionAborted(long partition) implements Message {}

    record GateChannel(
            long channel, String taskManagerId, String host, int port, long[] mapAttemptIds) {
        @Override
        public boolean equals(Object other) {
            return other instanceof GateChannel gate
                    && channel == gate.channel
                    && taskManagerId.equals(gate.taskManagerId)
                    && host.equals(gate.host)
                    && port == gate.port
                    && java.util.Arrays.equals(mapAttemptIds, gate.mapAttemptIds);
        }

        @Override
        public int hashCode() {
            return Objects.hash(channel, taskManagerId);
        }
    }

    record OpenGate(
            long gate,
            long shuffleId,
            long startSubpartition,
            long endSubpartition,
            long initialCredit,
            java.util.List<GateChannel> channels)
            implements Message {}

    record GateOpened(long gate) implements Message {}

    record CloseGate(long gate) implements Message {}

    record GateClosed(long gate) implements Message {}

    record ReleaseShuffle(long shuffleId) implements Message {}

    record ShuffleReleased(long shuffleId, long freedBytes) implements Message {}

    record ReleaseApplication() implements Message {}

    record ApplicationReleased(long freedBytes) implements Message {}

    record OutputsLost(long shuffleId, java.util.List<Long> mapAttemptIds) implements Message {}

    /**
     * Asks, before FinishPartition, that {@code replicas} TaskManagers keep a map output, the one
     * written to included; if synchronous, PartitionFinished waits for the copies.
     */
    record ReplicatePartition(long partition, long replicas, boolean synchronous)
            implements Message {}

    /** Says that a TaskManager writes a map output that it has; only TaskManagers send it. */
    record CopyOf(long partition, String origin, long replicas, boolean moved) implements Message {}

    record KnownTaskManager(String taskManagerId, String host, int port) implements Message {}

    /** Map outputs that other TaskManagers have copied to the sender. */
    record OutputsHeld(long shuffleId, java.util.List<Long> mapAttemptIds) implements Message {}

    /** Map outputs that are at another TaskManager from now on; answered by MoveNoted. */
    record OutputsMoved(
            long move,
            long shuffleId,
            String taskManagerId,
            String host,
            int port,
            java.util.List<Long> mapAttemptIds)
            implements Message {}

    record MoveNoted(long move) implements Message {}

    /** Frees the map outputs of a shuffle whose map attempt is below {@code end}. */
    record ReleaseAttempts(long shuffleId, long end) implements Message {}

    /** Asks which map outputs are missing; OutputsLost names them, OutputsChecked follows. */
    record CheckOutputs(long check, long shuffleId, java.util.List<Long> mapAttemptIds)
            implements Message {}

    record OutputsChecked(long check) implements Message {}

    /** The payload of an end-of-partition event. */
    record EndOfPartition(long totalBytes, long totalBuffers) {}
}
