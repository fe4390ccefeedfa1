package io.sluice.spark.outputs;

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Decides on the driver whether reduce tasks prefer the hosts that have their input.
 *
 * <p>Spark holds a task back for {@code spark.locality.wait} to run it on a host that it prefers,
 * and short tasks renew the wait. If only some hosts have a TaskManager, all reduce tasks crowd
 * these hosts while the others are idle. So hosts are preferred only if each executor has a
 * TaskManager on its own host.
 *
 * <p>Knows neither Spark nor the network. Thread safe; there is one entry for each live executor.
 */
public final class Locality {

    /** The setting {@code spark.sluice.reader.locality}. */
    public enum Mode {
        /** Prefer hosts if each executor has a TaskManager on its host. */
        AUTO,
        /** Prefer the hosts that have the data. */
        ALWAYS,
        /** Prefer no host. */
        NEVER
    }

    /**
     * The latest report of an executor.
     *
     * @param taskManagerId the TaskManager that it uses; null before its first report
     * @param host the executor's host if the TaskManager is on it; else null
     */
    private record Report(String taskManagerId, String host) {
        static final Report NONE_YET = new Report(null, null);

        boolean isRemote() {
            return taskManagerId != null && host == null;
        }
    }

    private final Mode mode;
    private final Runnable whenRemote;
    private final Map<String, Report> executors = new LinkedHashMap<>();

    /**
     * @param whenRemote called when the first executor reports a TaskManager on another host, by
     *     the thread that records the report
     */
    public Locality(Mode mode, Runnable whenRemote) {
        this.mode = mode;
        this.whenRemote = whenRemote;
    }

    public synchronized void executorAdded(String executorId) {
        // The report may arrive before the listener event of the executor's start.
        executors.putIfAbsent(executorId, Report.NONE_YET);
    }

    public synchronized void executorRemoved(String executorId) {
        executors.remove(executorId);
    }

    /**
     * Records which TaskManager an executor uses.
     *
     * @param host the executor's host if the TaskManager is on it; else null
     */
    public void reached(String executorId, String taskManagerId, String host) {
        boolean first;
        synchronized (this) {
            boolean before = hidesHosts();
            executors.put(executorId, new Report(taskManagerId, host));
            first = !before && hidesHosts();
        }
        if (first) {
            whenRemote.run();
        }
    }

    /** Returns whether map outputs that are written now name the hosts that have them. */
    public synchronized boolean prefersHosts() {
        return switch (mode) {
            case NEVER -> false;
            case ALWAYS -> true;
            case AUTO ->
                    !executors.isEmpty()
                            && executors.values().stream().allMatch(each -> each.host() != null);
        };
    }

    /**
     * Returns whether map outputs that name their hosts must no longer do so. An executor that has
     * not reported yet does not cause it.
     */
    public synchronized boolean hidesHosts() {
        return mode == Mode.AUTO && executors.values().stream().anyMatch(Report::isRemote);
    }

    /**
     * Returns the host to prefer for map outputs of a TaskManager: that of an executor beside it.
     *
     * @return null for none
     */
    public synchronized String hostOf(String taskManagerId) {
        if (!prefersHosts()) {
            return null;
        }
        return executors.values().stream()
                .filter(each -> taskManagerId.equals(each.taskManagerId()) && each.host() != null)
                .map(Report::host)
                .findFirst()
                .orElse(null);
    }
}
