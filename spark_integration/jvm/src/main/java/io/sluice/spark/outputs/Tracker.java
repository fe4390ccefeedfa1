package io.sluice.spark.outputs;

import io.sluice.client.failover.PlaceDirectory;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/** The part of Spark's map output tracker that concerns the places of map outputs. */
interface Tracker {
    /** Returns the number of map tasks of a shuffle; negative if it is unknown. */
    int mapTasks(int shuffleId);

    /** Returns the id of the TaskManager that has a map output; empty if it is unknown. */
    Optional<String> taskManagerOf(int shuffleId, long attempt);

    /**
     * Returns the map outputs that are at each of the TaskManagers, by shuffle, in one pass over
     * all map outputs. TaskManagers and shuffles without any are left out.
     */
    Map<String, Map<Integer, List<Long>>> outputsOf(Set<String> taskManagerIds);

    /** Returns the map outputs that are at a TaskManager, by shuffle. */
    default Map<Integer, List<Long>> outputsOf(String taskManagerId) {
        return outputsOf(Set.of(taskManagerId)).getOrDefault(taskManagerId, Map.of());
    }

    /** Changes the place of a map output; readers that ask from now on are told this one. */
    void update(int shuffleId, long attempt, PlaceDirectory.Place place);

    /** Forgets those of the map outputs that it knows; returns their number. */
    int unregister(int shuffleId, Collection<Long> attempts);

    /** Called after places were changed: executors have to ask again for those they know. */
    void changed();
}
