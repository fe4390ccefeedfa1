package io.sluice.spark.writer;

import java.io.IOException;
import org.apache.spark.scheduler.MapStatus;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;
import scala.Option;
import scala.Product2;
import scala.collection.Iterator;

/** Wraps one of Spark's writers, and puts the TaskManager into its map status. */
public final class SparkWriterAdapter<K, V> extends ShuffleWriter<K, V> {
    private final ShuffleWriter<K, V> sparkWriter;
    private final MapTask task;

    public SparkWriterAdapter(ShuffleWriter<K, V> sparkWriter, MapTask task) {
        this.sparkWriter = sparkWriter;
        this.task = task;
    }

    @Override
    public void write(Iterator<Product2<K, V>> records) throws IOException {
        sparkWriter.write(records);
    }

    @Override
    public Option<MapStatus> stop(boolean success) {
        try {
            Option<MapStatus> status = sparkWriter.stop(success);
            if (success && status.isDefined()) {
                if (task.location() == null) {
                    throw new IllegalStateException(
                            "map output " + task.mapId() + " was not committed");
                }
                // Keeps the sizes and the row checksum, on every line of Spark.
                status.get().updateLocation(task.location());
            }
            return status;
        } finally {
            task.end();
        }
    }

    @Override
    public long[] getPartitionLengths() {
        return sparkWriter.getPartitionLengths();
    }

    /** Forwards all counters except bytes, which are counted at the commit. */
    public record Metrics(ShuffleWriteMetricsReporter reporter)
            implements ShuffleWriteMetricsReporter {
        @Override
        public void incBytesWritten(long bytes) {
            // Temporary files of Spark's writers are not shuffle data.
        }

        @Override
        public void decBytesWritten(long bytes) {
            // See incBytesWritten.
        }

        @Override
        public void incRecordsWritten(long records) {
            reporter.incRecordsWritten(records);
        }

        @Override
        public void decRecordsWritten(long records) {
            reporter.decRecordsWritten(records);
        }

        @Override
        public void incWriteTime(long nanos) {
            reporter.incWriteTime(nanos);
        }
    }
}
