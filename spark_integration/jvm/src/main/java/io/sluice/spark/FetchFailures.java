package io.sluice.spark;

import io.sluice.client.ClientException;
import io.sluice.client.ErrorCode;
import io.sluice.client.InputGate;
import io.sluice.client.Source;
import io.sluice.client.SourceFailure;
import java.io.IOException;
import org.apache.spark.shuffle.FetchFailedException;
import org.apache.spark.storage.BlockManagerId;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What a failure means for Spark. A TaskManager out of reach: all of its map outputs are lost. One bad or missing map
 * output: only that one. Anything else fails the task, which Spark tries again.
 */
final class FetchFailures {
  private static final Logger LOG = LoggerFactory.getLogger(FetchFailures.class);

  private final ExecutorRuntime runtime;
  private final int shuffleId;
  private final int partition;
  private final MapOutputs outputs;

  FetchFailures(ExecutorRuntime runtime, int shuffleId, int partition, MapOutputs outputs) {
    this.runtime = runtime;
    this.shuffleId = shuffleId;
    this.partition = partition;
    this.outputs = outputs;
  }

  /**
   * Throws what Spark has to see; declared to return so that callers can write {@code throw failures.thrown(e, gate)}.
   *
   * @param gate the gate that failed, or null when none was opened
   */
  RuntimeException thrown(IOException error, InputGate gate) {
    if (error instanceof SourceFailure failure) {
      if (failure.code() == ErrorCode.CONNECTION_LOST && runtime.answers(failure.source())) {
        // It went away in the middle and is there again, with its outputs: the next attempt reads them.
        return Compat.<RuntimeException>sneakyThrow(error);
      }
      throw failure.mapAttemptId() != null && !failure.isUnreachable()
          ? lostOutput(failure)
          : unreachable(failure.source(), error);
    }
    if (error instanceof ClientException.ConnectionLost && gate != null) {
      Source local = gate.unfinishedLocalSource();
      if (local != null && !runtime.isReachable(gate.endpoint())) {
        throw unreachable(local, error);
      }
    }
    // The own TaskManager is there again, or another one serves the next attempt.
    return Compat.<RuntimeException>sneakyThrow(error);
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
