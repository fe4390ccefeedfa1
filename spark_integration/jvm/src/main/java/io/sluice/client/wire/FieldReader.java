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

/**
 * Reads and checks the fields of messages; {@link MessageDecoder} knows which ones a message has.
 */
abstract class FieldReader {
    static final long MAX_U32 = 0xFFFF_FFFFL;

    private final ArrayBufferInput input = new ArrayBufferInput(new byte[0]);
    private final MessageUnpacker unpacker =
            new MessagePack.UnpackerConfig()
                    .withActionOnMalformedString(CodingErrorAction.REPORT)
                    .withActionOnUnmappableString(CodingErrorAction.REPORT)
                    .newUnpacker(input);

    /** The message that is being read, for errors. */
    private String message;

    private int length;

    /** Reads an element of an array of records, which is an array of {@code count} fields. */
    @FunctionalInterface
    interface Element<T> {
        T read(int count) throws IOException;
    }

    /**
     * Decodes the message in {@code control[0 .. length)}.
     *
     * @throws ClientException.Protocol if the bytes are not a message of the protocol
     */
    public final Message decode(byte[] control, int length) throws ClientException.Protocol {
        try {
            open(control, length);
            int count = unpacker.unpackArrayHeader() - 1;
            Message read = read(unpacker.unpackInt(), count);
            if (unpacker.getTotalReadBytes() != length) {
                throw malformed("bytes follow " + message, null);
            }
            return read;
        } catch (IOException | MessagePackException | ArithmeticException e) {
            if (e instanceof ClientException.Protocol protocol) {
                throw protocol;
            }
            throw malformed(message + " cannot be decoded: " + e.getMessage(), e);
        }
    }

    /** Decodes the end-of-partition event in {@code payload[0 .. length)}. */
    final Message.EndOfPartition decodeEvent(byte[] payload, int length)
            throws ClientException.Protocol {
        try {
            open(payload, length);
            int count = unpacker.unpackArrayHeader() - 1;
            int typeId = unpacker.unpackInt();
            if (typeId != Message.EVENT_END_OF_PARTITION) {
                throw malformed("unknown event " + typeId + " with " + count + " fields", null);
            }
            begin("EndOfPartition", count, 2);
            return new Message.EndOfPartition(u64("total_bytes"), u64("total_buffers"));
        } catch (IOException | MessagePackException e) {
            if (e instanceof ClientException.Protocol protocol) {
                throw protocol;
            }
            throw malformed("not an event: " + e.getMessage(), e);
        }
    }

    /** Reads the fields of a message. */
    abstract Message read(int typeId, int count) throws IOException;

    private void open(byte[] bytes, int length) throws IOException {
        message = "the message";
        this.length = length;
        input.reset(bytes, 0, length);
        unpacker.reset(input);
    }

    final void begin(String name, int count, int expected) throws ClientException.Protocol {
        message = name;
        if (count != expected) {
            throw malformed(name + " has " + count + " fields (limit " + expected + ")", null);
        }
    }

    final long number(String field, long least, long most) throws IOException {
        long value = unpacker.unpackLong();
        if (value < least || value > most) {
            throw wrong(field, "is " + value + " (limit " + least + " to " + most + ")");
        }
        return value;
    }

    final long u32(String field) throws IOException {
        return number(field, 0, MAX_U32);
    }

    final long i64(String field) throws IOException {
        return unpacker.unpackLong();
    }

    final long u64(String field) throws IOException {
        if (unpacker.getNextFormat() != MessageFormat.UINT64) {
            return number(field, 0, Long.MAX_VALUE);
        }
        BigInteger value = unpacker.unpackBigInteger();
        return value.longValue();
    }

    final boolean bool(String field) throws IOException {
        return unpacker.unpackBoolean();
    }

    /** Returns whether a field is nil, and skips it if it is. */
    final boolean nil() throws IOException {
        if (unpacker.getNextFormat().getValueType() != ValueType.NIL) {
            return false;
        }
        unpacker.unpackNil();
        return true;
    }

    final String text(String field, int mostCharacters) throws IOException {
        // msgpack-core accepts binary for text and text for binary; the protocol does not.
        expect(field, ValueType.STRING);
        String text = unpacker.unpackString();
        if (text.length() > mostCharacters
                && text.codePointCount(0, text.length()) > mostCharacters) {
            throw wrong(field, "has more characters than " + mostCharacters);
        }
        return text;
    }

    final byte[] bytes(String field) throws IOException {
        expect(field, ValueType.BINARY);
        return unpacker.readPayload(unpacker.unpackBinaryHeader());
    }

    final byte[] bytes(String field, int size) throws IOException {
        byte[] value = bytes(field);
        if (value.length != size) {
            throw wrong(field, "has " + value.length + " bytes (limit " + size + ")");
        }
        return value;
    }

    final long[] i64s(String field, int least) throws IOException {
        long[] values = new long[count(field, least, Integer.MAX_VALUE)];
        for (int i = 0; i < values.length; i++) {
            values[i] = unpacker.unpackLong();
        }
        return values;
    }

    final List<Long> i64List(String field, int least, int most) throws IOException {
        Long[] values = new Long[count(field, least, most)];
        for (int i = 0; i < values.length; i++) {
            values[i] = unpacker.unpackLong();
        }
        return Arrays.asList(values);
    }

    final long[] u64s(String field) throws IOException {
        long[] values = new long[count(field, 0, Integer.MAX_VALUE)];
        for (int i = 0; i < values.length; i++) {
            values[i] = u64(field);
        }
        return values;
    }

    final <T> List<T> list(String field, int most, Element<T> element) throws IOException {
        int count = count(field, 0, most);
        List<T> values = new ArrayList<>();
        String outer = message;
        for (int i = 0; i < count; i++) {
            values.add(element.read(unpacker.unpackArrayHeader()));
        }
        message = outer;
        return values;
    }

    /** Reads the length of an array, whose elements have at least a byte each. */
    private int count(String field, int least, int most) throws IOException {
        int count = unpacker.unpackArrayHeader();
        if (count < least || count > most) {
            throw wrong(field, "has " + count + " elements (limit " + least + " to " + most + ")");
        }
        if (count > length - unpacker.getTotalReadBytes()) {
            throw wrong(field, "claims " + count + " elements in " + length + " bytes");
        }
        return count;
    }

    private void expect(String field, ValueType wanted) throws IOException {
        ValueType got = unpacker.getNextFormat().getValueType();
        if (got != wanted) {
            throw wrong(field, "is " + got + " (limit " + wanted + ")");
        }
    }

    private ClientException.Protocol wrong(String field, String what) {
        return malformed(message + "." + field + " " + what, null);
    }

    static ClientException.Protocol malformed(String what, Throwable cause) {
        return new ClientException.Protocol(ErrorCode.MALFORMED_MESSAGE, what, cause);
    }
}
