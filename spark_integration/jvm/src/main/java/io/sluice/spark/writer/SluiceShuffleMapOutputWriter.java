package io.sluice.spark.writer;

import io.sluice.client.output.MapOutputWriter;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import org.apache.spark.shuffle.api.ShuffleMapOutputWriter;
import org.apache.spark.shuffle.api.ShufflePartitionWriter;
import org.apache.spark.shuffle.api.SingleSpillShuffleMapOutputWriter;
import org.apache.spark.shuffle.api.metadata.MapOutputCommitMessage;

/** Takes the partition streams of Spark's own writers. */
public final class SluiceShuffleMapOutputWriter implements ShuffleMapOutputWriter {
    private final MapTask task;
    private final MapOutputWriter output;
    private PartitionStream current;

    public SluiceShuffleMapOutputWriter(MapTask task, int numPartitions) {
        this.task = task;
        this.output = task.open(numPartitions);
    }

    @Override
    public ShufflePartitionWriter getPartitionWriter(int partition) {
        return new PartitionWriter(partition);
    }

    @Override
    public MapOutputCommitMessage commitAllPartitions(long[] checksums) throws IOException {
        if (current != null) {
            current.close();
        }
        task.commit();
        return MapOutputCommitMessage.of(output.partitionLengths());
    }

    @Override
    public void abort(Throwable error) {
        task.abort();
    }

    private final class PartitionWriter implements ShufflePartitionWriter {
        private final int partition;

        PartitionWriter(int partition) {
            this.partition = partition;
        }

        @Override
        public OutputStream openStream() throws IOException {
            if (current != null) {
                current.close();
            }
            current = new PartitionStream(partition);
            return current;
        }

        @Override
        public long getNumBytesWritten() {
            return output.partitionLengths()[partition];
        }
    }

    private final class PartitionStream extends OutputStream {
        private boolean closed;

        PartitionStream(int partition) throws IOException {
            output.beginPartition(partition);
        }

        @Override
        public void write(int value) throws IOException {
            output.write(value);
        }

        @Override
        public void write(byte[] bytes, int offset, int length) throws IOException {
            output.write(bytes, offset, length);
        }

        @Override
        public void close() {
            if (!closed) {
                closed = true;
                output.endPartition();
            }
        }
    }

    /**
     * Takes the single spill file of a map task, whose partitions are already encoded and in order.
     */
    public static final class SingleSpill implements SingleSpillShuffleMapOutputWriter {
        private static final int COPY_BYTES = 128 * 1024;

        private final MapTask task;

        public SingleSpill(MapTask task) {
            this.task = task;
        }

        @Override
        public void transferMapSpillFile(File spill, long[] lengths, long[] checksums)
                throws IOException {
            long start = System.nanoTime();
            MapOutputWriter output = task.open(lengths.length);
            byte[] buffer = new byte[COPY_BYTES];
            // Not a FileChannel, which an interrupt would close during a read.
            try (InputStream in = new FileInputStream(spill)) {
                for (int partition = 0; partition < lengths.length; partition++) {
                    if (lengths[partition] > 0) {
                        output.beginPartition(partition);
                        copy(in, output, lengths[partition], buffer, spill);
                        // Spark's writer keeps this array for the map status.
                        lengths[partition] = output.endPartition();
                    }
                }
            }
            task.addWriteTime(System.nanoTime() - start);
            task.commit();
            Files.deleteIfExists(spill.toPath());
        }

        private static void copy(
                InputStream in, MapOutputWriter output, long length, byte[] buffer, File spill)
                throws IOException {
            long left = length;
            while (left > 0) {
                int n = in.read(buffer, 0, (int) Math.min(buffer.length, left));
                if (n < 0) {
                    throw new IOException(
                            "the spill file " + spill + " is " + left + " bytes too short");
                }
                output.write(buffer, 0, n);
                left -= n;
            }
        }
    }
}
