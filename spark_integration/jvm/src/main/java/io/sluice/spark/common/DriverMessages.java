package io.sluice.spark.common;

import io.sluice.client.failover.TaskManagerAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;

/**
 * Messages of executors to the driver's plugin. They are arrays of strings, because the RPC threads
 * of either side may not have the class loader of the plugin.
 */
public final class DriverMessages {
    public static final String REACHED = "reached";
    public static final String UNREACHABLE = "unreachable";
    public static final String TASK_UNREACHABLE = "task-unreachable";
    public static final String ENDPOINTS = "endpoints";
    public static final String LOST_OUTPUT = "lost-output";
    public static final String COUNTERS = "counters";
    public static final String REPLICAS = "replicas";
    public static final String UNREADABLE = "unreadable";

    private DriverMessages() {}

    private static String[] message(String type, Object... parts) {
        return Stream.concat(Stream.of(type), Arrays.stream(parts).map(Object::toString))
                .toArray(String[]::new);
    }

    /**
     * Reports which TaskManager an executor uses.
     *
     * @param ownHost the host of both; null if they are on different hosts
     */
    public static String[] reached(
            String executorId, String taskManagerId, String host, int port, String ownHost) {
        return message(
                REACHED, executorId, taskManagerId, host, port, ownHost == null ? "" : ownHost);
    }

    /** Reports that an executor reaches no TaskManager. */
    public static String[] unreachable(String executorId, String why) {
        return message(UNREACHABLE, executorId, why);
    }

    /**
     * Reports that a task fails because its executor reaches no TaskManager. The answer says
     * whether the task's jobs are cancelled.
     */
    public static String[] taskUnreachable(int stageId) {
        return message(TASK_UNREACHABLE, stageId);
    }

    /**
     * Asks for the endpoints of all connected TaskManagers. The answer is an array of HOST:PORT.
     */
    public static String[] endpoints() {
        return message(ENDPOINTS);
    }

    /** Reports the counters of an executor since its last report. */
    public static String[] counters(Map<String, Long> more) {
        List<Object> parts = new ArrayList<>();
        more.forEach((name, number) -> parts.addAll(List.of(name, number)));
        return message(COUNTERS, parts.toArray());
    }

    /**
     * Asks for replicas of map outputs.
     *
     * @param avoided TaskManagers at which reading has failed
     */
    public static String[] replicas(int shuffleId, long[] attempts, Collection<String> avoided) {
        List<Object> parts = new ArrayList<>(List.of(shuffleId, avoided.size()));
        parts.addAll(avoided);
        Arrays.stream(attempts).forEach(parts::add);
        return message(REPLICAS, parts.toArray());
    }

    /** The message of {@link #replicas}, on the driver. */
    public record ReplicasQuestion(int shuffleId, List<Long> attempts, Set<String> avoided) {
        public static ReplicasQuestion read(String[] message) {
            int first = 3 + Integer.parseInt(message[2]);
            return new ReplicasQuestion(
                    Integer.parseInt(message[1]),
                    readAttempts(message, first),
                    Set.copyOf(Arrays.asList(message).subList(3, first)));
        }
    }

    /**
     * The answer to {@link #replicas}.
     *
     * @param isOutdated whether the executor has outdated map statuses
     * @param replicas for each map output a TaskManager, or null
     */
    public record ReplicasAnswer(boolean isOutdated, List<TaskManagerAddress> replicas) {
        private static final int FIELDS = 3;

        /** Returns the message: id, host and port of each replica, or three empty texts. */
        public String[] message() {
            String[] message = new String[1 + FIELDS * replicas.size()];
            Arrays.fill(message, "");
            message[0] = Boolean.toString(isOutdated);
            for (int i = 0; i < replicas.size(); i++) {
                TaskManagerAddress replica = replicas.get(i);
                if (replica != null) {
                    message[1 + FIELDS * i] = replica.taskManagerId();
                    message[2 + FIELDS * i] = replica.host();
                    message[3 + FIELDS * i] = Integer.toString(replica.port());
                }
            }
            return message;
        }

        public static ReplicasAnswer read(String[] message) {
            List<TaskManagerAddress> replicas = new ArrayList<>();
            for (int i = 1; i + FIELDS <= message.length; i += FIELDS) {
                replicas.add(
                        message[i].isEmpty()
                                ? null
                                : new TaskManagerAddress(
                                        message[i],
                                        message[i + 1],
                                        Integer.parseInt(message[i + 2])));
            }
            return new ReplicasAnswer(Boolean.parseBoolean(message[0]), replicas);
        }
    }

    /**
     * Reports that a task fails because it cannot read map outputs from any TaskManager.
     *
     * @param taskManagerId the TaskManager that Spark's tracker had named
     */
    public static String[] unreadable(String taskManagerId, int shuffleId, long[] attempts) {
        List<Object> parts = new ArrayList<>(List.of(taskManagerId, shuffleId));
        Arrays.stream(attempts).forEach(parts::add);
        return message(UNREADABLE, parts.toArray());
    }

    /** The message of {@link #unreadable}, on the driver. */
    public record Unreadable(String taskManagerId, int shuffleId, List<Long> attempts) {
        private static final int FIRST = 3;

        public static Unreadable read(String[] message) {
            return new Unreadable(
                    message[1], Integer.parseInt(message[2]), readAttempts(message, FIRST));
        }
    }

    private static List<Long> readAttempts(String[] message, int first) {
        return Arrays.stream(message).skip(first).map(Long::parseLong).toList();
    }

    /** Asks the driver to unregister one map output. */
    public static String[] lostOutput(int shuffleId, long mapId, int mapIndex) {
        return message(LOST_OUTPUT, shuffleId, mapId, mapIndex);
    }
}
