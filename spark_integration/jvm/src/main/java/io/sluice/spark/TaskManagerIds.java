package io.sluice.spark;

import io.sluice.client.Message;
import io.sluice.client.PlaceDirectory;
import org.apache.spark.storage.BlockManagerId;
import scala.Option;

/** Names TaskManagers in Spark's map statuses, in the form of block managers. */
public final class TaskManagerIds {
    private static final String PREFIX = "sluice-";

    private TaskManagerIds() {}

    public static BlockManagerId location(Message.HelloAck taskManager) {
        return BlockManagerId.apply(
                PREFIX + taskManager.taskManagerId(),
                taskManager.advertisedHost(),
                taskManager.dataPort(),
                Option.empty());
    }

    static BlockManagerId location(PlaceDirectory.Place place) {
        return BlockManagerId.apply(
                PREFIX + place.taskManagerId(), place.host(), place.port(), Option.empty());
    }

    /**
     * Returns whether a map output is at a TaskManager. Outputs of shuffles that fell back are at
     * executors.
     */
    public static boolean isTaskManager(BlockManagerId location) {
        return location.executorId().startsWith(PREFIX);
    }

    /** Returns the TaskManager's own id. */
    public static String taskManagerId(BlockManagerId location) {
        if (!isTaskManager(location)) {
            throw new IllegalStateException(
                    "a map output of a Sluice shuffle is at "
                            + location
                            + ", which is not a TaskManager");
        }
        return location.executorId().substring(PREFIX.length());
    }
}
