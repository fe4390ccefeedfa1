package io.sluice.spark.executor;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.connection.ClientOptions;
import io.sluice.client.connection.ConnectionPool;
import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.support.MockDaemon;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Leases connections to the processes of mock TaskManagers on Unix sockets. */
@Timeout(60)
class TaskManagerLeasesTest {
    private static final int ROLE = Message.ROLE_PRODUCER;

    @TempDir Path directory;

    private final ConnectionPool pool =
            new ConnectionPool(new ClientOptions("app", "test", 300, 2_000, new ChunkPool(4)), 64);
    private final Map<String, MockDaemon> daemons = new HashMap<>();
    private final List<Endpoint> ofDriver = new ArrayList<>();
    private long now = System.nanoTime();

    @AfterEach
    void close() throws IOException {
        pool.close();
        for (MockDaemon daemon : daemons.values()) {
            daemon.close();
        }
    }

    private Path path(String name, int process) {
        return directory.resolve(process == 0 ? name : name + "." + process);
    }

    private MockDaemon start(String name, int process, int processes) throws IOException {
        MockDaemon daemon = new MockDaemon(path(name, process));
        daemon.id = name + "-" + process;
        daemon.process = process;
        daemon.processes = processes;
        daemons.put(daemon.id, daemon);
        return daemon;
    }

    private void startAll(String name, int processes) throws IOException {
        for (int process = 0; process < processes; process++) {
            start(name, process, processes);
        }
    }

    /** Leaves the file of the socket. */
    private void crash(String name, int process) throws IOException {
        daemons.remove(name + "-" + process).close();
        // The daemon's threads may not have closed the idle connections yet.
        pool.close();
    }

    private void stop(String name, int process) throws IOException {
        crash(name, process);
        Files.delete(path(name, process));
    }

    private TaskManagerLeases leases(String... names) {
        List<Endpoint> configured = new ArrayList<>();
        for (String name : names) {
            configured.add(new Endpoint(directory.resolve(name).toString(), null, 0));
        }
        return new TaskManagerLeases(
                pool,
                new TaskManagerLeases.Candidates() {
                    @Override
                    public List<Endpoint> first(int role) {
                        return configured;
                    }

                    @Override
                    public List<Endpoint> all(int role) {
                        return ofDriver;
                    }
                },
                reasons -> {
                    throw new IllegalStateException(reasons);
                },
                () -> now);
    }

    /** Leases a connection for a task and releases it; returns the id of the process. */
    private String reached(TaskManagerLeases leases, long task) throws IOException {
        TaskManagerConnection connection = leases.lease(ROLE, task);
        pool.release(connection);
        return connection.taskManager().taskManagerId();
    }

    private int connections(String id) {
        return daemons.get(id).connections.get();
    }

    @Test
    void consecutiveTasksUseAllProcessesEvenly() throws IOException {
        startAll("a", 3);
        TaskManagerLeases leases = leases("a");
        Map<String, Integer> tasks = new HashMap<>();
        for (long task = -5; task < 7; task++) {
            tasks.merge(reached(leases, task), 1, Integer::sum);
        }
        assertEquals(Map.of("a-0", 4, "a-1", 4, "a-2", 4), tasks);
        for (String id : tasks.keySet()) {
            assertEquals(1, connections(id), "the pool has the connection of the first task");
        }
    }

    @Test
    void aSingleProcessIsAskedOnce() throws IOException {
        start("a", 0, 1);
        TaskManagerLeases leases = leases("a");
        for (long task = 0; task < 5; task++) {
            assertEquals("a-0", reached(leases, task));
        }
        assertEquals(1, connections("a-0"));
        assertEquals(1, pool.idleConnections());
    }

    @Test
    void theConfiguredEndpointMayBeOfAnyProcess() throws IOException {
        startAll("a", 3);
        TaskManagerLeases leases = leases("a.1");
        assertEquals("a-0", reached(leases, 0));
        assertEquals("a-1", reached(leases, 1));
        assertEquals("a-2", reached(leases, 2));
    }

    @Test
    void theNextProcessReplacesOneThatIsDownUntilItReturns() throws IOException {
        startAll("a", 3);
        start("b", 0, 1);
        TaskManagerLeases leases = leases("a", "b");
        assertEquals("a-1", reached(leases, 1));
        stop("a", 1);
        assertEquals("a-2", reached(leases, 1));
        start("a", 1, 3);
        assertEquals("a-2", reached(leases, 1), "not asked again so soon");
        now += EndpointBackoff.MAX_NANOS;
        assertEquals("a-1", reached(leases, 1));
    }

