package io.sluice.spark.outputs;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.connection.ClientOptions;
import io.sluice.client.failover.TaskManagerAddress;
import io.sluice.client.support.NewsDaemon;
import io.sluice.client.tls.Tls;
import io.sluice.client.wire.ChunkPool;
import io.sluice.spark.driver.DriverLinks;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Half of eight TaskManagers are lost at once, and one failure of a task covers them all. */
@Timeout(60)
class LossesTest {
    private static final int DEADLINE_MILLIS = 30_000;
    private static final int SHUFFLE = 3;
    private static final int PLACES = 8;
    private static final int LOST = 4;
    private static final int OF_EACH = 3;

    /** Stands for Spark's tracker: places by map attempt. */
    private final Map<Long, String> tracked = new ConcurrentHashMap<>();

    private final Tracker tracker =
            new Tracker() {
                @Override
                public int mapTasks(int shuffleId) {
                    return PLACES * OF_EACH;
                }

                @Override
                public Optional<String> taskManagerOf(int shuffleId, long attempt) {
                    return Optional.ofNullable(tracked.get(attempt));
                }

                @Override
                public Map<String, Map<Integer, List<Long>>> outputsOf(Set<String> ids) {
                    return ids.stream()
                            .filter(id -> !attemptsAt(id).isEmpty())
                            .collect(
                                    Collectors.toMap(
                                            id -> id, id -> Map.of(SHUFFLE, attemptsAt(id))));
                }

                @Override
                public void update(int shuffleId, long attempt, TaskManagerAddress place) {
                    tracked.put(attempt, place.taskManagerId());
                }

                @Override
                public int unregister(int shuffleId, Collection<Long> attempts) {
                    int before = tracked.size();
                    tracked.keySet().removeAll(attempts);
                    return before - tracked.size();
                }

                @Override
                public void changed() {}
            };

    private final ScheduledExecutorService threads = Executors.newScheduledThreadPool(4);

    /** They neither ping nor report a TaskManager as gone by themselves. */
    private final DriverLinks links =
            new DriverLinks(
                    threads,
                    3_600_000,
                    DEADLINE_MILLIS,
                    new DriverLinks.ReturnTimeouts(0, 0),
                    DEADLINE_MILLIS);

    private final OutputRegistry registry = new OutputRegistry(tracker, links);
    private final List<NewsDaemon> daemons = new ArrayList<>();

    /** What happens to a TaskManager. */
    private enum Loss {
        EMPTY_DIRECTORY,
        FOR_EVER,
        EXPIRED_APPLICATION,
        A_DISK_LEFT_OUT,
        ANOTHER_AT_THE_ADDRESS
    }

    private List<Long> attemptsAt(String taskManagerId) {
        return tracked.entrySet().stream()
                .filter(each -> each.getValue().equals(taskManagerId))
                .map(Map.Entry::getKey)
                .sorted()
                .toList();
    }

    private static String id(int number) {
        return "tm-" + number;
    }

    private static Long[] outputsOf(int number) {
        Long[] outputs = new Long[OF_EACH];
        for (int i = 0; i < OF_EACH; i++) {
            outputs[i] = (long) number * OF_EACH + i;
        }
        return outputs;
    }

    @BeforeEach
    void write() throws Exception {
        links.start(
                new ClientOptions(
                        "app-1",
                        "driver",
                        DEADLINE_MILLIS,
                        DEADLINE_MILLIS,
                        new ChunkPool(1),
                        Tls.OFF,
                        null),
                registry);
        for (int number = 0; number < PLACES; number++) {
            NewsDaemon daemon = new NewsDaemon(id(number));
            daemons.add(daemon);
            links.add(daemon.endpoint());
            for (long attempt : outputsOf(number)) {
                tracked.put(attempt, id(number));
            }
        }
        links.values().forEach(link -> assertTrue(link.ping()));
    }

    @AfterEach
    void end() throws Exception {
        threads.shutdownNow();
        links.close();
        for (NewsDaemon daemon : daemons) {
            daemon.close();
        }
    }

    private void lose(int number, Loss loss) throws Exception {
        NewsDaemon daemon = daemons.get(number);
        switch (loss) {
            case EMPTY_DIRECTORY, ANOTHER_AT_THE_ADDRESS -> daemon.becomes("new-" + number);
            case FOR_EVER -> daemon.close();
            case EXPIRED_APPLICATION -> daemon.loses(outputsOf(number));
            case A_DISK_LEFT_OUT -> daemon.loses(outputsOf(number)[0], outputsOf(number)[1]);
        }
        if (loss == Loss.ANOTHER_AT_THE_ADDRESS || loss == Loss.EMPTY_DIRECTORY) {
            daemon.resetConnections();
        }
    }

    @ParameterizedTest
    @EnumSource(Loss.class)
    void oneFailureCoversAllLosses(Loss loss) throws Exception {
        for (int number = 0; number < LOST; number++) {
            lose(number, loss);
        }
        // A task has failed at the first of them; these are the calls of DriverRuntime.
        Set<String> away = links.verifyAll(DEADLINE_MILLIS);
        registry.onUnreadable(id(0), SHUFFLE, List.of(outputsOf(0)));
        registry.unregisterLost(away);
        Set<Long> left =
                tracked.keySet().stream()
                        .filter(attempt -> attempt < (long) LOST * OF_EACH)
                        .collect(Collectors.toSet());
        assertEquals(
                loss == Loss.A_DISK_LEFT_OUT ? Set.of(2L, 5L, 8L, 11L) : Set.of(),
                left,
                "no lost map output is still named");
        assertEquals(
                (PLACES - LOST) * OF_EACH,
                tracked.size() - left.size(),
                "all other map outputs stay");
    }
}
