package io.sluice.spark;

import io.sluice.client.Message;
import io.sluice.client.PipelinedGate;
import io.sluice.client.Source;
import io.sluice.client.TaskManagerConnection;
import java.io.IOException;
import java.util.List;
import org.apache.spark.InterruptibleIterator;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.TaskContext;
import org.apache.spark.rpc.RpcEndpointRef;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;
import org.apache.spark.util.TaskCompletionListener;
import scala.Product2;
import scala.collection.Iterator;

/** Reads one partition of all map tasks while they write it. */
final class PipelinedShuffleReader<K, C> implements ShuffleReader<K, C> {
  private final ExecutorRuntime runtime;
  private final RpcEndpointRef directory;
  private final ShuffleDependency<?, ?, ?> dependency;
  private final int partition;
  private final TaskContext context;
  private final ShuffleReadMetricsReporter metrics;

  PipelinedShuffleReader(
      ExecutorRuntime runtime,
      RpcEndpointRef directory,
      PipelinedShuffleHandle<?, ?, ?> handle,
      int partition,
      TaskContext context,
      ShuffleReadMetricsReporter metrics) {
    this.runtime = runtime;
    this.directory = directory;
    this.dependency = handle.dependency();
    this.partition = partition;
    this.context = context;
    this.metrics = metrics;
  }

  @Override
  @SuppressWarnings({"unchecked", "rawtypes"})
  public Iterator<Product2<K, C>> read() {
    PipelinedRecords records =
        new PipelinedRecords(open(), dependency.serializer().newInstance(), context, metrics);
    // Also runs when the task fails or takes only a part of the records.
    TaskCompletionListener whenDone = done -> records.close();
    context.addTaskCompletionListener(whenDone);
    return (Iterator) new InterruptibleIterator(context, records);
  }

  private PipelinedGate open() {
    SluiceSettings settings = runtime.settings();
    List<Source> sources =
        ProducerDirectory.sources(directory, dependency.shuffleId(), settings.ioTimeoutMillis());
    try {
      TaskManagerConnection connection = runtime.lease(Message.ROLE_CONSUMER, settings.returnTimeoutMillis());
      return new PipelinedGate(
          connection,
          runtime.pool(),
          dependency.shuffleId(),
          partition,
          settings.creditFor(sources.size()),
          sources);
    } catch (IOException e) {
      // No fetch failure: there is nothing to run again but the whole group, which any failure of a task does.
      throw Compat.<RuntimeException>sneakyThrow(e);
    }
  }
}
