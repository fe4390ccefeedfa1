package io.sluice.spark.driver;

import io.sluice.spark.outputs.Locality;
import io.sluice.spark.outputs.OutputRegistry;
import io.sluice.spark.outputs.SparkTracker;
import io.sluice.spark.registration.ShuffleTable;
import org.apache.spark.executor.ShuffleWriteMetrics;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerExecutorAdded;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.StageInfo;

/** Forwards events of executors and map stages. */
public final class ApplicationListener extends SparkListener {
    private final Reachability reachability;
    private final Locality locality;
    private final ShuffleTable shuffles;
    private final OutputRegistry outputs;

    public ApplicationListener(
            Reachability reachability,
            Locality locality,
            ShuffleTable shuffles,
            OutputRegistry outputs) {
        this.reachability = reachability;
        this.locality = locality;
        this.shuffles = shuffles;
        this.outputs = outputs;
    }

    @Override
    public void onExecutorAdded(SparkListenerExecutorAdded event) {
        reachability.executorAdded(event.executorId());
        locality.executorAdded(event.executorId());
    }

    @Override
    public void onExecutorRemoved(SparkListenerExecutorRemoved event) {
        reachability.executorRemoved(event.executorId());
        locality.executorRemoved(event.executorId());
    }

    @Override
    public void onStageSubmitted(SparkListenerStageSubmitted event) {
        StageInfo stage = event.stageInfo();
        if (stage.shuffleDepId().isDefined()) {
            shuffles.writtenBy((Integer) stage.shuffleDepId().get(), stage.stageId());
        }
    }

    @Override
    public void onStageCompleted(SparkListenerStageCompleted event) {
        StageInfo stage = event.stageInfo();
        if (stage.shuffleDepId().isDefined()) {
            ShuffleWriteMetrics written = stage.taskMetrics().shuffleWriteMetrics();
            shuffles.written(
                    (Integer) stage.shuffleDepId().get(),
                    written.recordsWritten(),
                    written.bytesWritten());
            outputs.written((Integer) stage.shuffleDepId().get());
            if (locality.hidesHosts()) {
                // The stage may have named its hosts when it began.
                SparkTracker.hideHosts();
            }
        }
    }
}
