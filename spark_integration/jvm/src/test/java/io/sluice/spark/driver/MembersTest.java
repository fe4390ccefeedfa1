package io.sluice.spark.driver;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.connection.ClientOptions;
import io.sluice.client.support.NewsDaemon;
import io.sluice.client.tls.Tls;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.Member;
import io.sluice.spark.members.EndpointList;
import io.sluice.spark.members.NameResolver;
import io.sluice.spark.outputs.TaskManagerEvents;
import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Members at mock TaskManagers, which the loopback addresses of a name lead to. */
@Timeout(60)
class MembersTest {
    private static final ClientOptions OPTIONS =
            new ClientOptions("app-1", "driver", 30_000, 30_000, new ChunkPool(1), Tls.OFF, null);

    private final ScheduledExecutorService threads = Executors.newScheduledThreadPool(4);
    private final DriverLinks links =
            new DriverLinks(threads, 20, 50, new DriverLinks.ReturnTimeouts(1, 1), 1);
    private final Map<String, Map<Integer, List<Long>>> expected = new ConcurrentHashMap<>();
    private final Set<String> gone = ConcurrentHashMap.newKeySet();
    private final Set<String> replaced = ConcurrentHashMap.newKeySet();
    private final Map<String, NewsDaemon> daemons = new HashMap<>();
    private volatile Map<String, List<String>> records = Map.of();
    private Members members;

    private final TaskManagerEvents events =
            new TaskManagerEvents() {
                @Override
                public void connected(Message.HelloAck taskManager) {}

                @Override
                public void gone(String taskManagerId) {
                    gone.add(taskManagerId);
                }

                @Override
                public void replaced(String taskManagerId) {
                    replaced.add(taskManagerId);
                }

                @Override
                public Map<Integer, List<Long>> expected(String taskManagerId) {
                    return expected.getOrDefault(taskManagerId, Map.of());
                }

                @Override
                public boolean isRegistered(int shuffleId) {
                    return true;
                }

                @Override
                public void lost(String taskManagerId, Message.OutputsLost outputs) {}

                @Override
                public void held(String taskManagerId, Message.OutputsHeld outputs) {}

                @Override
                public void remote(Message.OutputsRemote outputs) {}

                @Override
                public void moved(String taskManagerId, Message.OutputsMoved outputs) {}
            };

    @AfterEach
    void end() throws IOException {
        threads.shutdownNow();
        links.close();
        for (NewsDaemon daemon : daemons.values()) {
            daemon.close();
        }
    }

    private void use(String endpoints) {
        EndpointList list = EndpointList.parse(endpoints, "h");
        NameResolver names =
                new NameResolver(
                        list.names(),
                        this::addressesOf,
                        Runnable::run,
                        1,
                        1_000,
                        System::nanoTime,
                        () -> {});
        members = new Members(list, links, names);
        links.setMembership(members);
        links.start(OPTIONS, events);
    }

    private InetAddress[] addressesOf(String name) throws UnknownHostException {
        List<String> found = records.get(name);
        if (found == null) {
            throw new UnknownHostException(name);
        }
        InetAddress[] addresses = new InetAddress[found.size()];
        for (int i = 0; i < addresses.length; i++) {
            addresses[i] = InetAddress.getByName(found.get(i));
        }
        return addresses;
    }

    private NewsDaemon daemon(String id) throws IOException {
        NewsDaemon daemon = new NewsDaemon(id).ofInstance(id);
        daemons.put(id + "@" + daemon.endpoint().port(), daemon);
        return daemon;
    }

    /** Makes a daemon at the same port of another loopback address. */
    private NewsDaemon daemonAt(String id, String host, int port) throws IOException {
        NewsDaemon daemon = new NewsDaemon(id, host, port).ofInstance(id);
        daemons.put(id + "@" + host, daemon);
        return daemon;
    }

    private void await(BooleanSupplier reached) throws InterruptedException {
        while (!reached.getAsBoolean()) {
            members.update();
            Thread.sleep(2);
        }
    }

    private Set<String> linked() {
        return links.values().stream()
                .map(link -> link.endpoint().toString())
                .collect(Collectors.toSet());
    }

    private boolean isConnected(String... ids) {
        for (String id : ids) {
            if (links.connected(id) == null) {
                return false;
            }
        }
        return true;
    }

    private static Message.MemberReport report(String id, Endpoint at, int state, long open) {
        return new Message.MemberReport(
                id, at.host(), at.port(), 0, 0, 1, "node-of-" + id, "z", state, 1L << 40, open);
    }