    @Test
    void theOtherProcessesAreFoundWhileTheConfiguredOneIsDown() throws IOException {
        startAll("a", 2);
        start("b", 0, 1);
        TaskManagerLeases leases = leases("a", "b");
        assertEquals("a-0", reached(leases, 0));
        crash("a", 0);
        assertEquals("a-1", reached(leases, 0));
        assertEquals("a-1", reached(leases, 1));
        Files.delete(path("a", 0));
        assertEquals("a-1", reached(leases, 1), "its host still has a socket");
    }

    @Test
    void anotherTaskManagerIsUsedAfterAllProcesses() throws IOException {
        startAll("a", 2);
        start("b", 0, 1);
        TaskManagerLeases leases = leases("a", "b");
        assertEquals("a-1", reached(leases, 1));
        for (int process = 0; process < 2; process++) {
            crash("a", process);
        }
        assertEquals("b-0", reached(leases, 1));
        assertEquals("b-0", reached(leases, 2));
        crash("b", 0);
        IllegalStateException failure =
                assertThrows(IllegalStateException.class, () -> reached(leases, 0));
        for (String name : List.of("/a:", "/a.1:", "/b:")) {
            assertTrue(failure.getMessage().contains(name), failure.getMessage());
        }
    }

    @Test
    void aProcessWithoutRoomIsReplacedByTheNext() throws IOException {
        startAll("a", 2);
        start("b", 0, 1);
        TaskManagerLeases leases = leases("a", "b");
        assertEquals("a-0", reached(leases, 0));
        leases.avoid(daemons.get("a-0").endpoint(), ROLE);
        assertEquals("a-1", reached(leases, 0));
        leases.avoid(daemons.get("a-1").endpoint(), ROLE);
        assertEquals("b-0", reached(leases, 0));
        leases.avoid(daemons.get("b-0").endpoint(), ROLE);
        assertEquals("a-0", reached(leases, 0), "the first of those that failed recently");
    }

    @Test
    void aRestartWithFewerProcessesIsNoticed() throws IOException {
        startAll("a", 3);
        TaskManagerLeases leases = leases("a");
        assertEquals("a-2", reached(leases, 2));
        for (int process = 0; process < 3; process++) {
            stop("a", process);
        }
        startAll("a", 2);
        assertEquals("a-0", reached(leases, 2), "process 2 does not exist");
        assertEquals("a-1", reached(leases, 5), "5 modulo 2, not modulo 3");
    }

    @Test
    void aRestartWithMoreProcessesIsNoticed() throws IOException {
        start("a", 0, 1);
        TaskManagerLeases leases = leases("a");
        assertEquals("a-0", reached(leases, 3));
        stop("a", 0);
        startAll("a", 4);
        assertEquals("a-0", reached(leases, 3));
        assertEquals("a-3", reached(leases, 3));
    }

    @Test
    void processesOfEndpointsOfTheDriverAreUsed() throws IOException {
        startAll("a", 2);
        ofDriver.add(daemons.get("a-0").endpoint());
        assertEquals("a-1", reached(leases("none"), 1));
    }

    /** Each silent process costs a connect timeout. */
    @Test
    void theHostIsGivenUpAfterTwoSilentProcesses() throws IOException {
        startAll("a", 4);
        start("b", 0, 1);
        TaskManagerLeases leases = leases("a", "b");
        assertEquals("a-0", reached(leases, 0));
        for (int process = 0; process < 4; process++) {
            stop("a", process);
        }
        List<ServerSocketChannel> silent = new ArrayList<>();
        try {
            for (int process = 0; process < 4; process++) {
                ServerSocketChannel socket = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
                silent.add(socket);
                socket.bind(UnixDomainSocketAddress.of(path("a", process)));
                socket.configureBlocking(false);
            }
            assertEquals("b-0", reached(leases, 1));
            List<Boolean> asked = new ArrayList<>();
            for (ServerSocketChannel socket : silent) {
                asked.add(socket.accept() != null);
            }
            assertEquals(List.of(false, true, true, false), asked);
            assertEquals("b-0", reached(leases, 3), "nor by the next task");
            assertEquals(null, silent.get(3).accept());
        } finally {
            for (ServerSocketChannel socket : silent) {
                socket.close();
            }
        }
    }
}
