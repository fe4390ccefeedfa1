package io.sluice.spark.common;

import io.sluice.client.failover.PlaceDirectory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Builds the messages that executors send to the driver's plugin. They are arrays of strings, which
 * both sides can read whatever class loader their RPC threads have.
 */
public final class DriverMessages {
    public static final String REACHED = "reached";
    public static final String UNREACHABLE = "unreachable";
    public static final String TASK_UNREACHABLE = "task-unreachable";
    public static final String ENDPOINTS = "endpoints";
    public static final String LOST_OUTPUT = "lost-output";
    public static final String COUNTERS = "counters";
    public static final String PLACES = "places";
    public static final String LEAVE = "leave";

    private DriverMessages() {}

    /**
     * Says that an executor uses the TaskManager that other hosts reach at {@code host:port}.
     *
     * @param ownHost the executor's host if the TaskManager is on it; else null
     */
    public static String[] reached(
            String executorId, String taskManagerId, String host, int port, String ownHost) {
        return new String[] {
            REACHED,
            executorId,
            taskManagerId,
            host,
            Integer.toString(port),
            ownHost == null ? "" : ownHost
        };
    }

    /** Says that an executor reaches no TaskManager. */
    public static String[] unreachable(String executorId, String why) {
        return new String[] {UNREACHABLE, executorId, why};
    }

    /**
     * Says that a task is about to fail because its executor reaches no TaskManager. The answer
     * says whether the task's jobs are cancelled.
     */
    public static String[] taskUnreachable(int stageId) {
        return new String[] {TASK_UNREACHABLE, Integer.toString(stageId)};
    }

    /**
     * Asks for all endpoints to which the driver has a connection. The answer is an array of
     * HOST:PORT.
     */
    public static String[] endpoints() {
        return new String[] {ENDPOINTS};
    }

    /** Reports the counts of an executor since its last report. */
    public static String[] counters(Map<String, Long> more) {
        List<String> message = new ArrayList<>(List.of(COUNTERS));
        more.forEach(
                (name, number) -> {
                    message.add(name);
                    message.add(Long.toString(number));
                });
        return message.toArray(new String[0]);
    }

    /**
     * Asks at which TaskManagers map outputs can be read.
     *
     * @param avoided TaskManagers at which reading has failed
     */
    public static String[] places(int shuffleId, long[] attempts, Collection<String> avoided) {
        List<String> message = new ArrayList<>(List.of(PLACES, Integer.toString(shuffleId)));
        message.add(Integer.toString(avoided.size()));
        message.addAll(avoided);
        for (long attempt : attempts) {
            message.add(Long.toString(attempt));
        }
        return message.toArray(new String[0]);
    }

    /** The question of {@link #places}, on the driver. */
    public record PlacesQuestion(int shuffleId, List<Long> attempts, Set<String> avoided) {
        public static PlacesQuestion read(String[] message) {
            int first = 3 + Integer.parseInt(message[2]);
            return new PlacesQuestion(
                    Integer.parseInt(message[1]),
                    readAttempts(message, first),
                    Set.copyOf(Arrays.asList(message).subList(3, first)));
        }
    }

    /**
     * The answer to {@link #places}.
     *
     * @param isNews whether Spark's tracker names other places than those to avoid, so that what an
     *     executor knows is outdated
     * @param places for each map output its place, or null
     */
    public record PlacesAnswer(boolean isNews, List<PlaceDirectory.Place> places) {
        private static final int FIELDS = 3;

        /** Returns the message: id, host and port of each place, or three empty texts. */
        public String[] message() {
            String[] message = new String[1 + FIELDS * places.size()];
            Arrays.fill(message, "");
            message[0] = Boolean.toString(isNews);
            for (int i = 0; i < places.size(); i++) {
                PlaceDirectory.Place place = places.get(i);
                if (place != null) {
                    message[1 + FIELDS * i] = place.taskManagerId();
                    message[2 + FIELDS * i] = place.host();
                    message[3 + FIELDS * i] = Integer.toString(place.port());
                }
            }
            return message;
        }

        public static PlacesAnswer read(String[] message) {
            List<PlaceDirectory.Place> places = new ArrayList<>();
            for (int i = 1; i + FIELDS <= message.length; i += FIELDS) {
                places.add(
                        message[i].isEmpty()
                                ? null
                                : new PlaceDirectory.Place(
                                        message[i],
                                        message[i + 1],
                                        Integer.parseInt(message[i + 2])));
            }
            return new PlacesAnswer(Boolean.parseBoolean(message[0]), places);
        }
    }

    /**
     * Says that a task is about to fail because map outputs can be read nowhere. Spark then forgets
     * all of a TaskManager; it should be only what is nowhere else.
     *
     * @param taskManagerId the place that Spark's tracker had given to the task
     */
    public static String[] leave(String taskManagerId, int shuffleId, long[] attempts) {
        List<String> message = new ArrayList<>(List.of(LEAVE, taskManagerId));
        message.add(Integer.toString(shuffleId));
        for (long attempt : attempts) {
            message.add(Long.toString(attempt));
        }
        return message.toArray(new String[0]);
    }

    /** The message of {@link #leave}, on the driver. */
    public record Leave(String taskManagerId, int shuffleId, List<Long> attempts) {
        private static final int FIRST = 3;

        public static Leave read(String[] message) {
            return new Leave(
                    message[1], Integer.parseInt(message[2]), readAttempts(message, FIRST));
        }
    }

    private static List<Long> readAttempts(String[] message, int first) {
        List<Long> attempts = new ArrayList<>();
        for (int i = first; i < message.length; i++) {
            attempts.add(Long.parseLong(message[i]));
        }
        return attempts;
    }

    /** Asks the driver to forget one map output. */
    public static String[] lostOutput(int shuffleId, long mapId, int mapIndex) {
        return new String[] {
            LOST_OUTPUT,
            Integer.toString(shuffleId),
            Long.toString(mapId),
            Integer.toString(mapIndex)
        };
    }
}
