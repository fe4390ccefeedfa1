package io.sluice.spark;

import java.io.Closeable;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Map;
import java.util.Properties;
import org.apache.spark.TaskContext;
import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.memory.TaskMemoryManager;
import org.apache.spark.metrics.source.Source;
import org.apache.spark.resource.ResourceInformation;
import org.apache.spark.shuffle.FetchFailedException;
import org.apache.spark.util.AccumulatorV2;
import org.apache.spark.util.TaskCompletionListener;
import org.apache.spark.util.TaskFailureListener;
import scala.Function0;
import scala.Option;
import scala.collection.immutable.Seq;

/**
 * A task that keeps its completion listeners like Spark's. Spark's own class needs a logging
 * library that the tests do not have.
 */
public final class TestTask extends TaskContext {
    private final Deque<TaskCompletionListener> listeners = new ArrayDeque<>();
    private boolean completed;

    @Override
    public TaskContext addTaskCompletionListener(TaskCompletionListener listener) {
        if (completed) {
            listener.onTaskCompletion(this);
        } else {
            listeners.push(listener);
        }
        return this;
    }

    @Override
    public void markTaskCompleted(Option<Throwable> error) {
        completed = true;
        while (!listeners.isEmpty()) {
            listeners.pop().onTaskCompletion(this);
        }
    }

    @Override
    public boolean isCompleted() {
        return completed;
    }

    // ---- not needed

    @Override
    public TaskMetrics taskMetrics() {
        throw new UnsupportedOperationException();
    }

    @Override
    public boolean isFailed() {
        throw new UnsupportedOperationException();
    }

    @Override
    public boolean isInterrupted() {
        throw new UnsupportedOperationException();
    }

    @Override
    public TaskContext addTaskFailureListener(TaskFailureListener listener) {
        throw new UnsupportedOperationException();
    }

    @Override
    public int stageId() {
        throw new UnsupportedOperationException();
    }

    @Override
    public int stageAttemptNumber() {
        throw new UnsupportedOperationException();
    }

    @Override
    public int partitionId() {
        throw new UnsupportedOperationException();
    }

    @Override
    public int numPartitions() {
        throw new UnsupportedOperationException();
    }

    @Override
    public int attemptNumber() {
        throw new UnsupportedOperationException();
    }

    @Override
    public long taskAttemptId() {
        throw new UnsupportedOperationException();
    }

    @Override
    public String getLocalProperty(String key) {
        throw new UnsupportedOperationException();
    }

    @Override
    public int cpus() {
        throw new UnsupportedOperationException();
    }

    @Override
    public scala.collection.immutable.Map<String, ResourceInformation> resources() {
        throw new UnsupportedOperationException();
    }

    @Override
    public Map<String, ResourceInformation> resourcesJMap() {
        throw new UnsupportedOperationException();
    }

    @Override
    public Seq<Source> getMetricsSources(String name) {
        throw new UnsupportedOperationException();
    }

    @Override
    public void killTaskIfInterrupted() {
        throw new UnsupportedOperationException();
    }

    @Override
    public Option<String> getKillReason() {
        throw new UnsupportedOperationException();
    }

    @Override
    public TaskMemoryManager taskMemoryManager() {
        throw new UnsupportedOperationException();
    }

    @Override
    public void registerAccumulator(AccumulatorV2<?, ?> accumulator) {
        throw new UnsupportedOperationException();
    }

    @Override
    public void setFetchFailed(FetchFailedException failure) {
        throw new UnsupportedOperationException();
    }

    @Override
    public void markInterrupted(String reason) {
        throw new UnsupportedOperationException();
    }

    @Override
    public void markTaskFailed(Throwable error) {
        throw new UnsupportedOperationException();
    }

    @Override
    public Option<FetchFailedException> fetchFailed() {
        throw new UnsupportedOperationException();
    }

    @Override
    public Properties getLocalProperties() {
        throw new UnsupportedOperationException();
    }

    @Override
    public boolean interruptible() {
        throw new UnsupportedOperationException();
    }

    @Override
    public void pendingInterrupt(Option<Thread> thread, String reason) {
        throw new UnsupportedOperationException();
    }

    @Override
    public <T extends Closeable> T createResourceUninterruptibly(Function0<T> make) {
        throw new UnsupportedOperationException();
    }
}
