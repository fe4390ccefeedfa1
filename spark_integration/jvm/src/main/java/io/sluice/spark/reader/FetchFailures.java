package io.sluice.spark.reader;

import io.sluice.client.ErrorCode;
import io.sluice.client.Source;
import io.sluice.client.SourceFailure;
import io.sluice.spark.Compat;
import io.sluice.spark.ExecutorRuntime;
import io.sluice.spark.SluiceMetrics;
import io.sluice.spark.TaskReader;
import java.io.IOException;
import org.apache.spark.shuffle.FetchFailedException;
import org.apache.spark.storage.BlockManagerId;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What a failure means for Spark, after everything that could be asked for again has been. A
 * TaskManager that stays out of reach, or does not know a map output: all of its map outputs are
 * lost. One bad map output: only that one. Anything else fails the task, which Spark tries again.
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
     * Throws what Spark has to see; declared to return so that callers can write {@code throw
     * failures.thrown(e)}.
     */
    RuntimeException thrown(IOException error) {
        if (error instanceof SourceFailure failure) {
            // Where one is missing the others are, too: the TaskManager has lost its data, or
            // dropped the application's.
            boolean missing = failure.code() == ErrorCode.PARTITION_NOT_FOUND;
            if (failure.mapAttemptId() != null && !failure.isUnreachable() && !missing) {
                throw lostOutput(failure);
            }
            throw unreachable(failure.source(), error);
        }
        return TaskReader.taskFailure(error);
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
                        location,
                        shuffleId,
                        mapId,
                        mapIndex,
                        partition,
                        error.getMessage(),
                        error));
    }
}