    @Test
    void eachAddressOfANameHasALinkUntilItLeaves() throws Exception {
        NewsDaemon a = daemonAt("tm-a", "127.0.0.31", 0);
        int port = a.endpoint().port();
        NewsDaemon b = daemonAt("tm-b", "127.0.0.32", port);
        records = Map.of("sluice", List.of("127.0.0.31", "127.0.0.32"));
        use("dns:sluice:" + port);
        await(() -> isConnected("tm-a", "tm-b"));
        records = Map.of("sluice", List.of("127.0.0.31"));
        for (int times = 0; times < 10; times++) {
            members.update();
        }
        assertTrue(isConnected("tm-b"), "it answers, whatever the name says");
        b.close();
        await(() -> linked().equals(Set.of("127.0.0.31:" + port)));
        await(() -> gone.contains("tm-b"));
        assertTrue(links.isKnown("tm-b"));
        assertTrue(links.isAway("tm-b"), "readers do not wait for it");
    }

    @Test
    void aReportOfItselfLeadsToNoOtherLink() throws Exception {
        NewsDaemon a = daemonAt("tm-a", "127.0.0.61", 0);
        int port = a.endpoint().port();
        a.tell(report("tm-a", Endpoint.tcp("127.0.0.62", port), 0, 0));
        use("127.0.0.61:" + port);
        await(() -> isConnected("tm-a"));
        assertEquals(Set.of("127.0.0.61:" + port), linked());
    }

    @Test
    void aLinkStaysWhileMapOutputsAreExpectedThere() throws Exception {
        NewsDaemon a = daemonAt("tm-a", "127.0.0.33", 0);
        int port = a.endpoint().port();
        expected.put("tm-a", Map.of(1, List.of(1L)));
        records = Map.of("sluice", List.of("127.0.0.33"));
        use("dns:sluice:" + port);
        await(() -> isConnected("tm-a"));
        records = Map.of("sluice", List.of("127.0.0.34"));
        a.close();
        await(() -> gone.contains("tm-a"));
        for (int times = 0; times < 10; times++) {
            members.update();
        }
        assertTrue(linked().contains("127.0.0.33:" + port));
        expected.clear();
        await(() -> !linked().contains("127.0.0.33:" + port));
    }

    @Test
    void aConfiguredEndpointStays() throws Exception {
        NewsDaemon a = daemon("tm-a");
        use(a.endpoint().toString());
        await(() -> isConnected("tm-a"));
        a.close();
        await(() -> gone.contains("tm-a"));
        for (int times = 0; times < 10; times++) {
            members.update();
        }
        assertEquals(Set.of(a.endpoint().toString()), linked());
    }

    @Test
    void aReportedMemberIsUsedAfterItHasAnswered() throws Exception {
        NewsDaemon a = daemon("tm-a");
        NewsDaemon b = daemon("tm-b");
        use(a.endpoint().toString());
        await(() -> isConnected("tm-a"));
        a.tell(report("tm-b", b.endpoint(), 0, 0));
        await(() -> isConnected("tm-b"));
        b.close();
        await(() -> linked().equals(Set.of(a.endpoint().toString())));
    }

    @Test
    void aForeignTaskManagerAtAReportedAddressIsNotUsed() throws Exception {
        NewsDaemon a = daemon("tm-a");
        NewsDaemon foreign = daemon("tm-x");
        use(a.endpoint().toString());
        await(() -> isConnected("tm-a"));
        a.tell(report("tm-b", foreign.endpoint(), 0, 0));
        await(() -> !links.values().stream().allMatch(each -> each.lastFailure().isEmpty()));
        assertFalse(isConnected("tm-b"));
        assertFalse(isConnected("tm-x"));
        assertEquals(1, members.current().members().size());
        await(() -> linked().equals(Set.of(a.endpoint().toString())));
    }

    @Test
    void aForeignTaskManagerThatTakesAnAddressOverIsAnotherMember() throws Exception {
        NewsDaemon a = daemonAt("tm-a", "127.0.0.35", 0);
        int port = a.endpoint().port();
        records = Map.of("sluice", List.of("127.0.0.35"));
        use("dns:sluice:" + port);
        await(() -> isConnected("tm-a"));
        a.becomes("tm-x");
        a.ofInstance("x");
        a.resetConnections();
        await(() -> isConnected("tm-x"));
        assertFalse(isConnected("tm-a"));
        assertEquals(Set.of(), replaced, "it may return elsewhere with its map outputs");
        await(() -> gone.contains("tm-a"));
        NewsDaemon returned = daemonAt("tm-a", "127.0.0.36", port);
        records = Map.of("sluice", List.of("127.0.0.35", "127.0.0.36"));
        await(() -> isConnected("tm-a"));
        assertNotNull(returned);
        assertFalse(links.isAway("tm-a"));
    }

