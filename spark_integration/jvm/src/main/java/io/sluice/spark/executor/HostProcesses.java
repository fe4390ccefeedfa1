package io.sluice.spark.executor;

import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Remembers how many data processes listen beside each endpoint, so that a task connects to its own
 * process at once. Thread safe.
 */
final class HostProcesses {
    private record Known(int process, int processes) {}

    private final Map<Endpoint, Known> known = new ConcurrentHashMap<>();

    /** A process of a TaskManager, and where it listens. */
    record DataProcess(Endpoint endpoint, int index, int count) {
        /** Returns whether the answer is that of the process expected here. */
        boolean isThat(Message.HelloAck answer) {
            return answer.process() == index && answer.processes() == count;
        }
    }

    /** Records which process has answered at an endpoint. */
    void answered(Endpoint endpoint, Message.HelloAck answer) {
        known.put(endpoint, new Known(answer.process(), answer.processes()));
    }

    /** Forgets the processes, because the TaskManager now has others. */
    void forget(Endpoint endpoint) {
        known.remove(endpoint);
    }

    /**
     * Returns the processes of the TaskManager at an endpoint, starting with that of a task.
     *
     * @param task any number, of which consecutive ones have different processes
     * @return empty if the TaskManager has not answered yet
     */
    List<DataProcess> of(Endpoint endpoint, long task) {
        Known found = known.get(endpoint);
        if (found == null) {
            return List.of();
        }
        int count = found.processes();
        int first = Math.floorMod(task, count);
        List<DataProcess> processes = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            int index = (first + i) % count;
            processes.add(
                    new DataProcess(endpoint.ofProcess(found.process(), index), index, count));
        }
        return processes;
    }

    /** Returns whether a Unix socket of any process exists; false for TCP. */
    boolean hasSocket(Endpoint endpoint) {
        return endpoint.socketExists()
                || of(endpoint, 0).stream().anyMatch(each -> each.endpoint().socketExists());
    }
}
