package io.sluice.spark.driver;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.connection.ClientOptions;
import io.sluice.client.failover.TaskManagerAddress;
import io.sluice.client.support.NewsDaemon;
import io.sluice.client.tls.Tls;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Message;
import io.sluice.spark.outputs.TaskManagerEvents;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.stream.LongStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class DriverLinksTest {
    private static final int DEADLINE_MILLIS = 30_000;
    private static final ClientOptions OPTIONS =
            new ClientOptions("app-1", "driver", 300, 300, new ChunkPool(1), Tls.OFF, null);
    private static final ClientOptions PATIENT =
            new ClientOptions("app-1", "driver", 30_000, 30_000, new ChunkPool(1), Tls.OFF, null);

    private final ScheduledExecutorService threads = Executors.newScheduledThreadPool(1);
    private static final DriverLinks.ReturnTimeouts PATIENTLY =
            new DriverLinks.ReturnTimeouts(2 * DEADLINE_MILLIS, 2 * DEADLINE_MILLIS);
    private final DriverLinks links = new DriverLinks(threads, 1, 1, PATIENTLY, 1);
    private final BlockingQueue<String> heard = new LinkedBlockingQueue<>();
    private final Map<String, Map<Integer, List<Long>>> expected = new ConcurrentHashMap<>();
    private final Set<Integer> registered = ConcurrentHashMap.newKeySet();
    private final TaskManagerEvents events =
            new TaskManagerEvents() {
                @Override
                public void connected(Message.HelloAck taskManager) {
                    heard.add("connected " + taskManager.taskManagerId());
                }

                @Override
                public void gone(String taskManagerId) {
                    heard.add("gone " + taskManagerId);
                }

                @Override
                public void replaced(String taskManagerId) {
                    heard.add("replaced " + taskManagerId);
                }

                @Override
                public Map<Integer, List<Long>> expected(String taskManagerId) {
                    return expected.getOrDefault(taskManagerId, Map.of());
                }

                @Override
                public boolean isRegistered(int shuffleId) {
                    return registered.contains(shuffleId);
                }

                @Override
                public void lost(String taskManagerId, Message.OutputsLost outputs) {
                    heard.add("lost " + taskManagerId);
                }

                @Override
                public void held(String taskManagerId, Message.OutputsHeld outputs) {
                    heard.add("held " + taskManagerId);
                }

                @Override
                public void remote(Message.OutputsRemote outputs) {
                    heard.add("remote " + outputs.shuffleId());
                }

                @Override
                public void moved(String taskManagerId, Message.OutputsMoved outputs) {
                    heard.add("moved " + taskManagerId);
                }
            };

    @AfterEach
    void end() {
        threads.shutdownNow();
        links.close();
    }

    private static ServerSocket listener() throws Exception {
        ServerSocket listener = new ServerSocket(0, 8, InetAddress.getLoopbackAddress());
        listener.setSoTimeout(DEADLINE_MILLIS);
        return listener;
    }

    private static Endpoint endpointOf(ServerSocket listener) {
        return Endpoint.tcp("127.0.0.1", listener.getLocalPort());
    }

    private static void assertGreeted(ServerSocket listener) throws Exception {
        try (Socket connection = listener.accept()) {
            connection.setSoTimeout(DEADLINE_MILLIS);
            assertTrue(connection.getInputStream().read() >= 0, "the link says Hello");
        }
    }

    @Test
    void anEndpointThatComesBeforeTheOptionsIsConnectedToAfterwards() throws Exception {
        try (ServerSocket listener = listener()) {
            links.add(endpointOf(listener));
            assertTrue(links.values().isEmpty());
            assertTrue(links.start(OPTIONS, events));
            assertGreeted(listener);
            assertFalse(links.start(OPTIONS, events));
            links.add(endpointOf(listener));
            assertEquals(1, links.values().size());
        }
    }

    private static <T> T next(BlockingQueue<T> queue) throws InterruptedException {
        return queue.poll(DEADLINE_MILLIS, TimeUnit.MILLISECONDS);
    }

    private static Message.KnownTaskManager known(String id, NewsDaemon daemon) {
        return new Message.KnownTaskManager(id, "127.0.0.1", daemon.endpoint().port());
    }

    @Test
    void taskManagersAreNamedToEachOther() throws Exception {
        links.start(PATIENT, events);
        try (NewsDaemon a = new NewsDaemon("tm-a");
                NewsDaemon b = new NewsDaemon("tm-b")) {
            links.add(a.endpoint());
            assertEquals("connected tm-a", next(heard));
            links.add(b.endpoint());
            assertEquals("connected tm-b", next(heard));
            assertEquals(known("tm-a", a), next(b.told()));
            assertEquals(known("tm-b", b), next(a.told()));
            assertTrue(a.told().isEmpty());
            assertEquals(
                    new TaskManagerAddress("tm-b", "127.0.0.1", b.endpoint().port()),
                    links.connected("tm-b"));
        }
    }

    @Test
    void aCloneOfATaskManagerIsRefusedWithTheReason() throws Exception {
        links.start(PATIENT, events);
        try (NewsDaemon first = new NewsDaemon("tm-a").ofInstance("1");
                NewsDaemon clone = new NewsDaemon("tm-a").ofInstance("2")) {
            links.add(first.endpoint());
            assertEquals("connected tm-a", next(heard));
            links.add(clone.endpoint());
            Message.ErrorResponse told = (Message.ErrorResponse) next(clone.told());
            assertEquals(ErrorCode.TASKMANAGER_MISMATCH.number(), told.code());
            String reason =
                    String.format(
                            "two TaskManagers run with the id tm-a, at 127.0.0.1:%d and at"
                                    + " 127.0.0.1:%d, and only the first is used",
                            first.endpoint().port(), clone.endpoint().port());
            assertTrue(told.message().startsWith(reason), told.message());
            assertEquals(first.endpoint().port(), links.connected("tm-a").port());
            DriverLink link =
                    links.values().stream()
                            .filter(each -> each.endpoint().equals(clone.endpoint()))
                            .findFirst()
                            .orElseThrow();
            assertFalse(link.ping());
            assertTrue(link.lastFailure().contains(reason), link.lastFailure());
            assertNull(link.taskManager());
            assertTrue(first.told().isEmpty());
            assertTrue(heard.isEmpty());
        }
    }

    @Test
    void aTaskManagerOfAnotherInstanceIsUsedWhenTheFirstIsAway() throws Exception {
        links.start(PATIENT, events);
        try (NewsDaemon moved = new NewsDaemon("tm-a").ofInstance("2")) {
            try (NewsDaemon first = new NewsDaemon("tm-a").ofInstance("1")) {
                links.add(first.endpoint());
                assertEquals("connected tm-a", next(heard));
                links.add(moved.endpoint());
                assertNotNull(next(moved.told()));
            }
            for (String each = next(heard); !"connected tm-a".equals(each); each = next(heard)) {
                assertEquals("gone tm-a", each);
            }
            assertEquals(moved.endpoint().port(), links.connected("tm-a").port());
        }
    }

    @Test
    void aTaskManagerThatWasRestartedIsUsedAgain() throws Exception {
        DriverLinks quiet = quietLinks();
        try (NewsDaemon daemon = new NewsDaemon("tm-a").ofInstance("1")) {
            quiet.add(daemon.endpoint());
            assertEquals("connected tm-a", next(heard));
            daemon.ofInstance("2").resetConnections();
            assertEquals("connected tm-a", next(heard));
            assertTrue(daemon.told().isEmpty());
        } finally {
            quiet.close();
        }
    }

    @Test
    void aTaskManagerHasTwoAddresses() throws Exception {
        links.start(PATIENT, events);
        try (NewsDaemon one = new NewsDaemon("tm-a").ofInstance("1");
                NewsDaemon other = new NewsDaemon("tm-a").ofInstance("1")) {
            links.add(one.endpoint());
            assertEquals("connected tm-a", next(heard));
            links.add(other.endpoint());
            assertEquals("connected tm-a", next(heard));
        }
    }

    @Test
    void aTaskManagerThatStaysAwayIsGone() throws Exception {
        links.start(PATIENT, events);
        try (NewsDaemon daemon = new NewsDaemon("tm-a")) {
            links.add(daemon.endpoint());
            assertEquals("connected tm-a", next(heard));
        }
        assertEquals("gone tm-a", next(heard));
        assertNull(links.connected("tm-a"));
        assertTrue(links.isKnown("tm-a"));
    }

    @Test
    void aLostConnectionIsReplacedBeforeTheNextPing() throws Exception {
        DriverLinks rarelyPinged =
                new DriverLinks(threads, 3_600_000, DEADLINE_MILLIS, PATIENTLY, DEADLINE_MILLIS);
        rarelyPinged.start(PATIENT, events);
        try (NewsDaemon daemon = new NewsDaemon("tm-a")) {
            rarelyPinged.add(daemon.endpoint());
            assertEquals("connected tm-a", next(heard));
            daemon.resetConnections();
            assertEquals("connected tm-a", next(heard));
        } finally {
            rarelyPinged.close();
        }
    }

    @Test
    void newsComeWithTheIdOfTheTaskManager() throws Exception {
        links.start(PATIENT, events);
        try (NewsDaemon daemon = new NewsDaemon("tm-a")) {
            links.add(daemon.endpoint());
            assertEquals("connected tm-a", next(heard));
            daemon.tell(
                    new Message.OutputsLost(1, List.of(1L)),
                    new Message.OutputsHeld(1, List.of(1L)),
                    new Message.OutputsMoved(5, 1, "tm-b", "host", 1, List.of(1L)));
            assertEquals("lost tm-a", next(heard));
            assertEquals("held tm-a", next(heard));
            assertEquals("moved tm-a", next(heard));
            assertEquals(new Message.MoveNoted(5), next(daemon.told()));
        }
    }

    @Test
    void anInterruptOfAClosingLinkIsNotAFailure() throws Exception {
        links.start(PATIENT, events);
        try (NewsDaemon daemon = new NewsDaemon("tm-a")) {
            links.add(daemon.endpoint());
            assertEquals("connected tm-a", next(heard));
            DriverLink link = links.values().iterator().next();
            links.closing();
            Thread.currentThread().interrupt();
            link.receive(() -> {});
            assertTrue(Thread.interrupted());
            assertEquals("", link.lastFailure());
            assertTrue(link.isConnected(), "until it is closed");
        }
    }

    @Test
    void aLinkIsPingedAgainAfterEachFailure() throws Exception {
        links.start(OPTIONS, events);
        try (ServerSocket listener = listener()) {
            links.add(endpointOf(listener));
            for (int time = 0; time < 3; time++) {
                assertGreeted(listener);
            }
        }
    }

    /** Returns links that neither ping nor report a TaskManager as gone by themselves. */
    private DriverLinks quietLinks() {
        return quietLinks(PATIENTLY, DEADLINE_MILLIS);
    }

    private DriverLinks quietLinks(DriverLinks.ReturnTimeouts timeouts, int sharedCheckMillis) {
        DriverLinks quiet =
                new DriverLinks(threads, 3_600_000, DEADLINE_MILLIS, timeouts, sharedCheckMillis);
        quiet.start(PATIENT, events);
        return quiet;
    }

    @Test
    void anotherTaskManagerAtTheAddressReplacesThePreviousOne() throws Exception {
        DriverLinks quiet = quietLinks();
        try (NewsDaemon daemon = new NewsDaemon("tm-a")) {
            quiet.add(daemon.endpoint());
            assertEquals("connected tm-a", next(heard));
            daemon.resetConnections();
            assertEquals("connected tm-a", next(heard));
            daemon.becomes("tm-b");
            daemon.resetConnections();
            assertEquals("replaced tm-a", next(heard));
            assertEquals("connected tm-b", next(heard));
        } finally {
            quiet.close();
        }
    }

    @Test
    void aTaskManagerThatReturnsIsAskedForItsMapOutputs() throws Exception {
        expected.put("tm-a", Map.of(3, List.of(1L, 2L)));
        DriverLinks quiet = quietLinks();
        try (NewsDaemon daemon = new NewsDaemon("tm-a")) {
            quiet.add(daemon.endpoint());
            assertEquals("connected tm-a", next(heard));
            assertTrue(daemon.told().isEmpty());
            daemon.loses(2L);
            daemon.resetConnections();
            assertEquals("lost tm-a", next(heard));
            assertEquals(new Message.CheckOutputs(1, 3, List.of(1L, 2L)), next(daemon.told()));
        } finally {
            quiet.close();
        }
    }

    private static long checks(NewsDaemon daemon) {
        return daemon.told().stream().filter(Message.CheckOutputs.class::isInstance).count();
    }

    @Test
    void oneCheckFindsAllLostOutputs() throws Exception {
        DriverLinks quiet =
                quietLinks(new DriverLinks.ReturnTimeouts(0, DEADLINE_MILLIS), DEADLINE_MILLIS);
        List<Long> many = LongStream.range(0, 600).boxed().toList();
        try (NewsDaemon empty = new NewsDaemon("tm-empty");
                NewsDaemon whole = new NewsDaemon("tm-whole")) {
            NewsDaemon away = new NewsDaemon("tm-away");
            for (NewsDaemon each : List.of(empty, whole, away)) {
                quiet.add(each.endpoint());
                assertTrue(next(heard).startsWith("connected "));
            }
            for (String id : List.of("tm-empty", "tm-whole", "tm-away")) {
                expected.put(id, Map.of(3, many));
            }
            empty.loses(599L);
            away.close();
            assertEquals(Set.of("tm-away"), quiet.verifyAll(DEADLINE_MILLIS));
            assertEquals("lost tm-empty", next(heard));
            assertEquals(3, checks(empty), "messages of 256 map outputs");
            assertEquals(3, checks(whole));
            assertTrue(heard.isEmpty());
        } finally {
            quiet.close();
        }
    }

    @Test
    void aTaskManagerIsAwaySoonerIfItsHostRefusesConnections() throws Exception {
        DriverLinks quiet = quietLinks(new DriverLinks.ReturnTimeouts(3_600_000, 1), 0);
        try (NewsDaemon here = new NewsDaemon("tm-here")) {
            NewsDaemon away = new NewsDaemon("tm-away");
            for (NewsDaemon each : List.of(here, away)) {
                quiet.add(each.endpoint());
                assertTrue(next(heard).startsWith("connected "));
            }
            away.close();
            do {
                quiet.verifyAll(DEADLINE_MILLIS);
            } while (!quiet.isAway("tm-away"));
            assertFalse(quiet.isAway("tm-here"));
            assertEquals(Set.of("tm-away"), quiet.verifyAll(DEADLINE_MILLIS));
        } finally {
            quiet.close();
        }
    }

    @Test
    void aTaskManagerThatHangsTakesOneThreadForAllChecks() throws Exception {
        ScheduledExecutorService two = Executors.newScheduledThreadPool(2);
        DriverLinks quiet = new DriverLinks(two, 3_600_000, DEADLINE_MILLIS, PATIENTLY, 0);
        quiet.start(PATIENT, events);
        expected.put("tm-whole", Map.of(3, List.of(1L)));
        try (NewsDaemon hung = new NewsDaemon("tm-hung");
                NewsDaemon whole = new NewsDaemon("tm-whole");
                NewsDaemon late = new NewsDaemon("tm-late")) {
            for (NewsDaemon each : List.of(hung, whole)) {
                quiet.add(each.endpoint());
                assertTrue(next(heard).startsWith("connected "));
            }
            hung.hangs();
            for (int look = 1; look <= 3; look++) {
                assertEquals(Set.of(), quiet.verifyAll(300));
                assertEquals(look, checks(whole));
                if (look == 1) {
                    // It is announced to the others, and this one still waits for an answer.
                    quiet.add(late.endpoint());
                    assertEquals("connected tm-late", next(heard));
                }
            }
        } finally {
            two.shutdownNow();
            quiet.close();
        }
    }

    @Test
    void aTaskManagerThatHasNotAnsweredYetIsNotAway() throws Exception {
        for (DriverLinks.ReturnTimeouts timeouts :
                List.of(PATIENTLY, new DriverLinks.ReturnTimeouts(0, 0))) {
            DriverLinks quiet =
                    new DriverLinks(threads, 3_600_000, DEADLINE_MILLIS, timeouts, DEADLINE_MILLIS);
            quiet.start(OPTIONS, events);
            try (NewsDaemon slow = new NewsDaemon("tm-slow").hangs()) {
                quiet.add(slow.endpoint());
                assertEquals(
                        timeouts.equals(PATIENTLY) ? Set.of() : Set.of("tm-slow"),
                        quiet.verifyAll(DEADLINE_MILLIS));
                assertTrue(quiet.isKnown("tm-slow"));
            } finally {
                quiet.close();
            }
        }
    }

    @Test
    void aLateReleaseNamesItsMapAttempts() throws Exception {
        DriverLinks quiet = quietLinks();
        registered.add(3);
        try (NewsDaemon daemon = new NewsDaemon("tm-a")) {
            quiet.add(daemon.endpoint());
            assertEquals("connected tm-a", next(heard));
            DriverLink link = quiet.values().iterator().next();
            daemon.resetConnections();
            link.addRelease(3, 17);
            assertTrue(link.release());
            // Twice if the connection took the first one before its end, and not the answer.
            Set<Message> told = new HashSet<>();
            daemon.told().drainTo(told);
            assertEquals(Set.of(new Message.ReleaseAttempts(3, 17)), told);
            assertTrue(link.release());
            assertTrue(daemon.told().isEmpty());
        } finally {
            quiet.close();
        }
    }

    @Test
    void aLateReleaseHasItsBound() throws Exception {
        DriverLinks quiet = quietLinks();
        registered.add(3);
        try (NewsDaemon daemon = new NewsDaemon("tm-a");
                DriverListener listener = new DriverListener(threads)) {
            // Before the connection: releases that wait. Spark may use shuffle 3 again.
            DriverLink before = new DriverLink(daemon.endpoint(), PATIENT, listener, quiet);
            before.addRelease(3, 17);
            before.addRelease(4, 17);
            assertTrue(before.release());
            assertEquals(new Message.ReleaseAttempts(3, 17), next(daemon.told()));
            assertEquals(new Message.ReleaseAttempts(4, 17), next(daemon.told()));
            before.addRelease(3, 18);
            assertTrue(before.release());
            assertEquals(new Message.ReleaseAttempts(3, 18), next(daemon.told()));
            assertTrue(daemon.told().isEmpty());
            before.close();
        } finally {
            quiet.close();
        }
    }

    @Test
    void linksThatMayNotDialYetWaitOnceEach() throws Exception {
        ScheduledThreadPoolExecutor pool = new ScheduledThreadPoolExecutor(6);
        pool.setRemoveOnCancelPolicy(true);
        DriverLinks many = new DriverLinks(pool, 10, 1, PATIENTLY, 1);
        many.setMembership(new NothingConfigured());
        ClientOptions slow =
                new ClientOptions("app-1", "driver", 500, 500, new ChunkPool(1), Tls.OFF, null);
        // It accepts, and nobody answers.
        try (ServerSocket silent = new ServerSocket(0, 64, InetAddress.getByName("0.0.0.0"))) {
            many.start(slow, events);
            int count = 16;
            for (int i = 1; i <= count; i++) {
                many.add(Endpoint.tcp("127.0.0." + (100 + i), silent.getLocalPort()));
            }
            int most = 0;
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(2);
            while (System.nanoTime() < end) {
                most = Math.max(most, pool.getQueue().size());
                Thread.sleep(10);
            }
            assertTrue(most <= 3 * count, most + " tasks for " + count + " links");
        } finally {
            pool.shutdownNow();
            many.close();
        }
    }

    /** No endpoint is configured. */
    private static final class NothingConfigured implements Membership {
        @Override
        public boolean isConfigured(Endpoint endpoint) {
            return false;
        }
    }
}