    @Test
    void aTaskManagerThatReturnsElsewhereIsTheSameMember() throws Exception {
        NewsDaemon a = daemonAt("tm-a", "127.0.0.37", 0);
        int port = a.endpoint().port();
        expected.put("tm-a", Map.of(3, List.of(1L)));
        records = Map.of("sluice", List.of("127.0.0.37"));
        use("dns:sluice:" + port);
        await(() -> isConnected("tm-a"));
        a.close();
        await(() -> !isConnected("tm-a"));
        links.addRelease(9, 17);
        NewsDaemon returned = daemonAt("tm-a", "127.0.0.38", port);
        records = Map.of("sluice", List.of("127.0.0.38"));
        await(() -> linked().equals(Set.of("127.0.0.38:" + port)) && isConnected("tm-a"));
        Set<Message> wanted =
                Set.of(
                        new Message.CheckOutputs(1, 3, List.of(1L)),
                        new Message.ReleaseAttempts(9, 17));
        Set<Message> told = ConcurrentHashMap.newKeySet();
        await(
                () -> {
                    returned.told().drainTo(told);
                    return told.containsAll(wanted);
                });
        assertEquals(wanted, told, "its outputs are checked, and what is due is released");
    }

    @Test
    void aTaskManagerWithTwoAddressesHasOneLink() throws Exception {
        NewsDaemon four = daemonAt("tm-a", "127.0.0.39", 0);
        int port = four.endpoint().port();
        NewsDaemon six = daemonAt("tm-a", "::1", port);
        records = Map.of("sluice", List.of("127.0.0.39", "::1"));
        use("dns:sluice:" + port);
        await(() -> isConnected("tm-a") && links.values().size() == 1);
        for (int times = 0; times < 20; times++) {
            members.update();
            assertTrue(links.values().size() <= 2);
        }
        assertEquals(1, members.current().members().size());
        (linked().contains("127.0.0.39:" + port) ? four : six).close();
        await(() -> isConnected("tm-a"));
    }

    @Test
    void executorsGetAMemberOnceAndItsChanges() throws Exception {
        NewsDaemon a = daemon("tm-a");
        use(a.endpoint().toString());
        DriverMessages.MembersAnswer none = DriverMessages.MembersAnswer.read(members.since(0));
        assertEquals(List.of(), none.members());
        await(() -> isConnected("tm-a"));
        DriverMessages.MembersAnswer one =
                DriverMessages.MembersAnswer.read(members.since(none.version()));
        assertEquals(1, one.members().size());
        assertNull(one.members().get(0).load(), "it has reported nothing");
        assertEquals(1, members.since(one.version()).length, "nothing new");
        a.tell(report("tm-a", a.endpoint(), 1, 100));
        await(() -> members.since(one.version()).length > 1);
        Member now =
                DriverMessages.MembersAnswer.read(members.since(one.version())).members().get(0);
        assertEquals("node-of-tm-a", now.places().node());
        assertTrue(now.load().isDraining());
        long version = members.current().version();
        a.tell(report("tm-a", a.endpoint(), 1, 101));
        a.tell(report("tm-a", a.endpoint(), 1, 101), report("tm-c", a.endpoint(), 1, 1));
        await(() -> linked().size() == 1);
        assertEquals(version, members.current().version(), "the class of its load is the same");
    }

    @Test
    void aNameWithManySilentAddressesDelaysNoOtherLink() throws Exception {
        NewsDaemon a = daemonAt("tm-a", "127.0.1.250", 0);
        int port = a.endpoint().port();
        List<String> many = new java.util.ArrayList<>();
        for (int i = 0; i < 499; i++) {
            many.add("127.0." + (2 + i / 250) + "." + (1 + i % 250));
        }
        many.add("127.0.1.250");
        records = Map.of("sluice", many);
        use("dns:sluice:" + port);
        await(() -> isConnected("tm-a"));
        assertEquals(500, links.values().size());
        records = Map.of("sluice", List.of("127.0.1.250"));
        await(() -> links.values().size() == 1);
        assertTrue(isConnected("tm-a"));
    }

    @Test
    void aNameThatFailsChangesNothing() throws Exception {
        NewsDaemon a = daemonAt("tm-a", "127.0.0.40", 0);
        records = Map.of("sluice", List.of("127.0.0.40"));
        use("dns:sluice:" + a.endpoint().port());
        await(() -> isConnected("tm-a"));
        records = Map.of();
        for (int times = 0; times < 10; times++) {
            members.update();
            Thread.sleep(2);
        }
        assertTrue(isConnected("tm-a"));
        assertEquals(1, members.current().members().size());
        assertEquals(List.of(), members.failures());
    }
}
