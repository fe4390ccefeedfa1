package io.sluice.spark.writer;

import io.sluice.spark.common.UnsafeRowFormat;
import java.io.IOException;
import java.io.OutputStream;
import java.lang.reflect.Field;
import java.util.Arrays;
import org.apache.spark.serializer.SerializationStream;
import org.apache.spark.serializer.Serializer;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.util.AccumulatorV2;
import scala.reflect.ClassTag;

/** Serializes one record at a time, in memory unless it is too large. Not thread safe. */
abstract class RecordFormat {
    /** Maximum size of a record that is gathered. */
    static final int MAX_GATHERED_BYTES = 512 * 1024;

    /** Receives the bytes of a record that is too large. */
    interface Overflow {
        void write(byte[] bytes, int offset, int length) throws IOException;
    }

    Object base;
    long offset;
    int length;

    /**
     * Serializes a record to {@code length} bytes at {@code offset} of {@code base}, or to the
     * {@link Overflow}. The bytes of a row stay in the row, whatever its size.
     */
    abstract void serialize(Object key, Object value);

    /** Returns whether the length, an int in big endian, precedes the bytes. */
    abstract boolean isSized();

    /** Returns the size of the record as the reader gets it. */
    abstract long storedBytes();

    /** Called when all records have been serialized. */
    abstract void finish();

    static RecordFormat of(Serializer serializer, Overflow overflow) {
        // The metric "data size" of the exchange, which adaptive execution uses.
        Field dataSize = UnsafeRowFormat.field(serializer, "dataSize", AccumulatorV2.class);
        return dataSize != null ? new Rows(serializer, dataSize) : new Stream(serializer, overflow);
    }

    /** Rows of Spark SQL, see {@link UnsafeRowFormat}. */
    private static final class Rows extends RecordFormat {
        /** Null if the exchange has no such metric. */
        private final AccumulatorV2<Object, ?> dataSize;

        private long bytes;

        @SuppressWarnings("unchecked")
        Rows(Serializer serializer, Field dataSizeField) {
            try {
                this.dataSize = (AccumulatorV2<Object, ?>) dataSizeField.get(serializer);
            } catch (IllegalAccessException e) {
                throw new IllegalStateException(
                        "the metric of " + serializer + " cannot be read", e);
            }
        }

        @Override
        void serialize(Object key, Object value) {
            UnsafeRow row = (UnsafeRow) value;
            base = row.getBaseObject();
            offset = row.getBaseOffset();
            length = row.getSizeInBytes();
            bytes += length;
        }

        @Override
        boolean isSized() {
            return true;
        }

        @Override
        long storedBytes() {
            return (long) length + Integer.BYTES;
        }

        @Override
        void finish() {
            if (dataSize != null) {
                dataSize.add(bytes);
            }
        }
    }

    /** Any relocatable serializer, flushed after each record. */
    private static final class Stream extends RecordFormat {
        private final Buffer buffer;
        private final SerializationStream stream;
        private final ClassTag<Object> any = scala.reflect.ClassTag$.MODULE$.Any();

        Stream(Serializer serializer, Overflow overflow) {
            this.buffer = new Buffer(overflow);
            this.stream = serializer.newInstance().serializeStream(buffer);
            offset = Platform.BYTE_ARRAY_OFFSET;
        }

        @Override
        void serialize(Object key, Object value) {
            buffer.begin();
            stream.writeKey(key, any);
            stream.writeValue(value, any);
            stream.flush();
            base = buffer.bytes;
            length = buffer.size;
        }

        @Override
        boolean isSized() {
            return false;
        }

        @Override
        long storedBytes() {
            return buffer.size + buffer.overflown;
        }

        @Override
        void finish() {
            // Bytes that a stream writes at its end belong to no record.
            buffer.begin();
            stream.close();
        }
    }

    /** Keeps the bytes of a record up to the limit; a larger record goes to the overflow. */
    private static final class Buffer extends OutputStream {
        private static final int FIRST_BYTES = 64 * 1024;

        private final Overflow overflow;
        private byte[] bytes = new byte[FIRST_BYTES];
        private int size;

        /** Number of bytes of the record that went to the overflow. */
        private long overflown;

        Buffer(Overflow overflow) {
            this.overflow = overflow;
        }

        void begin() {
            size = 0;
            overflown = 0;
        }

        @Override
        public void write(int value) throws IOException {
            if (size == bytes.length || overflown > 0) {
                write(new byte[] {(byte) value}, 0, 1);
            } else {
                bytes[size++] = (byte) value;
            }
        }

        @Override
        public void write(byte[] from, int start, int count) throws IOException {
            if (overflown == 0 && count <= MAX_GATHERED_BYTES - size) {
                if (count > bytes.length - size) {
                    int wanted = Math.max(2 * bytes.length, size + count);
                    bytes = Arrays.copyOf(bytes, Math.min(wanted, MAX_GATHERED_BYTES));
                }
                System.arraycopy(from, start, bytes, size, count);
                size += count;
                return;
            }
            if (size > 0) {
                overflow.write(bytes, 0, size);
                overflown += size;
                size = 0;
            }
            overflow.write(from, start, count);
            overflown += count;
        }
    }
}
