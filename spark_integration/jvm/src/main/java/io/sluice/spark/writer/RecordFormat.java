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
 * Makes bytes of one record after the other; the bytes are at a place in memory until the next one.
 * Not thread safe.
 */
abstract class RecordFormat {
    Object base;
    long offset;
    int length;

    /** Serializes a record; its bytes are {@code length} from {@code offset} of {@code base}. */
    abstract void serialize(Object key, Object value);

    /** Whether the reader expects the length, an int in big endian, before the bytes. */
    abstract boolean isSized();

    /** The record's bytes as the reader gets them. */
    final long storedBytes() {
        return isSized() ? (long) length + Integer.BYTES : length;
    }

    /** All records have been serialized. */
    abstract void finish();

    static RecordFormat of(Serializer serializer) {
        // The metric "data size" of the exchange, on which adaptive execution decides.
        Field dataSize = UnsafeRowFormat.field(serializer, "dataSize", AccumulatorV2.class);
        return dataSize != null ? new Rows(serializer, dataSize) : new Stream(serializer);
    }

    /** Rows of Spark SQL, see {@link UnsafeRowFormat}. */
    private static final class Rows extends RecordFormat {
        /** Null if there is none. */
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

    /**
     * Whatever a relocatable serializer makes: flushed after each record, its bytes can be moved.
     */
    private static final class Stream extends RecordFormat {
        private static final int BUFFER_BYTES = 64 * 1024;
        private static final int KEPT_BYTES = 1024 * 1024;

        private Buffer buffer = new Buffer();
        private final SerializationStream stream;
        private final ClassTag<Object> any = scala.reflect.ClassTag$.MODULE$.Any();

        Stream(Serializer serializer) {
            // Through an indirection, because a huge buffer is replaced.
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

        /** Its array can be read without a copy. */
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
