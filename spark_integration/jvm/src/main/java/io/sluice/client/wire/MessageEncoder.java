package io.sluice.client.wire;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.math.BigInteger;
import java.util.List;
import org.msgpack.core.MessageBufferPacker;
import org.msgpack.core.MessagePack;

/** Encodes the control part of a message. One per connection, because its buffer is reused. */
public final class MessageEncoder {
    private final MessageBufferPacker packer = MessagePack.newDefaultBufferPacker();

    /** Encodes the control part of {@code message}. */
    public byte[] encode(Message message) {
        try {
            packer.clear();
            pack(message);
            return packer.toByteArray();
        } catch (IOException e) {
            throw new UncheckedIOException("packing into memory failed", e);
        }
    }

    private void pack(Message message) throws IOException {
        if (message instanceof Message.RegionData m) {
            head(24, 2).u(m.partition()).unsigned64(m.offset());
        } else if (message instanceof Message.AddCredit m) {
            head(5, 2).u(m.channel()).u(m.credit());
        } else if (message instanceof Message.BeginRegion m) {
            head(22, 5).region(m);
        } else if (message instanceof Message.SharedRegion m) {
            head(36, 6).region(m.region()).unsigned64(m.areaOffset());
        } else if (message instanceof Message.OpenPartition m) {
            head(20, 4)
                    .u(m.partition())
                    .u(m.shuffleId())
                    .u(m.mapAttemptId())
                    .u(m.numSubpartitions());
        } else if (message instanceof Message.FinishPartition m) {
            head(25, 3).u(m.partition()).unsigned64(m.totalBytes()).u(m.regions());
        } else if (message instanceof Message.SecureRegion m) {
            head(18, 2).u(m.partition()).u(m.region());
        } else if (message instanceof Message.ResumePartition m) {
            head(16, 4)
                    .u(m.partition())
                    .u(m.shuffleId())
                    .u(m.mapAttemptId())
                    .u(m.numSubpartitions());
        } else if (message instanceof Message.AttachRegionArea m) {
            head(34, 2).s(m.token()).unsigned64(m.sizeBytes());
        } else if (message instanceof Message.AbortPartition m) {
            head(27, 1).u(m.partition());
        } else if (message instanceof Message.OpenGate m) {
            packGate(m);
        } else if (message instanceof Message.CloseGate m) {
            head(32, 1).u(m.gate());
        } else if (message instanceof Message.Hello m) {
            head(1, 10)
                    .s(m.magic())
                    .u(m.versionMin())
                    .u(m.versionMax())
                    .u(m.role())
                    .s(m.applicationId());
            bytes(m.token()).u(m.segmentSizeBytes()).u(m.flowControl()).u(m.features()).s(m.name());
        } else if (message instanceof Message.Proof m) {
            head(38, 1).bytes(m.proof());
        } else if (message instanceof Message.Ping m) {
            head(12, 1).unsigned64(m.nonce());
        } else if (message instanceof Message.Pong m) {
            head(13, 1).unsigned64(m.nonce());
        } else if (message instanceof Message.CloseRequest) {
            head(11, 0);
        } else if (message instanceof Message.ReleaseShuffle m) {
            head(40, 1).u(m.shuffleId());
        } else if (message instanceof Message.ReleaseApplication) {
            head(42, 0);
        } else if (message instanceof Message.ReplicatePartition m) {
            head(45, 3).u(m.partition()).u(m.replicas());
            packer.packBoolean(m.synchronous());
        } else if (message instanceof Message.KnownTaskManager m) {
            head(47, 3).s(m.taskManagerId()).s(m.host()).u(m.port());
        } else if (message instanceof Message.MoveNoted m) {
            head(50, 1).u(m.move());
        } else if (message instanceof Message.ReleaseAttempts m) {
            head(51, 2).u(m.shuffleId()).u(m.end());
        } else if (message instanceof Message.CheckOutputs m) {
            head(52, 3).u(m.check()).u(m.shuffleId()).attempts(m.mapAttemptIds());
        } else {
            packOther(message);
        }
    }

