package io.sluice.spark.writer;

import com.github.luben.zstd.EndDirective;
import com.github.luben.zstd.ZstdCompressCtx;
import io.sluice.client.output.MapOutputWriter;
import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.spark.SparkConf;

/** Encodes each stream as a zstd frame, with one context, which costs more than a small stream. */
final class ZstdEncoder extends StreamEncoder {
    private static final int BUFFER_BYTES = 64 * 1024;

    private final ZstdCompressCtx context = new ZstdCompressCtx();
    private final ByteBuffer raw = ByteBuffer.allocateDirect(BUFFER_BYTES);
    private final ByteBuffer compressed = ByteBuffer.allocateDirect(BUFFER_BYTES);

    ZstdEncoder(MapOutputWriter output, int level) {
        super(output);
        context.setLevel(level);
    }

    /** Returns whether the settings need none of the features of Spark's own stream. */
    static boolean supports(SparkConf conf) {
        return conf.getInt("spark.io.compression.zstd.workers", 0) == 0
                && !conf.contains("spark.io.compression.zstd.strategy");
    }

    static int level(SparkConf conf) {
        return conf.getInt("spark.io.compression.zstd.level", 1);
    }

    @Override
    public void write(byte[] bytes, int offset, int length) throws IOException {
        int done = 0;
        while (done < length) {
            int n = Math.min(length - done, raw.remaining());
            raw.put(bytes, offset + done, n);
            done += n;
            if (!raw.hasRemaining()) {
                compress(EndDirective.CONTINUE);
            }
        }
    }

    @Override
    public void end() throws IOException {
        compress(EndDirective.END);
        output.endPartition();
    }

    private void compress(EndDirective directive) throws IOException {
        raw.flip();
        boolean done;
        do {
            compressed.clear();
            boolean flushed = context.compressDirectByteBufferStream(compressed, raw, directive);
            output.write(compressed.flip());
            done = directive == EndDirective.END ? flushed : !raw.hasRemaining();
        } while (!done);
        raw.clear();
    }

    @Override
    public void close() {
        context.close();
    }
}
