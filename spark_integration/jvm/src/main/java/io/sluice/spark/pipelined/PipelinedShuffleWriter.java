package io.sluice.spark.pipelined;

import io.sluice.client.output.PipelinedPartition;
import io.sluice.client.wire.Message;
import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.common.TaskEndAction;
import io.sluice.spark.executor.ExecutorRuntime;
import io.sluice.spark.settings.SluiceSettings;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.concurrent.TimeUnit;
import org.apache.spark.Partitioner;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.rpc.RpcEndpointRef;
import org.apache.spark.scheduler.MapStatus;
import org.apache.spark.serializer.SerializationStream;
import org.apache.spark.serializer.SerializerInstance;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;
import scala.Option;
import scala.Product2;
import scala.collection.Iterator;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/**
 * Writes records into a pipelined partition as they come. Each subpartition has one serialization
 * stream, which is flushed after each record.
 */
public final class PipelinedShuffleWriter<K, V> extends ShuffleWriter<K, V> {
    private final ExecutorRuntime runtime;
    private final RpcEndpointRef directory;
    private final ShuffleDependency<?, ?, ?> dependency;
    private final long mapId;
    private final TaskContext context;
    private final ShuffleWriteMetricsReporter metrics;
    private final long[] lengths;
    private boolean written;

    public PipelinedShuffleWriter(
            ExecutorRuntime runtime,
            RpcEndpointRef directory,
            PipelinedShuffleHandle<?, ?, ?> handle,
            long mapId,
            TaskContext context,
            ShuffleWriteMetricsReporter metrics) {
        this.runtime = runtime;
        this.directory = directory;
        this.dependency = handle.dependency();
        this.mapId = mapId;
        this.context = context;
        this.metrics = metrics;
        this.lengths = new long[dependency.partitioner().numPartitions()];
    }

    @Override
    public void write(Iterator<Product2<K, V>> records) throws IOException {
        SluiceSettings settings = runtime.settings();
        PipelinedPartition partition =
                new PipelinedPartition(
                        runtime.leasePipelined(Message.ROLE_PRODUCER),
                        runtime.pool(),
                        dependency.shuffleId(),
                        mapId,
                        lengths.length,
                        TimeUnit.MILLISECONDS.toNanos(settings.pipelined().flushIntervalMillis()));
        TaskEndAction atTaskEnd = TaskEndAction.register(context, partition::close);
        ProducerDirectory.writes(
                directory,
                dependency.shuffleId(),
                context.partitionId(),
                mapId,
                partition.taskManager(),
                settings.io().timeoutMillis());
        write(records, partition);
        long before = System.nanoTime();
        partition.finish();
        atTaskEnd.cancel();
        metrics.incWriteTime(partition.waitedNanos() + System.nanoTime() - before);
        SluiceMetrics.INSTANCE.pipelinedPartitionsWritten.increment();
        written = true;
    }

    private void write(Iterator<Product2<K, V>> records, PipelinedPartition into)
            throws IOException {
        Partitioner partitioner = dependency.partitioner();
        SerializerInstance serializer = dependency.serializer().newInstance();
        ClassTag<Object> any = ClassTag$.MODULE$.Any();
        SerializationStream[] streams = new SerializationStream[lengths.length];
        RecordBytes bytes = new RecordBytes();
        while (records.hasNext()) {
            Product2<K, V> record = records.next();
            int target = partitioner.getPartition(record._1());
            SerializationStream stream = streams[target];
            bytes.begin();
            if (stream == null) {
                stream = serializer.serializeStream(bytes);
                streams[target] = stream;
            }
            stream.writeKey(record._1(), any);
            stream.writeValue(record._2(), any);
            stream.flush();
            int length = bytes.end();
            into.write(target, bytes.array(), 0, length);
            lengths[target] += length;
            metrics.incRecordsWritten(1);
            metrics.incBytesWritten(length);
            SluiceMetrics.INSTANCE.pipelinedBytesWritten.add(length);
        }
    }

    @Override
    public Option<MapStatus> stop(boolean success) {
        if (!success || !written) {
            return Option.empty();
        }
        // As in Spark's own streaming shuffle: the map output tracker does not have the shuffle.
        return Option.apply(
                MapStatus.apply(
                        SparkEnv.get().blockManager().shuffleServerId(),
                        new long[lengths.length],
                        mapId,
                        0));
    }

    @Override
    public long[] getPartitionLengths() {
        return lengths;
    }

    /** The length and the bytes of one record. All streams write here, one at a time. */
    private static final class RecordBytes extends ByteArrayOutputStream {
        private static final int LENGTH_BYTES = 4;

        void begin() {
            reset();
            count = LENGTH_BYTES;
        }

        int end() {
            ByteBuffer.wrap(buf).putInt(0, count - LENGTH_BYTES);
            return count;
        }

        byte[] array() {
            return buf;
        }
    }
}