    /** Encodes the messages that a client never sends, for mock daemons and golden vectors. */
    private void packOther(Message message) throws IOException {
        if (message instanceof Message.HelloAck m) {
            boolean hasInstance = !m.instanceId().isEmpty();
            head(2, hasInstance ? 8 : 7)
                    .u(m.version())
                    .s(m.taskManagerId())
                    .u(m.segmentSizeBytes())
                    .u(m.flowControl());
            u(m.features()).s(m.advertisedHost()).u(m.dataPort());
            if (hasInstance) {
                s(m.instanceId());
            }
        } else if (message instanceof Message.Challenge m) {
            head(37, 1).bytes(m.nonce());
        } else if (message instanceof Message.PartitionRequest m) {
            head(3, 7)
                    .u(m.channel())
                    .s(m.applicationId())
                    .u(m.shuffleId())
                    .longs(m.mapAttemptIds());
            u(m.startSubpartition()).u(m.endSubpartition()).u(m.initialCredit());
        } else if (message instanceof Message.BufferResponse m) {
            head(4, 4).u(m.channel()).u(m.sequenceNumber()).u(m.backlog()).u(m.dataType());
        } else if (message instanceof Message.ChecksummedBuffer m) {
            head(39, 5).u(m.channel()).u(m.sequenceNumber()).u(m.backlog()).u(m.dataType());
            u(m.crc32c());
        } else if (message instanceof Message.BacklogAnnouncement m) {
            head(6, 2).u(m.channel()).u(m.backlog());
        } else if (message instanceof Message.ResumeConsumption m) {
            head(7, 1).u(m.channel());
        } else if (message instanceof Message.CancelPartitionRequest m) {
            head(8, 1).u(m.channel());
        } else if (message instanceof Message.TaskEvent m) {
            head(9, 2).u(m.channel()).u(m.eventType());
        } else if (message instanceof Message.ErrorResponse m) {
            head(10, 8).nullable(m.channel()).u(m.code()).u(m.fault());
            packer.packBoolean(m.retryable());
            s(m.message()).s(m.value()).s(m.limit()).nullable(m.mapAttemptId());
        } else if (message instanceof Message.PipelinedData m) {
            head(15, 3).u(m.partition()).u(m.subpartition()).u(m.dataType());
        } else if (message instanceof Message.OpenPipelinedPartition m) {
            head(29, 6)
                    .u(m.partition())
                    .u(m.shuffleId())
                    .u(m.mapAttemptId())
                    .u(m.numSubpartitions());
            u(m.partitionType()).u(m.consumption());
        } else if (message instanceof Message.PartitionOpened m) {
            head(21, 1).u(m.partition());
        } else if (message instanceof Message.PartitionResumed m) {
            head(17, 4).u(m.partition()).u(m.regions()).unsigned64(m.totalBytes());
            packer.packBoolean(m.committed());
        } else if (message instanceof Message.RegionSecured m) {
            head(19, 2).u(m.partition()).u(m.region());
        } else if (message instanceof Message.RegionAreaAttached m) {
            head(35, 3).s(m.token()).s(m.path()).unsigned64(m.sizeBytes());
        } else if (message instanceof Message.RegionOpened m) {
            head(23, 3).u(m.partition()).u(m.region()).u(m.payloadBytes());
        } else if (message instanceof Message.PartitionFinished m) {
            head(26, 1).u(m.partition());
        } else if (message instanceof Message.PartitionAborted m) {
            head(28, 1).u(m.partition());
        } else if (message instanceof Message.GateOpened m) {
            head(31, 1).u(m.gate());
        } else if (message instanceof Message.GateClosed m) {
            head(33, 1).u(m.gate());
        } else if (message instanceof Message.ShuffleReleased m) {
            head(41, 2).u(m.shuffleId()).unsigned64(m.freedBytes());
        } else if (message instanceof Message.ApplicationReleased m) {
            head(43, 1).unsigned64(m.freedBytes());
        } else if (message instanceof Message.OutputsLost m) {
            head(44, 2).u(m.shuffleId()).attempts(m.mapAttemptIds());
        } else if (message instanceof Message.OutputsHeld m) {
            head(48, 2).u(m.shuffleId()).attempts(m.mapAttemptIds());
        } else if (message instanceof Message.OutputsMoved m) {
            head(49, 6).u(m.move()).u(m.shuffleId()).s(m.taskManagerId()).s(m.host()).u(m.port());
            attempts(m.mapAttemptIds());
        } else if (message instanceof Message.OutputsChecked m) {
            head(53, 1).u(m.check());
        } else if (message instanceof Message.CopyOf m) {
            head(46, 4).u(m.partition()).s(m.origin()).u(m.replicas());
            packer.packBoolean(m.moved());
        } else {
            throw new IllegalArgumentException("no encoding for " + message.getClass().getName());
        }
    }

    private void packGate(Message.OpenGate m) throws IOException {
        head(30, 6).u(m.gate()).u(m.shuffleId()).u(m.startSubpartition()).u(m.endSubpartition());
        u(m.initialCredit());
        packer.packArrayHeader(m.channels().size());
        for (Message.GateChannel channel : m.channels()) {
            packer.packArrayHeader(5);
            u(channel.channel()).s(channel.taskManagerId()).s(channel.host()).u(channel.port());
            longs(channel.mapAttemptIds());
        }
    }

    private MessageEncoder region(Message.BeginRegion m) throws IOException {
        u(m.partition()).u(m.region()).u(m.firstSubpartition());
        packer.packArrayHeader(m.count());
        for (int i = 0; i < m.count(); i++) {
            unsigned64(m.lengths()[i]);
        }
        return u(m.crc32c());
    }

    private MessageEncoder head(int type, int fields) throws IOException {
        packer.packArrayHeader(fields + 1).packInt(type);
        return this;
    }

    private MessageEncoder u(long value) throws IOException {
        packer.packLong(value);
        return this;
    }

    private MessageEncoder unsigned64(long value) throws IOException {
        if (value >= 0) {
            packer.packLong(value);
        } else {
            packer.packBigInteger(new BigInteger(Long.toUnsignedString(value)));
        }
        return this;
    }

    private MessageEncoder s(String value) throws IOException {
        packer.packString(value);
        return this;
    }

    private MessageEncoder bytes(byte[] value) throws IOException {
        packer.packBinaryHeader(value.length).writePayload(value);
        return this;
    }

    private MessageEncoder nullable(Long value) throws IOException {
        if (value == null) {
            packer.packNil();
        } else {
            packer.packLong(value);
        }
        return this;
    }

    private MessageEncoder attempts(List<Long> ids) throws IOException {
        return longs(ids.stream().mapToLong(Long::longValue).toArray());
    }

    private MessageEncoder longs(long[] values) throws IOException {
        packer.packArrayHeader(values.length);
        for (long value : values) {
            packer.packLong(value);
        }
        return this;
    }
}
