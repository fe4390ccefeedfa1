package io.sluice.client.wire;

import java.io.IOException;
import java.math.BigInteger;
import java.nio.charset.CodingErrorAction;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.msgpack.core.MessageFormat;
import org.msgpack.core.MessagePack;
import org.msgpack.core.MessagePackException;
import org.msgpack.core.MessageUnpacker;
import org.msgpack.core.buffer.ArrayBufferInput;
import org.msgpack.value.ValueType;

/** Reads the control part of a message and checks every field. One per connection. */
public final class MessageDecoder {
    private static final long MAX_U32 = 0xFFFF_FFFFL;
    private static final int MAX_NAME_CHARACTERS = 256;
    private static final int MAX_REPLICAS = 8;
    private static final BigInteger MAX_U64 = BigInteger.ONE.shiftLeft(64).subtract(BigInteger.ONE);

    private final ArrayBufferInput input = new ArrayBufferInput(new byte[0]);
    private final MessageUnpacker unpacker =
            new MessagePack.UnpackerConfig()
                    .withActionOnMalformedString(CodingErrorAction.REPORT)
                    .withActionOnUnmappableString(CodingErrorAction.REPORT)
                    .newUnpacker(input);

    /**
     * Decodes the message in {@code control[0 .. length)}.
     *
     * @throws ClientException.Protocol if the bytes are not a message of the protocol
     */
    public Message decode(byte[] control, int length) throws ClientException.Protocol {
        try {
            input.reset(control, 0, length);
            unpacker.reset(input);
            int fields = unpacker.unpackArrayHeader() - 1;
            int type = unpacker.unpackInt();
            Message message = fields(type, fields);
            if (unpacker.getTotalReadBytes() != length) {
                throw malformed("bytes follow the message of type " + type, null);
            }
            return message;
        } catch (IOException | MessagePackException | ArithmeticException e) {
            if (e instanceof ClientException.Protocol protocol) {
                throw protocol;
            }
            throw malformed("not a message: " + e.getMessage(), e);
        }
    }

    /** Decodes the end-of-partition event in {@code payload[0 .. length)}. */
    Message.EndOfPartition decodeEvent(byte[] payload, int length) throws ClientException.Protocol {
        try {
            input.reset(payload, 0, length);
            unpacker.reset(input);
            int fields = unpacker.unpackArrayHeader();
            int type = unpacker.unpackInt();
            if (type != Message.EVENT_END_OF_PARTITION || fields != 3) {
                throw malformed("unknown event " + type + " with " + fields + " fields", null);
            }
            return new Message.EndOfPartition(u64(), u64());
        } catch (IOException | MessagePackException e) {
            if (e instanceof ClientException.Protocol protocol) {
                throw protocol;
            }
            throw malformed("not an event: " + e.getMessage(), e);
        }
    }

    private Message fields(int type, int n) throws IOException {
        return switch (type) {
            case 4 -> {
                expect(type, n, 4);
                yield new Message.BufferResponse(u32(), u32(), u32(), dataType());
            }
            case 5 -> {
                expect(type, n, 2);
                yield new Message.AddCredit(u32(), positive(MAX_U32));
            }
            case 2 -> {
                boolean hasInstance = n == 8;
                expect(type, n, hasInstance ? 8 : 7);
                yield new Message.HelloAck(
                        u32(),
                        name(),
                        u32(),
                        u32(),
                        u32(),
                        name(),
                        port(),
                        hasInstance ? name() : "");
            }
            case 6 -> {
                expect(type, n, 2);
                yield new Message.BacklogAnnouncement(u32(), u32());
            }
            case 10 -> {
                expect(type, n, 8);
                yield new Message.ErrorResponse(
                        nil() ? null : u32(),
                        u32(),
                        (int) positive(2),
                        unpacker.unpackBoolean(),
                        text(),
                        text(),
                        text(),
                        nil() ? null : unpacker.unpackLong());
            }
            case 11 -> {
                expect(type, n, 0);
                yield new Message.CloseRequest();
            }
            case 12 -> {
                expect(type, n, 1);
                yield new Message.Ping(u64());
            }
            case 13 -> {
                expect(type, n, 1);
                yield new Message.Pong(u64());
            }
            case 17 -> {
                expect(type, n, 4);
                yield new Message.PartitionResumed(u32(), u32(), u64(), unpacker.unpackBoolean());
            }
            case 19 -> {
                expect(type, n, 2);
                yield new Message.RegionSecured(u32(), u32());
            }
            case 21 -> {
                expect(type, n, 1);
                yield new Message.PartitionOpened(u32());
            }
            case 23 -> {
                expect(type, n, 3);
                yield new Message.RegionOpened(u32(), u32(), positive(MAX_U32));
            }
            case 26 -> {
                expect(type, n, 1);
                yield new Message.PartitionFinished(u32());
            }
            case 28 -> {
                expect(type, n, 1);
                yield new Message.PartitionAborted(u32());
            }
            case 31 -> {
                expect(type, n, 1);
                yield new Message.GateOpened(u32());
            }
            case 33 -> {
                expect(type, n, 1);
                yield new Message.GateClosed(u32());
            }
            case 35 -> {
                expect(type, n, 3);
                yield new Message.RegionAreaAttached(name(), text(), u64());
            }
            case 37 -> {
                expect(type, n, 1);
                yield new Message.Challenge(nonce());
            }
            case 38 -> {
                expect(type, n, 1);
                yield new Message.Proof(nonce());
            }
            case 41 -> {
                expect(type, n, 2);
                yield new Message.ShuffleReleased(u32(), u64());
            }
            case 43 -> {
                expect(type, n, 1);
                yield new Message.ApplicationReleased(u64());
            }
            case 44 -> {
                expect(type, n, 2);
                yield new Message.OutputsLost(u32(), someAttempts());
            }
            case 48 -> {
                expect(type, n, 2);
                yield new Message.OutputsHeld(u32(), someAttempts());
            }
            case 49 -> {
                expect(type, n, 6);
                yield new Message.OutputsMoved(
                        u32(), u32(), name(), name(), port(), someAttempts());
            }
            case 53 -> {
                expect(type, n, 1);
                yield new Message.OutputsChecked(u32());
            }
            default -> requests(type, n);
        };
    }

