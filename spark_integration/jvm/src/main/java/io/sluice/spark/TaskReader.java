package io.sluice.spark;

import org.apache.spark.InterruptibleIterator;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.TaskContext;
import org.apache.spark.shuffle.BaseShuffleHandle;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;
import org.apache.spark.util.TaskCompletionListener;
import scala.Product2;
import scala.collection.Iterator;

/** What a task reads of a shuffle that goes through TaskManagers. */
abstract class TaskReader<K, C> implements ShuffleReader<K, C> {

  /** What to read; the ends are exclusive, {@code endMapIndex} may be {@code Integer.MAX_VALUE}. */
  record Range(int startMapIndex, int endMapIndex, int startPartition, int endPartition) {}

  final ExecutorRuntime runtime = ExecutorRuntime.get();
  final ShuffleDependency<?, ?, ?> dependency;
  final Range range;
  final TaskContext context;
  final ShuffleReadMetricsReporter metrics;

  TaskReader(
      BaseShuffleHandle<?, ?, ?> handle,
      Range range,
      TaskContext context,
      ShuffleReadMetricsReporter metrics) {
    this.dependency = handle.dependency();
    this.range = range;
    this.context = context;
    this.metrics = metrics;
  }

  /** Records that are given up with {@code close} at the end of the task. */
  @SuppressWarnings({"unchecked", "rawtypes"})
  final Iterator<Product2<K, C>> untilTaskEnds(Iterator<?> records, Runnable close) {
    // Also runs when the task fails or takes only a part of the records.
    TaskCompletionListener whenDone = done -> close.run();
    context.addTaskCompletionListener(whenDone);
    return new InterruptibleIterator(context, records);
  }
}
