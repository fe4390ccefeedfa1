package io.sluice.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * Builds the messages that executors send to the driver's plugin. They are arrays of strings, which
 * both sides can read whatever class loader their RPC threads have.
 */
final class DriverMessages {
    static final String REACHED = "reached";
    static final String UNREACHABLE = "unreachable";
    static final String TASK_UNREACHABLE = "task-unreachable";
    static final String ENDPOINTS = "endpoints";
    static final String LOST_OUTPUT = "lost-output";
    static final String COUNTERS = "counters";

    private DriverMessages() {}

    /** Says that an executor uses the TaskManager that other hosts reach at {@code host:port}. */
    static String[] reached(String executorId, String taskManagerId, String host, int port) {
        return new String[] {REACHED, executorId, taskManagerId, host, Integer.toString(port)};
    }

    /** Says that an executor reaches no TaskManager. */
    static String[] unreachable(String executorId, String why) {
        return new String[] {UNREACHABLE, executorId, why};
    }

    /**
     * Says that a task is about to fail because its executor reaches no TaskManager. The answer
     * says whether the task's jobs are cancelled.
     */
    static String[] taskUnreachable(int stageId) {
        return new String[] {TASK_UNREACHABLE, Integer.toString(stageId)};
    }

    /**
     * Asks for all endpoints to which the driver has a connection. The answer is an array of
     * HOST:PORT.
     */
    static String[] endpoints() {
        return new String[] {ENDPOINTS};
    }

    /** Reports the counts of an executor since its last report. */
    static String[] counters(Map<String, Long> more) {
        List<String> message = new ArrayList<>(List.of(COUNTERS));
        more.forEach(
                (name, number) -> {
                    message.add(name);
                    message.add(Long.toString(number));
                });
        return message.toArray(new String[0]);
    }

    /** Asks the driver to forget one map output. */
    static String[] lostOutput(int shuffleId, long mapId, int mapIndex) {
        return new String[] {
            LOST_OUTPUT,
            Integer.toString(shuffleId),
            Long.toString(mapId),
            Integer.toString(mapIndex)
        };
    }
}
