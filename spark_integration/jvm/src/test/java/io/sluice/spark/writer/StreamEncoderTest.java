package io.sluice.spark.writer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.github.luben.zstd.ZstdInputStream;
import io.sluice.client.output.MapOutputWriter;
import io.sluice.client.support.WrittenOutput;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.stream.Stream;
import net.jpountz.lz4.LZ4BlockInputStream;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Checks that the streams Spark reads with decode the output of our encoders, also when several are
 * joined.
 */
@Timeout(60)
class StreamEncoderTest {
    private interface Decoder {
        InputStream open(InputStream in) throws IOException;
    }

    private static Arguments codec(
            String name,
            int regionBytes,
            int blockBytes,
            Function<MapOutputWriter, StreamEncoder> encoder,
            Decoder decoder) {
        return Arguments.of(name, regionBytes, blockBytes, encoder, decoder);
    }

    static Stream<Arguments> codecs() {
        Decoder lz4 = in -> new LZ4BlockInputStream(in, false);
        return Stream.of(
                codec(
                        "lz4",
                        256 * 1024,
                        128 * 1024,
                        output -> new Lz4Encoder(output, 32 * 1024),
                        lz4),
                codec(
                        "lz4, cut blocks",
                        70_000,
                        8 * 1024,
                        output -> new Lz4Encoder(output, 64 * 1024),
                        lz4),
                codec(
                        "lz4, small blocks",
                        70_000,
                        8 * 1024,
                        output -> new Lz4Encoder(output, 1024),
                        lz4),
                codec(
                        "zstd",
                        256 * 1024,
                        128 * 1024,
                        output -> new ZstdEncoder(output, 1),
                        ZstdInputStream::new),
                codec(
                        "zstd 9, cut blocks",
                        70_000,
                        4 * 1024,
                        output -> new ZstdEncoder(output, 9),
                        ZstdInputStream::new));
    }

    /** Makes bytes of which half can be compressed. */
    private static byte[] bytes(Random random, int length) {
        byte[] bytes = new byte[length];
        random.nextBytes(bytes);
        for (int i = 0; i < length; i++) {
            if (i / 1000 % 2 == 0) {
                bytes[i] = (byte) (i / 100);
            }
        }
        return bytes;
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("codecs")
    void streamsCanBeDecodedAndJoined(
            String name,
            int regionBytes,
            int blockBytes,
            Function<MapOutputWriter, StreamEncoder> make,
            Decoder decoder)
            throws IOException {
        Random random = new Random(1);
        Map<Integer, ByteArrayOutputStream> expected = new TreeMap<>();
        int[][] sizes = {
            {1, 100, 300_000, 0, 32 * 1024}, {64 * 1024, 17, 0, 5}, {0, 0, 1_000_000, 3}
        };
        try (WrittenOutput written = new WrittenOutput(regionBytes, blockBytes)) {
            try (StreamEncoder encoder = make.apply(written.output())) {
                for (int pass = 0; pass < sizes.length; pass++) {
                    written.output().beginPass(pass == sizes.length - 1);
                    for (int partition = 0; partition < sizes[pass].length; partition++) {
                        byte[] bytes = bytes(random, sizes[pass][partition]);
                        if (bytes.length > 0) {
                            encoder.begin(partition);
                            // In parts, like chunks.
                            int half = bytes.length / 2;
                            encoder.write(bytes, 0, half);
                            encoder.write(bytes, half, bytes.length - half);
                            encoder.end();
                            expected.computeIfAbsent(partition, key -> new ByteArrayOutputStream())
                                    .write(bytes);
                        }
                    }
                }
            }
            Map<Integer, byte[]> stored = written.read();
            assertEquals(expected.keySet(), stored.keySet());
            for (int partition : expected.keySet()) {
                byte[] content = expected.get(partition).toByteArray();
                InputStream decoded = decoder.open(new ByteArrayInputStream(stored.get(partition)));
                assertArrayEquals(content, decoded.readAllBytes(), "partition " + partition);
            }
            assertTrue(stored.get(2).length < 0.7 * 1_300_000, "it is compressed");
        }
    }
}
