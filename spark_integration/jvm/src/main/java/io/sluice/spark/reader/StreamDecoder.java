package io.sluice.spark.reader;

import io.sluice.client.gate.BlockStream;
import java.io.InputStream;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.io.CompressionCodec$;
import org.apache.spark.serializer.Serializer;
import org.apache.spark.serializer.SerializerManager;
import org.apache.spark.storage.ShuffleBlockId;

/**
 * Decrypts and decompresses the streams of a shuffle.
 *
 * @param joinStreams whether consecutive streams can be decoded and deserialized as one
 */
record StreamDecoder(boolean joinStreams, Codec codec) {

    /** Makes the stream of plain bytes of a block. */
    @FunctionalInterface
    interface Codec {
        InputStream open(ShuffleBlockId blockId, InputStream stored);
    }

    /** Returns the decoder for Spark's settings. */
    static StreamDecoder of(Serializer serializer) {
        SparkEnv env = SparkEnv.get();
        SerializerManager manager = env.serializerManager();
        return new StreamDecoder(canJoin(serializer, manager, env.conf()), manager::wrapStream);
    }

    /** Checks Spark's own condition for fetching several blocks as one. */
    private static boolean canJoin(
            Serializer serializer, SerializerManager manager, SparkConf conf) {
        return serializer.supportsRelocationOfSerializedObjects()
                && !manager.encryptionEnabled()
                && (!conf.getBoolean("spark.shuffle.compress", true)
                        || CompressionCodec$.MODULE$.supportsConcatenationOfSerializedStreams(
                                CompressionCodec$.MODULE$.createCodec(conf)));
    }

    /** Returns the plain bytes of {@code stored}, which begins with the given stream. */
    InputStream open(int shuffleId, BlockStream stream, InputStream stored) {
        return codec.open(
                new ShuffleBlockId(shuffleId, stream.mapAttemptId(), stream.subpartition()),
                stored);
    }
}
