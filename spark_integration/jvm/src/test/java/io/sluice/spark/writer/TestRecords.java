package io.sluice.spark.writer;

import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import org.apache.spark.serializer.DeserializationStream;
import org.apache.spark.serializer.SerializationStream;
import org.apache.spark.serializer.Serializer;
import org.apache.spark.serializer.SerializerInstance;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import scala.reflect.ClassTag;

/** Records that are arrays of bytes, and the serializer and metrics that a writer needs. */
final class TestRecords {
    private TestRecords() {}

    /** Makes the bytes of a record while it is written, so it is never in memory as a whole. */
    @FunctionalInterface
    interface Source {
        void writeTo(OutputStream out) throws Exception;
    }

    /** Writes the bytes of a value and no key; wraps every failure, as Kryo does. */
    static final class Bytes extends Serializer {
        @Override
        public SerializerInstance newInstance() {
            return new Instance();
        }
    }

    private static final class Instance extends SerializerInstance {
        @Override
        public SerializationStream serializeStream(OutputStream out) {
            return new Stream(out);
        }

        @Override
        public <T> ByteBuffer serialize(T value, ClassTag<T> tag) {
            throw new UnsupportedOperationException();
        }

        @Override
        public <T> T deserialize(ByteBuffer bytes, ClassTag<T> tag) {
            throw new UnsupportedOperationException();
        }

        @Override
        public <T> T deserialize(ByteBuffer bytes, ClassLoader loader, ClassTag<T> tag) {
            throw new UnsupportedOperationException();
        }

        @Override
        public DeserializationStream deserializeStream(InputStream in) {
            throw new UnsupportedOperationException();
        }
    }

    private static final class Stream extends SerializationStream {
        private final OutputStream out;

        Stream(OutputStream out) {
            this.out = out;
        }

        @Override
        public <T> SerializationStream writeObject(T value, ClassTag<T> tag) {
            try {
                if (value instanceof byte[] bytes) {
                    out.write(bytes);
                } else if (value instanceof Source source) {
                    source.writeTo(out);
                }
            } catch (Exception e) {
                throw new IllegalArgumentException("a record cannot be serialized", e);
            }
            return this;
        }

        @Override
        public void flush() {
            try {
                out.flush();
            } catch (java.io.IOException e) {
                throw new UncheckedIOException(e);
            }
        }

        @Override
        public void close() {
            flush();
        }
    }

    /** Counts the records reported. */
    static final class Metrics implements ShuffleWriteMetricsReporter {
        long records;
        long nanos;

        @Override
        public void incBytesWritten(long bytes) {}

        @Override
        public void incRecordsWritten(long count) {
            records += count;
        }

        @Override
        public void incWriteTime(long time) {
            nanos += time;
        }

        @Override
        public void decBytesWritten(long bytes) {}

        @Override
        public void decRecordsWritten(long count) {
            records -= count;
        }
    }
}
