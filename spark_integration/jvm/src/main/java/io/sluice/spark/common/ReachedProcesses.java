package io.sluice.spark.common;

import io.sluice.client.wire.DataProcesses;
import java.util.HashMap;
import java.util.Map;

/**
 * The data processes that an executor has reached of the TaskManager it uses.
 *
 * @param taskManager null if it has reached none
 * @param ids the id of each process reached, by its index; a new id replaces that of a process that
 *     has lost its directories
 */
public record ReachedProcesses(DataProcesses taskManager, Map<Integer, String> ids) {
    public static final ReachedProcesses NONE = new ReachedProcesses(null, Map.of());

    /** Adds a process. Those of another TaskManager are forgotten: it is no longer used. */
    public ReachedProcesses with(DriverMessages.Reached reached) {
        Map<Integer, String> more =
                reached.taskManager().equals(taskManager) ? new HashMap<>(ids) : new HashMap<>();
        more.put(reached.process(), reached.taskManagerId());
        return new ReachedProcesses(reached.taskManager(), Map.copyOf(more));
    }

    /** Returns whether a process of the TaskManager has the given id. */
    public boolean hasId(String taskManagerId) {
        return ids.containsValue(taskManagerId);
    }
}