    /**
     * Decodes the messages that no daemon sends to this client, for mock daemons and golden
     * vectors.
     */
    private Message requests(int type, int n) throws IOException {
        return switch (type) {
            case 1 -> {
                expect(type, n, 10);
                yield new Message.Hello(
                        name(), u32(), u32(), u32(), name(), bytes(), u32(), u32(), u32(), name());
            }
            case 3 -> {
                expect(type, n, 7);
                yield new Message.PartitionRequest(
                        u32(), name(), u32(), attempts(), u32(), u32(), u32());
            }
            case 7 -> {
                expect(type, n, 1);
                yield new Message.ResumeConsumption(u32());
            }
            case 8 -> {
                expect(type, n, 1);
                yield new Message.CancelPartitionRequest(u32());
            }
            case 9 -> {
                expect(type, n, 2);
                yield new Message.TaskEvent(u32(), u32());
            }
            case 15 -> {
                expect(type, n, 3);
                yield new Message.PipelinedData(u32(), u32(), dataType());
            }
            case 29 -> {
                expect(type, n, 6);
                yield new Message.OpenPipelinedPartition(
                        u32(),
                        u32(),
                        unpacker.unpackLong(),
                        positive(MAX_U32),
                        choice(2),
                        choice(2));
            }
            case 16 -> {
                expect(type, n, 4);
                yield new Message.ResumePartition(
                        u32(), u32(), unpacker.unpackLong(), positive(MAX_U32));
            }
            case 18 -> {
                expect(type, n, 2);
                yield new Message.SecureRegion(u32(), u32());
            }
            case 20 -> {
                expect(type, n, 4);
                yield new Message.OpenPartition(
                        u32(), u32(), unpacker.unpackLong(), positive(MAX_U32));
            }
            case 22 -> {
                expect(type, n, 5);
                yield region();
            }
            case 34 -> {
                expect(type, n, 2);
                yield new Message.AttachRegionArea(name(), u64());
            }
            case 36 -> {
                expect(type, n, 6);
                yield new Message.SharedRegion(region(), u64());
            }
            case 24 -> {
                expect(type, n, 2);
                yield new Message.RegionData(u32(), u64());
            }
            case 25 -> {
                expect(type, n, 3);
                yield new Message.FinishPartition(u32(), u64(), u32());
            }
            case 27 -> {
                expect(type, n, 1);
                yield new Message.AbortPartition(u32());
            }
            case 30 -> {
                expect(type, n, 6);
                yield new Message.OpenGate(
                        u32(), u32(), u32(), u32(), positive(MAX_U32), channels());
            }
            case 32 -> {
                expect(type, n, 1);
                yield new Message.CloseGate(u32());
            }
            case 40 -> {
                expect(type, n, 1);
                yield new Message.ReleaseShuffle(u32());
            }
            case 42 -> {
                expect(type, n, 0);
                yield new Message.ReleaseApplication();
            }
            case 45 -> {
                expect(type, n, 3);
                yield new Message.ReplicatePartition(
                        u32(), positive(MAX_REPLICAS), unpacker.unpackBoolean());
            }
            case 46 -> {
                expect(type, n, 4);
                yield new Message.CopyOf(
                        u32(), name(), positive(MAX_REPLICAS), unpacker.unpackBoolean());
            }
            case 47 -> {
                expect(type, n, 3);
                yield new Message.KnownTaskManager(name(), name(), port());
            }
            case 50 -> {
                expect(type, n, 1);
                yield new Message.MoveNoted(u32());
            }
            case 51 -> {
                expect(type, n, 2);
                yield new Message.ReleaseAttempts(u32(), unpacker.unpackLong());
            }
            case 52 -> {
                expect(type, n, 3);
                yield new Message.CheckOutputs(u32(), u32(), someAttempts());
            }
            case 39 -> {
                expect(type, n, 5);
                yield new Message.ChecksummedBuffer(u32(), u32(), u32(), dataType(), u32());
            }
            default -> throw malformed("unknown message type " + type, null);
        };
    }

