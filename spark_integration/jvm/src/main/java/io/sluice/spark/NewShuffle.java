package io.sluice.spark;

import java.util.Optional;
import java.util.OptionalLong;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.spark.ShuffleDependency;

/** What the driver knows of a shuffle when it is registered. */
final class NewShuffle {
    private final int shuffleId;
    private final int maps;
    private final int partitions;
    private final Function<String, Optional<String>> settings;
    private final Optional<String> unsupported;
    private final Supplier<OptionalLong> inputBytes;

    /** A shuffle that the calling thread registers; parameters as for the constructor. */
    static NewShuffle of(
            int shuffleId,
            ShuffleDependency<?, ?, ?> dependency,
            Optional<String> unsupported,
            Supplier<OptionalLong> inputBytes) {
        return new NewShuffle(
                shuffleId,
                dependency.rdd().getNumPartitions(),
                dependency.partitioner().numPartitions(),
                CallerSettings.of(dependency.rdd().sparkContext()),
                unsupported,
                inputBytes);
    }

    /**
     * @param maps number of map tasks
     * @param partitions number of reduce partitions
     * @param settings a setting as the session or the job that registers the shuffle has it
     * @param unsupported why Sluice cannot take it; empty when it can
     * @param inputBytes what the map tasks read, as far as it is known; may be costly
     */
    NewShuffle(
            int shuffleId,
            int maps,
            int partitions,
            Function<String, Optional<String>> settings,
            Optional<String> unsupported,
            Supplier<OptionalLong> inputBytes) {
        this.shuffleId = shuffleId;
        this.maps = maps;
        this.partitions = partitions;
        this.settings = settings;
        this.unsupported = unsupported;
        this.inputBytes = inputBytes;
    }

    int shuffleId() {
        return shuffleId;
    }

    int maps() {
        return maps;
    }

    int partitions() {
        return partitions;
    }

    /** A setting of the session or the job, by its key; empty when neither has it. */
    Optional<String> setting(String key) {
        return settings.apply(key);
    }

    /** Why Sluice cannot take it; empty when it can. */
    Optional<String> unsupported() {
        return unsupported;
    }

    /** Bytes that the map tasks read; empty when a part of their input does not tell its size. */
    OptionalLong inputBytes() {
        return inputBytes.get();
    }
}
