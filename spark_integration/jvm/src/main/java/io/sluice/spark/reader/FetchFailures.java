package io.sluice.spark.reader;

import io.sluice.client.gate.SourceFailure;
import io.sluice.client.wire.ErrorCode;
import io.sluice.spark.common.Compat;
import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.common.TaskManagerIds;
import io.sluice.spark.executor.ExecutorRuntime;
import io.sluice.spark.executor.TaskReader;
import java.io.IOException;
import org.apache.spark.shuffle.FetchFailedException;
import org.apache.spark.storage.BlockManagerId;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Translates a failure, after all retries of the client, into an exception for Spark: all map
 * outputs of a TaskManager are lost if it stays unreachable or does not know one of them, a damaged
 * map output is lost alone, and any other failure fails the task.
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

    /** Throws the exception for Spark; called as {@code throw failures.thrown(e)}. */
    RuntimeException thrown(IOException error) {
        if (error instanceof SourceFailure failure) {
            // If one output is missing, the TaskManager has lost all data of the application.
            boolean missing = failure.code() == ErrorCode.PARTITION_NOT_FOUND;
            if (failure.mapAttemptId() != null && !failure.isUnreachable() && !missing) {
                throw lostOutput(failure);
            }
            throw unreachable(failure);
        }
        return TaskReader.taskFailure(error);
    }

    private RuntimeException lostOutput(SourceFailure failure) {
        long mapId = failure.mapAttemptId();
        int mapIndex = outputs.mapIndex(mapId);
        runtime.forgetMapOutput(shuffleId, mapId, mapIndex);
        return fetchFailed(null, mapId, mapIndex, failure);
    }

    private RuntimeException unreachable(SourceFailure failure) {
        long[] unreadable =
                failure.mapAttemptId() == null
                                || failure.isUnreachable()
                                || outputs.location(failure.mapAttemptId()) == null
                        ? failure.source().mapAttemptIds()
                        : new long[] {failure.mapAttemptId()};
        long mapId = unreadable[0];
        BlockManagerId location = outputs.location(mapId);
        if (location != null) {
            runtime.reportUnreadable(TaskManagerIds.taskManagerId(location), shuffleId, unreadable);
        }
        return fetchFailed(location, mapId, outputs.mapIndex(mapId), failure);
    }

    private RuntimeException fetchFailed(
            BlockManagerId location, long mapId, int mapIndex, IOException error) {
        SluiceMetrics.INSTANCE.fetchFailures.increment();
        LOG.warn("Fetch failed for shuffle {}: {}", shuffleId, error.getMessage());
        // The constructor marks the task as failed.
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
