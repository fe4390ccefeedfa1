package io.sluice.spark;

import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerExecutorAdded;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;

/** Tells which executors the application has. */
final class ExecutorListener extends SparkListener {
  private final Reachability reachability;

  ExecutorListener(Reachability reachability) {
    this.reachability = reachability;
  }

  @Override
  public void onExecutorAdded(SparkListenerExecutorAdded event) {
    reachability.executorAdded(event.executorId());
  }

  @Override
  public void onExecutorRemoved(SparkListenerExecutorRemoved event) {
    reachability.executorRemoved(event.executorId());
  }
}
