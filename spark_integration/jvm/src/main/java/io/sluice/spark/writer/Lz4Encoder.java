package io.sluice.spark.writer;

import io.sluice.client.output.MapOutputWriter;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import net.jpountz.lz4.LZ4Compressor;
import net.jpountz.lz4.LZ4Factory;
import net.jpountz.xxhash.XXHash32;
import net.jpountz.xxhash.XXHashFactory;
import org.apache.spark.SparkConf;

/**
 * Writes the format of Spark's lz4 codec (blocks of lz4-java) into the region in place, with the
 * same buffers for all partitions. It does not end streams with an empty block, because Spark's
 * reader joins streams.
 */
final class Lz4Encoder extends StreamEncoder {
    private static final byte[] MAGIC = "LZ4Block".getBytes(StandardCharsets.US_ASCII);

    /** Magic, token, compressed length, length, checksum; little endian. */
    private static final int HEADER_BYTES = MAGIC.length + 1 + 4 + 4 + 4;

    private static final int METHOD_RAW = 0x10;
    private static final int METHOD_LZ4 = 0x20;
    private static final int LEVEL_BASE = 10;
    private static final int SEED = 0x9747b28c;
    private static final int CHECKSUM_MASK = 0xFFFFFFF;

    private final LZ4Compressor compressor = LZ4Factory.fastestInstance().fastCompressor();
    private final XXHash32 hash = XXHashFactory.fastestInstance().hash32();
    private final byte[] raw;
    private final ByteBuffer rawBuffer;
    private final int level;
    private ByteBuffer compressed;
    private int filled;

    /**
     * @param blockBytes number of bytes compressed together, 64 to 32 MiB
     */
    Lz4Encoder(MapOutputWriter output, int blockBytes) {
        super(output);
        this.raw = new byte[blockBytes];
        this.rawBuffer = ByteBuffer.wrap(raw);
        this.level = Math.max(0, 32 - Integer.numberOfLeadingZeros(blockBytes - 1) - LEVEL_BASE);
    }

    static int blockBytes(SparkConf conf) {
        return (int) conf.getSizeAsBytes("spark.io.compression.lz4.blockSize", "32k");
    }

    @Override
    public void write(byte[] bytes, int offset, int length) throws IOException {
        int done = 0;
        while (done < length) {
            int n = Math.min(length - done, raw.length - filled);
            System.arraycopy(bytes, offset + done, raw, filled, n);
            filled += n;
            done += n;
            if (filled == raw.length) {
                writeBlock();
            }
        }
    }

    @Override
    public void end() throws IOException {
        if (filled > 0) {
            writeBlock();
        }
        output.endPartition();
    }

    private void writeBlock() throws IOException {
        int most = compressor.maxCompressedLength(filled);
        int position = output.reserve(HEADER_BYTES + most);
        if (position >= 0) {
            output.advance(putBlock(output.region(), position, most));
        } else {
            // Larger than a block of the region: goes through a buffer and is split.
            if (compressed == null) {
                compressed =
                        ByteBuffer.allocate(
                                HEADER_BYTES + compressor.maxCompressedLength(raw.length));
            }
            output.write(compressed.array(), 0, putBlock(compressed, 0, most));
        }
        filled = 0;
    }

    private int putBlock(ByteBuffer into, int at, int most) {
        int length = compressor.compress(rawBuffer, 0, filled, into, at + HEADER_BYTES, most);
        int method = METHOD_LZ4;
        if (length >= filled) {
            method = METHOD_RAW;
            length = filled;
            into.put(at + HEADER_BYTES, raw, 0, filled);
        }
        into.put(at, MAGIC);
        int field = at + MAGIC.length;
        into.put(field, (byte) (method | level));
        // Buffers are big endian, as block headers are.
        into.putInt(field + 1, Integer.reverseBytes(length));
        into.putInt(field + 5, Integer.reverseBytes(filled));
        into.putInt(
                field + 9, Integer.reverseBytes(hash.hash(raw, 0, filled, SEED) & CHECKSUM_MASK));
        return HEADER_BYTES + length;
    }
}
