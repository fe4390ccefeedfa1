package io.sluice.spark;

import io.sluice.client.ClientException;
import io.sluice.client.Endpoint;
import io.sluice.client.InputGate;
import io.sluice.client.Source;
import io.sluice.client.SourceFailure;
import java.io.IOException;
import org.apache.spark.shuffle.FetchFailedException;
import org.apache.spark.storage.BlockManagerId;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What a failure means for Spark. A TaskManager that stays out of reach: all of its map outputs are lost. One bad or missing
 * map output: only that one. Anything else fails the task, which Spark tries again.
 */
final class FetchFailures {
  private static final Logger LOG = LoggerFactory.getLogger(FetchFailures.class);

  /** Attempts of a task that may end for a TaskManager's return; Spark gives a task four by default. */
  private static final int PATIENT_ATTEMPTS = 2;

  private final ExecutorRuntime runtime;
  private final int shuffleId;
  private final int partition;
  private final int taskAttempt;
  private final MapOutputs outputs;

  /**
   * @param taskAttempt how often this task has failed before
   */
  FetchFailures(
      ExecutorRuntime runtime, int shuffleId, int partition, int taskAttempt, MapOutputs outputs) {
    this.runtime = runtime;
    this.shuffleId = shuffleId;
    this.partition = partition;
    this.taskAttempt = taskAttempt;
    this.outputs = outputs;
  }

  /**
   * Throws what Spark has to see; declared to return so that callers can write {@code throw failures.thrown(e, gate)}.
   *
   * @param gate the gate that failed, or null when none was opened
   */
  RuntimeException thrown(IOException error, InputGate gate) {
    if (error instanceof SourceFailure failure) {
      if (failure.mapAttemptId() != null && !failure.isUnreachable()) {
        throw lostOutput(failure);
      }
      Source source = failure.source();
      Endpoint endpoint = Endpoint.tcp(source.host(), source.port());
      if (!failure.isUnreachable() || !isWorthAnAttempt(source, endpoint)) {
        throw unreachable(source, error);
      }
    } else if (error instanceof ClientException.ConnectionLost && gate != null) {
      Source local = gate.unfinishedLocalSource();
      if (local != null && !isWorthAnAttempt(local, gate.endpoint())) {
        throw unreachable(local, error);
      }
    }
    // The TaskManager is there again with its outputs, or another one takes the place of the own.
    return Compat.<RuntimeException>sneakyThrow(error);
  }

  private boolean isWorthAnAttempt(Source source, Endpoint endpoint) {
    // It may answer this executor and never the TaskManager that asks it: not for ever.
    if (taskAttempt >= PATIENT_ATTEMPTS) {
      return false;
    }
    try {
      return runtime.isThereOrReturns(endpoint, source.taskManagerId());
    } catch (ClientException e) {
      throw Compat.<RuntimeException>sneakyThrow(e);
    }
  }

  private RuntimeException lostOutput(SourceFailure failure) {
    long mapId = failure.mapAttemptId();
    int mapIndex = outputs.mapIndex(mapId);
    runtime.forgetMapOutput(shuffleId, mapId, mapIndex);
    return fetchFailed(null, mapId, mapIndex, failure);
  }

  private RuntimeException unreachable(Source source, IOException error) {
    long mapId = source.mapAttemptIds()[0];
    BlockManagerId location = outputs.location(source.taskManagerId());
    return fetchFailed(location, mapId, outputs.mapIndex(mapId), error);
  }

  private RuntimeException fetchFailed(
      BlockManagerId location, long mapId, int mapIndex, IOException error) {
    SluiceMetrics.INSTANCE.fetchFailures.increment();
    LOG.warn("Fetch failed for shuffle {}: {}", shuffleId, error.getMessage());
    // Made only to be thrown: its constructor marks the task.
    return Compat.<RuntimeException>sneakyThrow(
        new FetchFailedException(
            location, shuffleId, mapId, mapIndex, partition, error.getMessage(), error));
  }
}
