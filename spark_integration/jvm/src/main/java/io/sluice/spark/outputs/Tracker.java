package io.sluice.spark.outputs;

import io.sluice.client.failover.TaskManagerAddress;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/** The part of Spark's map output tracker that {@link OutputRegistry} needs. */
interface Tracker {
    /** Returns the number of map tasks of a shuffle; negative if it is unknown. */
    int mapTasks(int shuffleId);

    /** Returns the id of the TaskManager that has a map output; empty if it is unknown. */
    Optional<String> taskManagerOf(int shuffleId, long attempt);

    /** Returns the map outputs of each TaskManager by shuffle, in one pass; none is empty. */
    Map<String, Map<Integer, List<Long>>> outputsOf(Set<String> taskManagerIds);

    /** Returns the map outputs of a TaskManager by shuffle. */
    default Map<Integer, List<Long>> outputsOf(String taskManagerId) {
        return outputsOf(Set.of(taskManagerId)).getOrDefault(taskManagerId, Map.of());
    }

    /** Changes the location of a map output, for readers that ask later. */
    void update(int shuffleId, long attempt, TaskManagerAddress address);

    /** Unregisters map outputs; returns how many were registered. */
    int unregister(int shuffleId, Collection<Long> attempts);

    /** Called after updates, so that executors ask again. */
    void changed();
}
