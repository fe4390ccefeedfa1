package io.sluice.spark.registration;

import io.sluice.spark.settings.CallerSettings;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.spark.ShuffleDependency;

/** Describes a shuffle that is being registered, on the driver. */
public final class NewShuffle {
    private final int shuffleId;
    private final int maps;
    private final int partitions;
    private final Function<String, Optional<String>> settings;
    private final Optional<String> unsupported;
    private final Supplier<OptionalLong> inputBytes;

    /**
     * Describes a shuffle that the calling thread registers; the parameters are those of the
     * constructor.
     */
    public static NewShuffle of(
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
     * @param settings looks up a setting of the session or the job that registers the shuffle
     * @param unsupported why Sluice cannot take the shuffle; empty if it can
     * @param inputBytes computes the size of the map tasks' input, if it is known; may be expensive
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

    public int shuffleId() {
        return shuffleId;
    }

    int maps() {
        return maps;
    }

    int partitions() {
        return partitions;
    }

    /** Returns a setting of the session or the job by its key; empty if neither has it. */
    Optional<String> setting(String key) {
        return settings.apply(key);
    }

    /** Returns why Sluice cannot take the shuffle; empty if it can. */
    Optional<String> unsupported() {
        return unsupported;
    }

    /**
     * Returns the bytes that the map tasks read; empty if the size is unknown for a part of their
     * input.
     */
    OptionalLong inputBytes() {
        return inputBytes.get();
    }
}
