package io.sluice.spark.common;

import io.sluice.client.failover.ReplicaLocator;
import io.sluice.client.failover.TaskManagerAddress;
import io.sluice.client.wire.DataProcesses;
import io.sluice.client.wire.Message;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Stream;

/**
 * Messages of executors to the driver's plugin. They are arrays of strings, because the RPC threads
 * of either side may not have the class loader of the plugin.
 */
public final class DriverMessages {
    public static final String REACHED = "reached";
    public static final String UNREACHABLE = "unreachable";
    public static final String TASK_UNREACHABLE = "task-unreachable";
    public static final String MEMBERS = "members";
    public static final String LOST_OUTPUT = "lost-output";
    public static final String COUNTERS = "counters";
    public static final String CREDIT_WAITS = "credit-waits";
    public static final String REPLICAS = "replicas";
    public static final String UNREADABLE = "unreadable";

    private DriverMessages() {}

    private static String[] message(String type, Object... parts) {
        return Stream.concat(Stream.of(type), Arrays.stream(parts).map(Object::toString))
                .toArray(String[]::new);
    }

    /**
     * Reports that an executor uses a data process of a TaskManager.
     *
     * @param taskManager all processes of that TaskManager
     * @param ownHost the host of both; null if they are on different hosts
     */
    public record Reached(
            String executorId,
            String taskManagerId,
            DataProcesses taskManager,
            int process,
            String ownHost) {

        public static Reached of(String executorId, Message.HelloAck answer, String ownHost) {
            return new Reached(
                    executorId,
                    answer.taskManagerId(),
                    DataProcesses.of(answer),
                    answer.process(),
                    ownHost);
        }

        public static Reached read(String[] message) {
            return new Reached(
                    message[1],
                    message[2],
                    new DataProcesses(
                            message[3], Integer.parseInt(message[4]), Integer.parseInt(message[5])),
                    Integer.parseInt(message[6]),
                    message[7].isEmpty() ? null : message[7]);
        }

        public String[] message() {
            return DriverMessages.message(
                    REACHED,
                    executorId,
                    taskManagerId,
                    taskManager.host(),
                    taskManager.firstPort(),
                    taskManager.count(),
                    process,
                    ownHost == null ? "" : ownHost);
        }

        /** Returns the advertised port of the process. */
        public int port() {
            return taskManager.portOf(process);
        }
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
     * Asks for the TaskManagers that the driver is connected to.
     *
     * @param version the version that the executor has; 0 for none
     */
    public static String[] members(long version) {
        return message(MEMBERS, version);
    }

    /** The answer to {@link #members}: all members, or none if the executor has the version. */
    public record MembersAnswer(long version, List<Member> members) {
        /** Returns the whole message. */
        public String[] message() {
            List<String> message = new ArrayList<>(List.of(Long.toString(version)));
            members.forEach(each -> each.write(message));
            return message.toArray(String[]::new);
        }

        /** Returns the message for an executor that already has the version. */
        public String[] unchanged() {
            return new String[] {Long.toString(version)};
        }

        public static MembersAnswer read(String[] message) {
            return new MembersAnswer(Long.parseLong(message[0]), Member.read(message, 1));
        }
    }

    /** Reports the counters of an executor since its last report. */
    public static String[] counters(Map<String, Long> more) {
        List<Object> parts = new ArrayList<>();
        more.forEach((name, number) -> parts.addAll(List.of(name, number)));
        return message(COUNTERS, parts.toArray());
    }

    /** Reports how long map tasks waited for credit since the last report, by stage. */
    public static String[] creditWaits(Map<Integer, Long> nanos) {
        List<Object> parts = new ArrayList<>();
        nanos.forEach((stageId, wait) -> parts.addAll(List.of(stageId, wait)));
        return message(CREDIT_WAITS, parts.toArray());
    }

    /** Reads the message of {@link #creditWaits}. */
    public static Map<Integer, Long> readCreditWaits(String[] message) {
        Map<Integer, Long> nanos = new TreeMap<>();
        for (int i = 1; i + 1 < message.length; i += 2) {
            nanos.put(Integer.parseInt(message[i]), Long.parseLong(message[i + 1]));
        }
        return nanos;
    }

    /**
     * Asks for replicas of map outputs.
     *
     * @param avoided TaskManagers at which reading has failed
     * @param failed the last of them and its address; null if it is not known
     */
    public static String[] replicas(
            int shuffleId, long[] attempts, Collection<String> avoided, TaskManagerAddress failed) {
        List<Object> parts = new ArrayList<>(List.of(shuffleId));
        parts.add(failed == null ? "" : failed.taskManagerId());
        parts.add(failed == null ? "" : failed.host());
        parts.add(failed == null ? 0 : failed.port());
        parts.add(avoided.size());
        parts.addAll(avoided);
        Arrays.stream(attempts).forEach(parts::add);
        return message(REPLICAS, parts.toArray());
    }

    /** The message of {@link #replicas}, on the driver. */
    public record ReplicasQuestion(
            int shuffleId, List<Long> attempts, Set<String> avoided, TaskManagerAddress failed) {
        private static final int BEFORE_AVOIDED = 6;

        public static ReplicasQuestion read(String[] message) {
            int first = BEFORE_AVOIDED + Integer.parseInt(message[BEFORE_AVOIDED - 1]);
            return new ReplicasQuestion(
                    Integer.parseInt(message[1]),
                    readAttempts(message, first),
                    Set.copyOf(Arrays.asList(message).subList(BEFORE_AVOIDED, first)),
                    message[2].isEmpty()
                            ? null
                            : new TaskManagerAddress(
                                    message[2], message[3], Integer.parseInt(message[4])));
        }
    }

    /**
     * The answer to {@link #replicas}.
     *
     * @param isOutdated whether the executor has outdated map statuses
     * @param replicas a TaskManager for each map output, and the avoided ones that are away
     */
    public record ReplicasAnswer(boolean isOutdated, ReplicaLocator.Replicas replicas) {
        private static final int FIELDS = 3;

        /**
         * Returns the message: number and ids of those that are away; id, host and port of each
         * replica, or three empty texts.
         */
        public String[] message() {
            List<String> message = new ArrayList<>();
            message.add(Boolean.toString(isOutdated));
            message.add(Integer.toString(replicas.gone().size()));
            message.addAll(replicas.gone());
            for (TaskManagerAddress replica : replicas.addresses()) {
                if (replica == null) {
                    message.addAll(List.of("", "", ""));
                } else {
                    message.add(replica.taskManagerId());
                    message.add(replica.host());
                    message.add(Integer.toString(replica.port()));
                }
            }
            return message.toArray(String[]::new);
        }

        public static ReplicasAnswer read(String[] message) {
            int first = 2 + Integer.parseInt(message[1]);
            List<TaskManagerAddress> replicas = new ArrayList<>();
            for (int i = first; i + FIELDS <= message.length; i += FIELDS) {
                replicas.add(
                        message[i].isEmpty()
                                ? null
                                : new TaskManagerAddress(
                                        message[i],
                                        message[i + 1],
                                        Integer.parseInt(message[i + 2])));
            }
            return new ReplicasAnswer(
                    Boolean.parseBoolean(message[0]),
                    new ReplicaLocator.Replicas(
                            replicas, Set.copyOf(Arrays.asList(message).subList(2, first))));
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
