package io.sluice.spark;

import io.sluice.client.BlockStream;
import io.sluice.client.InputGate;
import java.io.IOException;
import java.io.InputStream;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.serializer.SerializerInstance;
import org.apache.spark.serializer.SerializerManager;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.storage.ShuffleBlockId;
import scala.Tuple2;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;

/** The records of a gate, stream after stream, with Spark's read metrics. */
final class RecordIterator extends AbstractIterator<Tuple2<Object, Object>> {
  private final InputGate gate;
  private final FetchFailures failures;
  private final SerializerInstance serializer;
  private final SerializerManager serializerManager = SparkEnv.get().serializerManager();
  private final int shuffleId;
  private final TaskContext context;
  private final ShuffleReadMetricsReporter metrics;

  private Iterator<Tuple2<Object, Object>> current;
  private boolean ended;
  private long reportedLocalBytes;
  private long reportedRemoteBytes;
  private long reportedWaitMillis;

  RecordIterator(
      InputGate gate,
      FetchFailures failures,
      SerializerInstance serializer,
      int shuffleId,
      TaskContext context,
      ShuffleReadMetricsReporter metrics) {
    this.gate = gate;
    this.failures = failures;
    this.serializer = serializer;
    this.shuffleId = shuffleId;
    this.context = context;
    this.metrics = metrics;
  }

  @Override
  public boolean hasNext() {
    while (current == null || !current.hasNext()) {
      if (ended || !nextStream()) {
        return false;
      }
    }
    return true;
  }

  @Override
  public Tuple2<Object, Object> next() {
    if (!hasNext()) {
      throw new java.util.NoSuchElementException("end of the shuffle's records");
    }
    Tuple2<Object, Object> record = current.next();
    metrics.incRecordsRead(1);
    return record;
  }

  private boolean nextStream() {
    BlockStream stream;
    try {
      stream = gate.nextStream();
    } catch (IOException e) {
      throw failures.thrown(e, gate);
    }
    report();
    if (stream == null) {
      ended = true;
      current = null;
      context.taskMetrics().mergeShuffleReadMetrics();
      return false;
    }
    if (stream.isLocal()) {
      metrics.incLocalBlocksFetched(1);
    } else {
      metrics.incRemoteBlocksFetched(1);
    }
    SluiceMetrics.INSTANCE.streamsRead.increment();
    ShuffleBlockId blockId = new ShuffleBlockId(shuffleId, stream.mapAttemptId(), stream.subpartition());
    InputStream plain = serializerManager.wrapStream(blockId, new Checked(stream));
    current = serializer.deserializeStream(plain).asKeyValueIterator();
    return true;
  }

  /** Passes on what the gate has counted since the last time. */
  private void report() {
    long local = gate.localBytes();
    long remote = gate.remoteBytes();
    long waited = TimeUnit.NANOSECONDS.toMillis(gate.waitedNanos());
    metrics.incLocalBytesRead(local - reportedLocalBytes);
    metrics.incRemoteBytesRead(remote - reportedRemoteBytes);
    metrics.incFetchWaitTime(waited - reportedWaitMillis);
    SluiceMetrics.INSTANCE.localBytesRead.add(local - reportedLocalBytes);
    SluiceMetrics.INSTANCE.remoteBytesRead.add(remote - reportedRemoteBytes);
    reportedLocalBytes = local;
    reportedRemoteBytes = remote;
    reportedWaitMillis = waited;
  }

  /** Called at the end of the task, whatever its outcome. */
  void close() {
    gate.close();
    if (!ended) {
      ended = true;
      report();
      context.taskMetrics().mergeShuffleReadMetrics();
    }
  }

  /** Turns failures into what Spark understands, below decompression and deserialization. */
  private final class Checked extends InputStream {
    private final BlockStream stream;

    Checked(BlockStream stream) {
      this.stream = stream;
    }

    @Override
    public int read() {
      try {
        return stream.read();
      } catch (IOException e) {
        throw failures.thrown(e, gate);
      }
    }

    @Override
    public int read(byte[] into, int offset, int length) {
      try {
        return stream.read(into, offset, length);
      } catch (IOException e) {
        throw failures.thrown(e, gate);
      }
    }

    @Override
    public int available() {
      return stream.available();
    }
  }
}
