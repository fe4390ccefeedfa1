package io.sluice.spark.writer;

import io.sluice.client.output.MapOutputWriter;
import java.io.IOException;
import java.io.OutputStream;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.io.CompressionCodec;
import org.apache.spark.io.CompressionCodec$;
import org.apache.spark.io.LZ4CompressionCodec;
import org.apache.spark.io.ZStdCompressionCodec;
import org.apache.spark.serializer.SerializerManager;
import org.apache.spark.storage.ShuffleBlockId;

/**
 * Compresses and encrypts the bytes of a partition by Spark's settings. Each stream can be decoded
 * separately, and joined with others where Spark would join them.
 */
abstract class StreamEncoder implements PartitionPages.Sink, AutoCloseable {
    protected final MapOutputWriter output;

    protected StreamEncoder(MapOutputWriter output) {
        this.output = output;
    }

    /** Chooses the encoder by Spark's settings. */
    static StreamEncoder of(MapOutputWriter output, int shuffleId, long mapId) {
        SparkConf conf = SparkEnv.get().conf();
        SerializerManager manager = SparkEnv.get().serializerManager();
        if (!manager.encryptionEnabled()) {
            if (!conf.getBoolean("spark.shuffle.compress", true)) {
                return new Plain(output);
            }
            CompressionCodec codec = CompressionCodec$.MODULE$.createCodec(conf);
            if (codec.getClass() == LZ4CompressionCodec.class) {
                return new Lz4Encoder(output, Lz4Encoder.blockBytes(conf));
            }
            if (codec.getClass() == ZStdCompressionCodec.class && ZstdEncoder.supports(conf)) {
                return new ZstdEncoder(output, ZstdEncoder.level(conf));
            }
        }
        return new Wrapped(output, manager, shuffleId, mapId);
    }

    @Override
    public void begin(int partition) throws IOException {
        output.beginPartition(partition);
    }

    /** Frees a codec's memory. */
    @Override
    public void close() {}

    /** Neither compressed nor encrypted. */
    private static final class Plain extends StreamEncoder {
        Plain(MapOutputWriter output) {
            super(output);
        }

        @Override
        public void write(byte[] bytes, int offset, int length) throws IOException {
            output.write(bytes, offset, length);
        }

        @Override
        public void end() {
            output.endPartition();
        }
    }

    /** Uses Spark's own streams, a new one for each partition. */
    private static final class Wrapped extends StreamEncoder {
        private final SerializerManager manager;
        private final int shuffleId;
        private final long mapId;
        private OutputStream stream;

        Wrapped(MapOutputWriter output, SerializerManager manager, int shuffleId, long mapId) {
            super(output);
            this.manager = manager;
            this.shuffleId = shuffleId;
            this.mapId = mapId;
        }

        @Override
        public void begin(int partition) throws IOException {
            super.begin(partition);
            stream =
                    manager.wrapStream(new ShuffleBlockId(shuffleId, mapId, partition), new Sink());
        }

        @Override
        public void write(byte[] bytes, int offset, int length) throws IOException {
            stream.write(bytes, offset, length);
        }

        @Override
        public void end() throws IOException {
            stream.close();
            stream = null;
            output.endPartition();
        }

        @Override
        public void close() {
            if (stream != null) {
                // After a failure: frees native memory of a codec.
                try {
                    stream.close();
                } catch (IOException e) {
                    stream = null;
                }
            }
        }

        private final class Sink extends OutputStream {
            @Override
            public void write(int value) throws IOException {
                output.write(value);
            }

            @Override
            public void write(byte[] bytes, int offset, int length) throws IOException {
                output.write(bytes, offset, length);
            }
        }
    }
}
