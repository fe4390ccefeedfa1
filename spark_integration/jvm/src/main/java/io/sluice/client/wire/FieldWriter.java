package io.sluice.client.wire;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.math.BigInteger;
import java.util.List;
import org.msgpack.core.MessageBufferPacker;
import org.msgpack.core.MessagePack;

/** Writes the fields of messages; {@link MessageEncoder} knows which ones a message has. */
abstract class FieldWriter {
    private final MessageBufferPacker packer = MessagePack.newDefaultBufferPacker();

    /** Writes an element of an array of records. */
    @FunctionalInterface
    interface Element<T> {
        void write(T element) throws IOException;
    }

    /** Encodes the control part of {@code message}. */
    public final byte[] encode(Message message) {
        try {
            packer.clear();
            write(message);
            return packer.toByteArray();
        } catch (IOException e) {
            throw new UncheckedIOException("packing into memory failed", e);
        }
    }

    /** Writes the type id and the fields of a message. */
    abstract void write(Message message) throws IOException;

    final void head(int typeId, int fields) throws IOException {
        packer.packArrayHeader(fields + 1).packInt(typeId);
    }

    final void array(int length) throws IOException {
        packer.packArrayHeader(length);
    }

    final void i64(long value) throws IOException {
        packer.packLong(value);
    }

    final void u64(long value) throws IOException {
        if (value >= 0) {
            packer.packLong(value);
        } else {
            packer.packBigInteger(new BigInteger(Long.toUnsignedString(value)));
        }
    }

    final void nullable(Long value) throws IOException {
        if (value == null) {
            packer.packNil();
        } else {
            packer.packLong(value);
        }
    }

    final void bool(boolean value) throws IOException {
        packer.packBoolean(value);
    }

    final void text(String value) throws IOException {
        packer.packString(value);
    }

    final void bytes(byte[] value) throws IOException {
        packer.packBinaryHeader(value.length).writePayload(value);
    }

    final void i64s(long[] values) throws IOException {
        array(values.length);
        for (long value : values) {
            i64(value);
        }
    }

    final void i64s(List<Long> values) throws IOException {
        array(values.size());
        for (long value : values) {
            i64(value);
        }
    }

    final void u64s(long[] values) throws IOException {
        array(values.length);
        for (long value : values) {
            u64(value);
        }
    }

    final <T> void list(List<T> values, Element<T> element) throws IOException {
        array(values.size());
        for (T value : values) {
            element.write(value);
        }
    }
}
