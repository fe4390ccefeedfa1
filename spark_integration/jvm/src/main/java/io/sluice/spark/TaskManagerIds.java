package io.sluice.spark;

import io.sluice.client.Message;
import org.apache.spark.storage.BlockManagerId;
import scala.Option;

/** TaskManagers as Spark's map statuses name them: a block manager that is none. */
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

    /**
     * Whether a map output is at a TaskManager; those of shuffles that fell back are at executors.
     */
    public static boolean isTaskManager(BlockManagerId location) {
        return location.executorId().startsWith(PREFIX);
    }

    /** The TaskManager's own id. */
    public static String taskManagerId(BlockManagerId location) {
        if (!isTaskManager(location)) {
            throw new IllegalStateException(
                    "a map output of a Sluice shuffle is at "
                            + location
                            + ", which is no TaskManager");
        }
        return location.executorId().substring(PREFIX.length());
    }
}
