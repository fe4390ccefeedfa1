package io.sluice.spark.writer;

import io.sluice.spark.UnsafeRowFormat;
import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.lang.reflect.Field;
import org.apache.spark.serializer.SerializationStream;
import org.apache.spark.serializer.Serializer;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.util.AccumulatorV2;
import scala.reflect.ClassTag;

/**
 * Serializes one record at a time; the bytes stay in memory until the next one. Not thread safe.
 */
abstract class RecordFormat {
    Object base;
    long offset;
    int length;

    /**
     * Serializes a record. Its bytes are {@code length} bytes from {@code offset} of {@code base}
     * on.
     */
    abstract void serialize(Object key, Object value);

    /** Returns whether the reader expects the length, an int in big endian, before the bytes. */
    abstract boolean isSized();

    /** Returns the size of the record as the reader gets it. */
    final long storedBytes() {
        return isSized() ? (long) length + Integer.BYTES : length;
    }

    /** Called when all records have been serialized. */
    abstract void finish();

    static RecordFormat of(Serializer serializer) {
        // The metric "data size" of the exchange, which adaptive execution uses.
        Field dataSize = UnsafeRowFormat.field(serializer, "dataSize", AccumulatorV2.class);
        return dataSize != null ? new Rows(serializer, dataSize) : new Stream(serializer);
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
        void finish() {
            if (dataSize != null) {
                dataSize.add(bytes);
            }
        }
    }

    /** Any relocatable serializer: flushed after each record, so that its bytes can be moved. */
    private static final class Stream extends RecordFormat {
        private static final int BUFFER_BYTES = 64 * 1024;
        private static final int KEPT_BYTES = 1024 * 1024;

        private Buffer buffer = new Buffer();
        private final SerializationStream stream;
        private final ClassTag<Object> any = scala.reflect.ClassTag$.MODULE$.Any();

        Stream(Serializer serializer) {
            // Through an indirection, because a huge buffer is replaced later.
            this.stream = serializer.newInstance().serializeStream(new Forward());
            offset = Platform.BYTE_ARRAY_OFFSET;
        }

        @Override
        void serialize(Object key, Object value) {
            if (buffer.capacity() > KEPT_BYTES) {
                buffer = new Buffer();
            }
            buffer.reset();
            stream.writeKey(key, any);
            stream.writeValue(value, any);
            stream.flush();
            base = buffer.bytes();
            length = buffer.size();
        }

        @Override
        boolean isSized() {
            return false;
        }

        @Override
        void finish() {
            stream.close();
        }

        private final class Forward extends OutputStream {
            @Override
            public void write(int value) {
                buffer.write(value);
            }

            @Override
            public void write(byte[] bytes, int from, int count) {
                buffer.write(bytes, from, count);
            }
        }

        /** Gives access to its array without a copy. */
        private static final class Buffer extends ByteArrayOutputStream {
            Buffer() {
                super(BUFFER_BYTES);
            }

            byte[] bytes() {
                return buf;
            }

            int capacity() {
                return buf.length;
            }
        }
    }
}
