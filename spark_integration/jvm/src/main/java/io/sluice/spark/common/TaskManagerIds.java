package io.sluice.spark.common;

import io.sluice.client.failover.TaskManagerAddress;
import io.sluice.client.wire.Message;
import org.apache.spark.storage.BlockManagerId;
import scala.Option;

/**
 * Encodes TaskManagers as block managers in Spark's map statuses.
 *
 * <p>Spark's scheduler prefers the host of a block manager for reduce tasks. So a location has the
 * host of an executor that reads the output locally, or a host that cannot exist. The TaskManager's
 * host is then in the topology, which Spark uses only for cached blocks.
 */
public final class TaskManagerIds {
    private static final String PREFIX = "sluice-";
    private static final String NO_HOST = ".invalid";
    private static final char PART = '#';

    /**
     * Number of locations for outputs without a preferred host. Spark prefers a location that has
     * at least a fifth of a reducer's bytes, so it prefers none of them.
     */
    private static final int PARTS = 16;

    private TaskManagerIds() {}

    /**
     * Returns the location of a map output.
     *
     * @param preferredHost the host that Spark's scheduler is to prefer for its readers; null for
     *     none
     */
    public static BlockManagerId location(
            Message.HelloAck taskManager, String preferredHost, long attempt) {
        return location(
                new TaskManagerAddress(
                        taskManager.taskManagerId(),
                        taskManager.advertisedHost(),
                        taskManager.dataPort()),
                preferredHost,
                attempt);
    }

    public static BlockManagerId location(
            TaskManagerAddress address, String preferredHost, long attempt) {
        Hosts hosts = Hosts.of(address, preferredHost, attempt);
        return BlockManagerId.apply(
                PREFIX + address.taskManagerId(),
                hosts.host(),
                address.port(),
                Option.apply(hosts.topology()));
    }

    /**
     * The two hosts in a location.
     *
     * @param host what Spark's scheduler sees
     * @param topology the TaskManager's host, and a number if no host is preferred; null if the
     *     TaskManager's host is {@code host}
     */
    record Hosts(String host, String topology) {
        static Hosts of(TaskManagerAddress address, String preferredHost, long attempt) {
            if (preferredHost == null) {
                String id = address.taskManagerId().replaceAll("[^A-Za-z0-9.-]", "-");
                return new Hosts(
                        PREFIX + id + NO_HOST,
                        address.host() + PART + Math.floorMod(attempt, PARTS));
            }
            return new Hosts(
                    preferredHost, preferredHost.equals(address.host()) ? null : address.host());
        }

        static Hosts of(BlockManagerId location) {
            Option<String> topology = location.topologyInfo();
            return new Hosts(location.host(), topology.isEmpty() ? null : topology.get());
        }

        String ofTaskManager() {
            if (topology == null) {
                return host;
            }
            int part = topology.indexOf(PART);
            return part < 0 ? topology : topology.substring(0, part);
        }

        boolean isPreferred() {
            return topology == null || topology.indexOf(PART) < 0;
        }
    }

    /** Returns the same location without a preferred host. */
    public static BlockManagerId withoutHost(BlockManagerId location, long attempt) {
        return location(
                new TaskManagerAddress(taskManagerId(location), host(location), location.port()),
                null,
                attempt);
    }

    /** Returns the host at which the TaskManager of a map output listens. */
    public static String host(BlockManagerId location) {
        return Hosts.of(location).ofTaskManager();
    }

    /** Returns whether Spark's scheduler prefers a host for the readers of a map output. */
    public static boolean prefersHost(BlockManagerId location) {
        return Hosts.of(location).isPreferred();
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
