package io.sluice.spark.executor;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.failover.ReplicaLocator;
import io.sluice.client.failover.TaskManagerAddress;
import io.sluice.client.wire.ClientException;
import io.sluice.spark.common.DriverMessages;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class DriverReplicaLocatorTest {
    private static final long[] IDS = {1, 2};
    private static final TaskManagerAddress PLACE = new TaskManagerAddress("tm-b", "host", 7337);
    private static final ReplicaLocator.Replicas NONE = ReplicaLocator.Replicas.none(2);
    private static final ReplicaLocator.Replicas SOME =
            new ReplicaLocator.Replicas(Arrays.asList(null, PLACE), Set.of("tm-a"));

    /** Shuffles of which the executor has outdated statuses. */
    private final List<Integer> outdated = new ArrayList<>();

    @Test
    void theDriverIsAsked() throws Exception {
        DriverReplicaLocator.Driver driver =
                question -> {
                    assertEquals(
                            new DriverMessages.ReplicasQuestion(
                                    3, List.of(1L, 2L), Set.of("tm-a"), PLACE),
                            DriverMessages.ReplicasQuestion.read((String[]) question));
                    return new DriverMessages.ReplicasAnswer(true, SOME).message();
                };
        try (DriverReplicaLocator places =
                new DriverReplicaLocator(driver, outdated::add, 30_000)) {
            assertEquals(SOME, places.locate(3, IDS, Set.of("tm-a"), PLACE));
        }
        assertEquals(List.of(3), outdated);
    }

    @Test
    void aDriverThatDoesNotAnswerKnowsOfNone() throws Exception {
        CountDownLatch never = new CountDownLatch(1);
        DriverReplicaLocator.Driver silent =
                question -> {
                    never.await();
                    return null;
                };
        try (DriverReplicaLocator places = new DriverReplicaLocator(silent, outdated::add, 1)) {
            assertEquals(NONE, places.locate(3, IDS, Set.of("tm-a")));
        }
    }

    @Test
    void aDriverThatFailsKnowsOfNone() throws Exception {
        DriverReplicaLocator.Driver failing =
                question -> {
                    throw new IllegalStateException("no plugin");
                };
        try (DriverReplicaLocator places =
                new DriverReplicaLocator(failing, outdated::add, 30_000)) {
            assertEquals(NONE, places.locate(3, IDS, Set.of("tm-a")));
        }
    }

    @Test
    void anInterruptEndsTheQuestion() {
        CountDownLatch never = new CountDownLatch(1);
        DriverReplicaLocator.Driver silent =
                question -> {
                    never.await();
                    return null;
                };
        try (DriverReplicaLocator places =
                new DriverReplicaLocator(silent, outdated::add, 30_000)) {
            Thread.currentThread().interrupt();
            assertThrows(ClientException.Interrupted.class, () -> places.locate(3, IDS, Set.of()));
            assertTrue(Thread.interrupted(), "the interrupt is left for the task");
        }
    }
}
