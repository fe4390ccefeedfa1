package io.sluice.spark.outputs;

import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.ReachedProcesses;
import io.sluice.spark.settings.SluiceSettings.LocalityMode;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Decides on the driver whether reduce tasks prefer the hosts that have their input. Thread safe.
 *
 * <p>Spark delays a task for {@code spark.locality.wait} to run it on a preferred host, and short
 * tasks renew the delay. If only some hosts have a TaskManager, all reduce tasks crowd there. So
 * hosts are preferred only if each executor has a TaskManager on its own node, or on its own host
 * if nodes are not known.
 */
public final class Locality {

    /**
     * The latest report of an executor.
     *
     * @param reached the data processes that it uses; none before its first report
     * @param host the executor's host; null if they are on different nodes
     */
    private record Report(ReachedProcesses reached, String host) {
        static final Report NONE_YET = new Report(ReachedProcesses.NONE, null);

        boolean isRemote() {
            return !reached.ids().isEmpty() && host == null;
        }
    }

    private final LocalityMode mode;
    private final Runnable whenRemote;
    private final Map<String, Report> executors = new LinkedHashMap<>();

    /**
     * @param whenRemote called when the first executor reports a TaskManager on another host
     */
    public Locality(LocalityMode mode, Runnable whenRemote) {
        this.mode = mode;
        this.whenRemote = whenRemote;
    }

    public synchronized void executorAdded(String executorId) {
        // The report may arrive before this event.
        executors.putIfAbsent(executorId, Report.NONE_YET);
    }

    public synchronized void executorRemoved(String executorId) {
        executors.remove(executorId);
    }

    /** Records which TaskManager an executor uses. */
    public void reached(DriverMessages.Reached reached) {
        boolean first;
        synchronized (this) {
            boolean before = hidesHosts();
            executors.compute(
                    reached.executorId(),
                    (id, last) ->
                            new Report(
                                    (last == null ? Report.NONE_YET : last).reached().with(reached),
                                    reached.ownHost()));
            first = !before && hidesHosts();
        }
        if (first) {
            whenRemote.run();
        }
    }

    /** Returns whether new map outputs name their hosts. */
    public synchronized boolean prefersHosts() {
        return switch (mode) {
            case NEVER -> false;
            case ALWAYS -> true;
            case AUTO ->
                    !executors.isEmpty()
                            && executors.values().stream().allMatch(each -> each.host() != null);
        };
    }

    /** Returns whether map outputs must no longer name their hosts. */
    public synchronized boolean hidesHosts() {
        return mode == LocalityMode.AUTO && executors.values().stream().anyMatch(Report::isRemote);
    }

    /**
     * Returns the preferred host for a map output of a TaskManager; null for none. If several
     * executors on one node each have their own host, the map outputs are divided among them.
     */
    public synchronized String hostOf(String taskManagerId, long attempt) {
        if (!prefersHosts()) {
            return null;
        }
        List<String> hosts =
                executors.values().stream()
                        .filter(each -> each.reached().hasId(taskManagerId) && each.host() != null)
                        .map(Report::host)
                        .distinct()
                        .toList();
        return hosts.isEmpty() ? null : hosts.get(Math.floorMod(attempt, hosts.size()));
    }
}