    private Message.BeginRegion region() throws IOException {
        long partition = u32();
        long region = u32();
        long first = u32();
        long[] lengths = lengths();
        return new Message.BeginRegion(partition, region, first, lengths, lengths.length, u32());
    }

    private List<Message.GateChannel> channels() throws IOException {
        int count = unpacker.unpackArrayHeader();
        List<Message.GateChannel> channels = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            expect(30, unpacker.unpackArrayHeader(), 5);
            channels.add(new Message.GateChannel(u32(), name(), name(), port(), attempts()));
        }
        return channels;
    }

    private static void expect(int type, int got, int wanted) throws ClientException.Protocol {
        if (got != wanted) {
            throw malformed(
                    "message of type " + type + " has " + got + " fields, not " + wanted, null);
        }
    }

    private long u32() throws IOException {
        long value = unpacker.unpackLong();
        if (value < 0 || value > MAX_U32) {
            throw malformed("not an unsigned 32-bit number: " + value, null);
        }
        return value;
    }

    private long positive(long limit) throws IOException {
        long value = unpacker.unpackLong();
        if (value < 1 || value > limit) {
            throw malformed("not between 1 and " + limit + ": " + value, null);
        }
        return value;
    }

    private long choice(long limit) throws IOException {
        long value = unpacker.unpackLong();
        if (value < 0 || value > limit) {
            throw malformed("not between 0 and " + limit + ": " + value, null);
        }
        return value;
    }

    private int port() throws IOException {
        int value = unpacker.unpackInt();
        if (value < 0 || value > 65535) {
            throw malformed("not a port: " + value, null);
        }
        return value;
    }

    private long u64() throws IOException {
        if (unpacker.getNextFormat() != MessageFormat.UINT64) {
            long value = unpacker.unpackLong();
            if (value < 0) {
                throw malformed("negative number: " + value, null);
            }
            return value;
        }
        BigInteger value = unpacker.unpackBigInteger();
        if (value.compareTo(MAX_U64) > 0) {
            throw malformed("above 64 bits: " + value, null);
        }
        return value.longValue();
    }

    private int dataType() throws IOException {
        int value = unpacker.unpackInt();
        if (value < Message.DATA || value > Message.BLOCKING_EVENT) {
            throw malformed("unknown data type " + value, null);
        }
        return value;
    }

    private boolean nil() throws IOException {
        if (unpacker.getNextFormat().getValueType() != ValueType.NIL) {
            return false;
        }
        unpacker.unpackNil();
        return true;
    }

    private String text() throws IOException {
        // msgpack-core accepts binary for text and text for binary; the protocol does not.
        expectType(ValueType.STRING);
        return unpacker.unpackString();
    }

    private String name() throws IOException {
        String name = text();
        if (name.length() > MAX_NAME_CHARACTERS
                && name.codePointCount(0, name.length()) > MAX_NAME_CHARACTERS) {
            throw malformed("a name of more than " + MAX_NAME_CHARACTERS + " characters", null);
        }
        return name;
    }

    private byte[] bytes() throws IOException {
        expectType(ValueType.BINARY);
        return unpacker.readPayload(unpacker.unpackBinaryHeader());
    }

    private byte[] nonce() throws IOException {
        byte[] value = bytes();
        if (value.length != Frames.NONCE_BYTES) {
            throw malformed(value.length + " bytes, not " + Frames.NONCE_BYTES, null);
        }
        return value;
    }

    private void expectType(ValueType wanted) throws IOException {
        ValueType got = unpacker.getNextFormat().getValueType();
        if (got != wanted) {
            throw malformed("expected " + wanted + ", got " + got, null);
        }
    }

    private int arrayLength() throws IOException {
        int count = unpacker.unpackArrayHeader();
        if (count > Frames.MAX_CONTROL_BYTES) {
            throw malformed(
                    "an array of " + count + " numbers (limit " + Frames.MAX_CONTROL_BYTES + ")",
                    null);
        }
        return count;
    }

    private long[] attempts() throws IOException {
        long[] values = new long[arrayLength()];
        for (int i = 0; i < values.length; i++) {
            values[i] = unpacker.unpackLong();
        }
        if (values.length == 0) {
            throw malformed("no map attempt ids", null);
        }
        return values;
    }

    private List<Long> someAttempts() throws IOException {
        long[] values = attempts();
        if (values.length > Frames.MAX_LOST_ATTEMPTS) {
            throw malformed(values.length + " lost map attempts in a message", null);
        }
        return Arrays.stream(values).boxed().toList();
    }

    private long[] lengths() throws IOException {
        long[] values = new long[arrayLength()];
        for (int i = 0; i < values.length; i++) {
            values[i] = u64();
        }
        return values;
    }

    private static ClientException.Protocol malformed(String what, Throwable cause) {
        return new ClientException.Protocol(ErrorCode.MALFORMED_MESSAGE, what, cause);
    }
}
