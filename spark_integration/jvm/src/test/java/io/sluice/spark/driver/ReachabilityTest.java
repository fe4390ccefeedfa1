package io.sluice.spark.driver;

import static io.sluice.spark.driver.Reachability.Verdict.REACHABLE;
import static io.sluice.spark.driver.Reachability.Verdict.UNKNOWN;
import static io.sluice.spark.driver.Reachability.Verdict.UNREACHABLE;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.wire.DataProcesses;
import io.sluice.spark.common.DriverMessages;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class ReachabilityTest {
    private static final int STATIC = -1;
    private static final long LONG_MILLIS = 300_000;
    private static final Predicate<String> NONE_GONE = Set.<String>of()::contains;

    private static DriverMessages.Reached reached(
            String executorId, String id, int process, int processes) {
        DataProcesses taskManager = new DataProcesses("host", 7337, processes);
        return new DriverMessages.Reached(executorId, id, taskManager, process, null);
    }

    private static CompletableFuture<Reachability.Verdict> waiting(Reachability reachability) {
        return CompletableFuture.supplyAsync(
                () -> {
                    try {
                        return reachability.await(NONE_GONE, LONG_MILLIS, LONG_MILLIS);
                    } catch (InterruptedException e) {
                        throw new IllegalStateException(e);
                    }
                });
    }

    @Test
    void theFirstExecutorThatReachesOneEndsTheWait() throws Exception {
        Reachability reachability = new Reachability(STATIC, LONG_MILLIS);
        CompletableFuture<Reachability.Verdict> verdict = waiting(reachability);
        reachability.executorAdded("0");
        reachability.executorAdded("1");
        reachability.unreachable("0", "no socket");
        assertFalse(verdict.isDone());
        reachability.reached(reached("1", "tm", 0, 1));
        assertEquals(REACHABLE, verdict.get(30, TimeUnit.SECONDS));
    }

    @Test
    void theVerdictIsUnreachableOnlyAfterAllHaveReported() throws Exception {
        Reachability reachability = new Reachability(STATIC, 0);
        CompletableFuture<Reachability.Verdict> verdict = waiting(reachability);
        reachability.executorAdded("0");
        reachability.executorAdded("1");
        reachability.unreachable("0", "no socket");
        assertFalse(reachability.noneReachable(NONE_GONE));
        assertFalse(verdict.isDone());
        reachability.unreachable("1", "refused");
        assertEquals(UNREACHABLE, verdict.get(30, TimeUnit.SECONDS));
        assertEquals(
                List.of("executor 0: no socket", "executor 1: refused"), reachability.failures());
    }

    @Test
    void theVerdictComesWhenTheLastSilentExecutorLeaves() throws Exception {
        Reachability reachability = new Reachability(STATIC, 0);
        reachability.executorAdded("0");
        reachability.executorAdded("1");
        reachability.unreachable("0", "no socket");
        CompletableFuture<Reachability.Verdict> verdict = waiting(reachability);
        reachability.executorRemoved("1");
        assertEquals(UNREACHABLE, verdict.get(30, TimeUnit.SECONDS));
    }

    @Test
    void otherExecutorsMayStartForAWhile() throws Exception {
        Reachability reachability = new Reachability(STATIC, LONG_MILLIS);
        reachability.unreachable("0", "no socket");
        CompletableFuture<Reachability.Verdict> verdict = waiting(reachability);
        assertTrue(reachability.noneReachable(NONE_GONE));
        assertFalse(verdict.isDone());
        reachability.reached(reached("0", "tm", 0, 1));
        assertEquals(REACHABLE, verdict.get(30, TimeUnit.SECONDS));
    }

    @Test
    void anOldReportHasToBeRepeated() throws Exception {
        Reachability reachability = new Reachability(STATIC, 0);
        assertTrue(reachability.unreachable("0", "no socket"));
        long began = System.nanoTime();
        // No report is that young.
        assertEquals(UNREACHABLE, reachability.await(NONE_GONE, 50, -1));
        assertTrue(System.nanoTime() - began >= TimeUnit.MILLISECONDS.toNanos(50));
        assertFalse(reachability.unreachable("0", "no socket"));
        assertEquals(UNREACHABLE, reachability.await(NONE_GONE, LONG_MILLIS, LONG_MILLIS));
        // An age that overflows is no limit.
        assertEquals(UNREACHABLE, reachability.await(NONE_GONE, LONG_MILLIS, Long.MAX_VALUE));
    }

    @Test
    void aReportOnATaskManagerThatIsGoneDoesNotCount() throws Exception {
        Reachability reachability = new Reachability(STATIC, 0);
        reachability.reached(reached("0", "tm", 0, 1));
        assertEquals(UNREACHABLE, reachability.await("tm"::equals, LONG_MILLIS, LONG_MILLIS));
        assertEquals(REACHABLE, reachability.await("another"::equals, LONG_MILLIS, LONG_MILLIS));
    }

    @Test
    void oneOfSeveralProcessesIsEnough() throws Exception {
        Reachability reachability = new Reachability(STATIC, 0);
        reachability.reached(reached("0", "tm-0", 0, 2));
        reachability.reached(reached("0", "tm-1", 1, 2));
        assertFalse(reachability.noneReachable("tm-0"::equals));
        assertFalse(reachability.noneReachable("tm-1"::equals));
        assertEquals(REACHABLE, reachability.await("tm-1"::equals, LONG_MILLIS, LONG_MILLIS));
        assertTrue(reachability.noneReachable(Set.of("tm-0", "tm-1")::contains));
        // Process 1 comes back without its directories, with a new id.
        reachability.reached(reached("0", "tm-new", 1, 2));
        assertTrue(reachability.noneReachable(Set.of("tm-0", "tm-new")::contains));
    }

    @Test
    void anotherTaskManagerReplacesTheProcesses() {
        Reachability reachability = new Reachability(STATIC, 0);
        reachability.reached(reached("0", "tm-0", 0, 2));
        reachability.reached(reached("0", "tm-1", 1, 2));
        reachability.reached(reached("0", "other", 0, 1));
        assertTrue(reachability.noneReachable("other"::equals));
    }

    @Test
    void aWaitWithoutResultIsNotRepeated() throws Exception {
        Reachability reachability = new Reachability(STATIC, 0);
        assertEquals(UNKNOWN, reachability.await(NONE_GONE, 1, LONG_MILLIS));
        assertEquals(UNKNOWN, reachability.await(NONE_GONE, LONG_MILLIS, LONG_MILLIS));
        reachability.executorAdded("0");
        CompletableFuture<Reachability.Verdict> verdict = waiting(reachability);
        reachability.reached(reached("0", "tm", 0, 1));
        assertEquals(REACHABLE, verdict.get(30, TimeUnit.SECONDS));
    }

    @Test
    void dynamicAllocationWithoutExecutorsIsNotWaitedFor() throws Exception {
        Reachability none = new Reachability(0, 0);
        assertEquals(UNKNOWN, none.await(NONE_GONE, LONG_MILLIS, LONG_MILLIS));
        none.unreachable("0", "no socket");
        none.executorRemoved("0");
        assertEquals(UNKNOWN, none.await(NONE_GONE, LONG_MILLIS, LONG_MILLIS));
        assertTrue(none.lastReportedUnreachable());

        Reachability some = new Reachability(2, 0);
        CompletableFuture<Reachability.Verdict> verdict = waiting(some);
        some.reached(reached("0", "tm", 0, 1));
        assertEquals(REACHABLE, verdict.get(30, TimeUnit.SECONDS));
        assertFalse(some.lastReportedUnreachable());
        some.executorRemoved("0");
        assertEquals(UNKNOWN, some.await(NONE_GONE, LONG_MILLIS, LONG_MILLIS));
    }
}
