package io.sluice.spark.registration;

import io.sluice.spark.settings.CallerSettings;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.spark.ShuffleDependency;

/**
 * A shuffle that is being registered, on the driver.
 *
 * @param maps number of map tasks
 * @param partitions number of reduce partitions
 * @param settings looks up a setting of the session or the job that registers the shuffle
 * @param unsupported why Sluice cannot take the shuffle; empty if it can
 * @param input computes how many bytes the map tasks read; empty if any part is unknown
 */
public record NewShuffle(
        int shuffleId,
        int maps,
        int partitions,
        Function<String, Optional<String>> settings,
        Optional<String> unsupported,
        Supplier<OptionalLong> input) {

    /** Describes a shuffle that the calling thread registers. */
    public static NewShuffle of(
            int shuffleId,
            ShuffleDependency<?, ?, ?> dependency,
            Optional<String> unsupported,
            Supplier<OptionalLong> input) {
        return new NewShuffle(
                shuffleId,
                dependency.rdd().getNumPartitions(),
                dependency.partitioner().numPartitions(),
                CallerSettings.of(dependency.rdd().sparkContext()),
                unsupported,
                input);
    }

    /** Returns a setting of the session or the job; empty if neither has it. */
    Optional<String> setting(String key) {
        return settings.apply(key);
    }

    OptionalLong inputBytes() {
        return input.get();
    }
}
