package io.sluice.spark.driver;

import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.ReachedProcesses;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;

/** Tracks, by its latest report, whether each live executor reaches a TaskManager. Thread safe. */
public final class Reachability {

    /** The conclusion from the reports of all executors. */
    enum Verdict {
        /** At least one executor reaches a TaskManager, whose address the others get. */
        REACHABLE,
        /** There are executors, and none of them reaches a TaskManager. */
        UNREACHABLE,
        /** No executor has reported in time, or none is expected. */
        UNKNOWN
    }

    /**
     * The latest report of an executor.
     *
     * @param reached the data processes it reaches
     * @param why why it reaches none, or null
     * @param nanos when the report arrived
     */
    private record Report(ReachedProcesses reached, String why, long nanos) {
        static final Report NONE_YET = new Report(ReachedProcesses.NONE, null, 0);

        boolean reachesAny(Predicate<String> isGone) {
            return !reached.ids().values().stream().allMatch(isGone);
        }

        boolean reachesNone(Predicate<String> isGone) {
            return why != null || (!reached.ids().isEmpty() && !reachesAny(isGone));
        }
    }

    /** The executors of an application usually start within this time of each other. */
    public static final long SETTLE_MILLIS = 5_000;

    private static final int MAX_REPORTED_EXECUTORS = 3;

    private final int initialExecutors;
    private final long settleNanos;
    private final Map<String, Report> executors = new LinkedHashMap<>();
    private boolean hadExecutors;
    private boolean timedOut;
    private Report lastReport = Report.NONE_YET;
    private long newestNanos;

    /**
     * @param initialExecutors number of executors that dynamic allocation starts with; negative
     *     without dynamic allocation
     * @param settleMillis how long to wait for more executors after the newest one started
     */
    public Reachability(int initialExecutors, long settleMillis) {
        this.initialExecutors = initialExecutors;
        this.settleNanos = TimeUnit.MILLISECONDS.toNanos(settleMillis);
    }

    synchronized void executorAdded(String executorId) {
        added(executorId, Report.NONE_YET);
    }

    synchronized void executorRemoved(String executorId) {
        executors.remove(executorId);
        notifyAll();
    }

    synchronized void reached(DriverMessages.Reached reached) {
        Report before = executors.getOrDefault(reached.executorId(), Report.NONE_YET);
        store(
                reached.executorId(),
                new Report(before.reached().with(reached), null, System.nanoTime()));
    }

    /**
     * Records that an executor reaches no TaskManager; returns whether its previous report said
     * otherwise.
     */
    synchronized boolean unreachable(String executorId, String why) {
        Report before = executors.get(executorId);
        store(executorId, new Report(ReachedProcesses.NONE, why, System.nanoTime()));
        return before == null || before.why() == null;
    }

    private void store(String executorId, Report report) {
        // The report may arrive before the event of the executor's start.
        added(executorId, report);
        executors.put(executorId, report);
        lastReport = report;
    }

    private void added(String executorId, Report report) {
        if (executors.putIfAbsent(executorId, report) == null) {
            hadExecutors = true;
            newestNanos = System.nanoTime();
        }
        timedOut = false;
        notifyAll();
    }

    /**
     * Returns whether there are executors and all of them report that they reach no TaskManager.
     *
     * @param isGone whether a TaskManager is gone, so that reports about it are outdated
     */
    synchronized boolean noneReachable(Predicate<String> isGone) {
        return !executors.isEmpty()
                && executors.values().stream().allMatch(report -> report.reachesNone(isGone));
    }

    /** Returns whether the latest report, perhaps of a removed executor, said unreachable. */
    synchronized boolean lastReportedUnreachable() {
        return lastReport.why() != null;
    }

    private boolean anyReachable(Predicate<String> isGone) {
        return executors.values().stream().anyMatch(report -> report.reachesAny(isGone));
    }

    /**
     * Waits for a verdict. After a timeout it does not wait again before another executor starts.
     *
     * @param isGone as for {@link #noneReachable}
     * @param maxAgeMillis maximum age of a report that no TaskManager is reachable
     */
    synchronized Verdict await(Predicate<String> isGone, long timeoutMillis, long maxAgeMillis)
            throws InterruptedException {
        long maxAgeNanos = TimeUnit.MILLISECONDS.toNanos(maxAgeMillis);
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        while (true) {
            if (anyReachable(isGone)) {
                return Verdict.REACHABLE;
            }
            long now = System.nanoTime();
            long leftNanos = deadline - now;
            boolean noneReachable = noneReachable(isGone);
            if (noneReachable) {
                if (executors.values().stream()
                        .allMatch(
                                report ->
                                        report.why() == null
                                                || now - report.nanos() <= maxAgeNanos)) {
                    leftNanos = Math.min(leftNanos, newestNanos + settleNanos - now);
                }
            } else if (timedOut || !isExecutorExpected()) {
                return Verdict.UNKNOWN;
            }
            if (leftNanos <= 0) {
                timedOut = !noneReachable;
                return noneReachable ? Verdict.UNREACHABLE : Verdict.UNKNOWN;
            }
            // Rounded up: wait(0) has no timeout.
            wait(TimeUnit.NANOSECONDS.toMillis(leftNanos) + 1);
        }
    }

    private boolean isExecutorExpected() {
        return !executors.isEmpty()
                || initialExecutors < 0
                || (initialExecutors > 0 && !hadExecutors);
    }

    /** Returns the reasons of the first executors that reach no TaskManager. */
    synchronized List<String> failures() {
        List<String> reported = new ArrayList<>();
        int more = 0;
        for (Map.Entry<String, Report> executor : executors.entrySet()) {
            String why = executor.getValue().why();
            if (why != null && reported.size() < MAX_REPORTED_EXECUTORS) {
                reported.add("executor " + executor.getKey() + ": " + why);
            } else if (why != null) {
                more++;
            }
        }
        if (more > 0) {
            reported.add("and " + more + " more executors");
        }
        return reported;
    }
}
