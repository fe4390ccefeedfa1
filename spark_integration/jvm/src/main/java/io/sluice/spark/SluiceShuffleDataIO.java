package io.sluice.spark;

import io.sluice.spark.driver.DriverRuntime;
import io.sluice.spark.outputs.ExecutorOutputs;
import io.sluice.spark.writer.MapTask;
import io.sluice.spark.writer.SluiceShuffleMapOutputWriter;
import java.io.IOException;
import java.util.Map;
import java.util.Optional;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.shuffle.api.ShuffleDataIO;
import org.apache.spark.shuffle.api.ShuffleDriverComponents;
import org.apache.spark.shuffle.api.ShuffleExecutorComponents;
import org.apache.spark.shuffle.api.ShuffleMapOutputWriter;
import org.apache.spark.shuffle.api.SingleSpillShuffleMapOutputWriter;
import org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO;

/**
 * Sends the output of Spark's own writers to TaskManagers, and declares on the driver that shuffle
 * data survives executors.
 */
public final class SluiceShuffleDataIO implements ShuffleDataIO {
    private static final String SHUFFLE_TRACKING =
            "spark.dynamicAllocation.shuffleTracking.enabled";

    private final LocalDiskShuffleDataIO local;

    public SluiceShuffleDataIO(SparkConf conf) {
        this.local = new LocalDiskShuffleDataIO(conf);
    }

    @Override
    public ShuffleExecutorComponents executor() {
        return new Executor(local.executor());
    }

    @Override
    public ShuffleDriverComponents driver() {
        return new Driver(local.driver());
    }

    private static final class Executor implements ShuffleExecutorComponents {
        private final ShuffleExecutorComponents local;

        Executor(ShuffleExecutorComponents local) {
            this.local = local;
        }

        @Override
        public void initializeExecutor(
                String appId, String execId, Map<String, String> extraConfigs) {
            local.initializeExecutor(appId, execId, extraConfigs);
        }

        @Override
        public ShuffleMapOutputWriter createMapOutputWriter(
                int shuffleId, long mapTaskId, int numPartitions) throws IOException {
            MapTask task = MapTask.running(mapTaskId);
            return task != null
                    ? new SluiceShuffleMapOutputWriter(task, numPartitions)
                    : local.createMapOutputWriter(shuffleId, mapTaskId, numPartitions);
        }

        @Override
        public Optional<SingleSpillShuffleMapOutputWriter> createSingleFileMapOutputWriter(
                int shuffleId, long mapId) throws IOException {
            MapTask task = MapTask.running(mapId);
            return task != null
                    ? Optional.of(new SluiceShuffleMapOutputWriter.SingleSpill(task))
                    : local.createSingleFileMapOutputWriter(shuffleId, mapId);
        }
    }

    private static final class Driver implements ShuffleDriverComponents {
        private final ShuffleDriverComponents local;

        Driver(ShuffleDriverComponents local) {
            this.local = local;
        }

        @Override
        public Map<String, String> initializeApplication() {
            return local.initializeApplication();
        }

        @Override
        public void cleanupApplication() {
            DriverRuntime runtime = DriverRuntime.current();
            if (runtime != null) {
                runtime.releaseApplication();
            }
            local.cleanupApplication();
        }

        @Override
        public void registerShuffle(int shuffleId) {
            local.registerShuffle(shuffleId);
        }

        @Override
        public void removeShuffle(int shuffleId, boolean blocking) {
            DriverRuntime runtime = DriverRuntime.current();
            if (runtime != null) {
                runtime.releaseShuffle(shuffleId, blocking);
            }
            // Executors have the files of fallback shuffles.
            local.removeShuffle(shuffleId, blocking);
        }

        /**
         * Returns whether map outputs survive their executors; Spark asks at its start and whenever
         * an executor is lost. True from the first shuffle that goes through Sluice; {@link
         * ExecutorOutputs} handles the outputs of the others. True at the start if dynamic
         * allocation needs it; otherwise it would only make Spark log a warning that does not
         * apply.
         */
        @Override
        public boolean supportsReliableStorage() {
            DriverRuntime runtime = DriverRuntime.current();
            return runtime != null
                    && (runtime.registrar().hasUsedSluice()
                            || (runtime.settings().routing().enabled()
                                    && !SparkEnv.get().conf().getBoolean(SHUFFLE_TRACKING, true)));
        }
    }
}
