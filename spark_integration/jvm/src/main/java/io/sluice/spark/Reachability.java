package io.sluice.spark;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;

/**
 * Which executors are there and whether each reaches a TaskManager, by its own last word. Knows
 * neither Spark nor the network. Thread safe; one entry for each executor that is there.
 */
final class Reachability {

    /** What the executors together say. */
    enum Verdict {
        /** At least one reaches a TaskManager; the others are told of it. */
        SOMEBODY,
        /** Executors are there, and none of them reaches any. */
        NOBODY,
        /** None has said anything, for the time that was given or because none is expected. */
        UNKNOWN
    }

    /**
     * An executor's last word.
     *
     * @param taskManagerId the one it reaches, or null
     * @param why why it reaches none, or null
     * @param nanos when it came
     */
    private record Word(String taskManagerId, String why, long nanos) {
        static final Word NOTHING_YET = new Word(null, null, 0);
    }

    /**
     * Executors of an application begin within this time of each other, where there is room for
     * them.
     */
    static final long SETTLE_MILLIS = 5_000;

    private static final int TOLD_EXECUTORS = 3;

    private final int initialExecutors;
    private final long settleNanos;
    private final Map<String, Word> executors = new LinkedHashMap<>();
    private boolean anyEver;
    private boolean waitedInVain;
    private Word lastWord = Word.NOTHING_YET;
    private long newestNanos;

    /**
     * @param initialExecutors how many executors dynamic allocation begins with; negative when
     *     executors are not allocated dynamically, so that some are always to come
     * @param settleMillis how long after the newest executor's start others may follow that reach a
     *     TaskManager when those that are there do not
     */
    Reachability(int initialExecutors, long settleMillis) {
        this.initialExecutors = initialExecutors;
        this.settleNanos = TimeUnit.MILLISECONDS.toNanos(settleMillis);
    }

    synchronized void executorAdded(String executorId) {
        added(executorId, Word.NOTHING_YET);
    }

    synchronized void executorRemoved(String executorId) {
        executors.remove(executorId);
        notifyAll();
    }

    synchronized void reached(String executorId, String taskManagerId) {
        said(executorId, new Word(taskManagerId, null, System.nanoTime()));
    }

    /** Says whether it is news: the executor has not said so the last time. */
    synchronized boolean unreachable(String executorId, String why) {
        Word before = executors.get(executorId);
        said(executorId, new Word(null, why, System.nanoTime()));
        return before == null || before.why() == null;
    }

    private void said(String executorId, Word word) {
        // Its word may overtake the listener event of its start.
        added(executorId, word);
        executors.put(executorId, word);
        lastWord = word;
    }

    private void added(String executorId, Word word) {
        if (executors.putIfAbsent(executorId, word) == null) {
            anyEver = true;
            newestNanos = System.nanoTime();
        }
        waitedInVain = false;
        notifyAll();
    }

    /**
     * Whether executors are there and all say that they reach no TaskManager.
     *
     * @param isGone whether a TaskManager, named by its id, is known to be gone, so that a word on
     *     it is outdated
     */
    synchronized boolean nobody(Predicate<String> isGone) {
        return !executors.isEmpty()
                && executors.values().stream().allMatch(word -> reachesNone(word, isGone));
    }

    /**
     * Whether the last word of all was that an executor reached none, also when that executor is no
     * longer there.
     */
    synchronized boolean lastSaidNobody() {
        return lastWord.why() != null;
    }

    private static boolean reachesNone(Word word, Predicate<String> isGone) {
        return word.why() != null
                || (word.taskManagerId() != null && isGone.test(word.taskManagerId()));
    }

    private boolean somebody(Predicate<String> isGone) {
        return executors.values().stream()
                .anyMatch(
                        word -> word.taskManagerId() != null && !isGone.test(word.taskManagerId()));
    }

    /**
     * Waits until the executors' words decide. A wait that was in vain is not repeated before
     * another executor comes.
     *
     * @param isGone as for {@link #nobody}
     * @param timeoutMillis the longest wait
     * @param maxAgeMillis how old a word may be that an executor reaches none; older ones are
     *     waited for to be said again
     */
    synchronized Verdict await(Predicate<String> isGone, long timeoutMillis, long maxAgeMillis)
            throws InterruptedException {
        long maxAgeNanos = TimeUnit.MILLISECONDS.toNanos(maxAgeMillis);
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        while (true) {
            if (somebody(isGone)) {
                return Verdict.SOMEBODY;
            }
            long now = System.nanoTime();
            long leftNanos = deadline - now;
            boolean nobody = nobody(isGone);
            if (nobody) {
                if (executors.values().stream()
                        .allMatch(
                                word -> word.why() == null || now - word.nanos() <= maxAgeNanos)) {
                    leftNanos = Math.min(leftNanos, newestNanos + settleNanos - now);
                }
            } else if (waitedInVain || !someoneIsExpected()) {
                return Verdict.UNKNOWN;
            }
            if (leftNanos <= 0) {
                waitedInVain = !nobody;
                return nobody ? Verdict.NOBODY : Verdict.UNKNOWN;
            }
            // Rounded up: a wait of zero milliseconds would have no end.
            wait(TimeUnit.NANOSECONDS.toMillis(leftNanos) + 1);
        }
    }

    private boolean someoneIsExpected() {
        return !executors.isEmpty() || initialExecutors < 0 || (initialExecutors > 0 && !anyEver);
    }

    /** What the first executors that reach none have said. */
    synchronized List<String> failures() {
        List<String> told = new ArrayList<>();
        int more = 0;
        for (Map.Entry<String, Word> executor : executors.entrySet()) {
            String why = executor.getValue().why();
            if (why != null && told.size() < TOLD_EXECUTORS) {
                told.add("executor " + executor.getKey() + ": " + why);
            } else if (why != null) {
                more++;
            }
        }
        if (more > 0) {
            told.add("and " + more + " more executors");
        }
        return told;
    }
}
