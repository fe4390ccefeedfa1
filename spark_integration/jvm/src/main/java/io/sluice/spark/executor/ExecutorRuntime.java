package io.sluice.spark.executor;

import io.sluice.client.auth.Credential;
import io.sluice.client.connection.ClientOptions;
import io.sluice.client.connection.ConnectionPool;
import io.sluice.client.connection.ConnectionSource;
import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.failover.Absences;
import io.sluice.client.failover.Patience;
import io.sluice.client.failover.PlaceDirectory;
import io.sluice.client.output.RegionPool;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import io.sluice.spark.SluicePlugin;
import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.EndpointChooser;
import io.sluice.spark.common.NoTaskManagerException;
import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.settings.SluiceSettings;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.spark.MapOutputTracker;
import org.apache.spark.MapOutputTrackerMaster;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.api.plugin.PluginContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.slf4j.event.Level;

/**
 * Holds what the tasks of one executor share: connections, buffers, and the choice of their
 * TaskManager. Thread safe.
 */
public final class ExecutorRuntime implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(ExecutorRuntime.class);

    /** Idle buffers to keep: 1024 of 32 KiB are 32 MiB. */
    private static final int IDLE_CHUNKS = 1024;

    private static volatile ExecutorRuntime current;

    private final PluginContext context;
    private final SluiceSettings settings;
    private final ConnectionPool pool;
    private final ConnectionSource producerConnections;
    private final ConnectionSource consumerConnections;
    private final RegionPool regions;
    private final String hostname;
    private final String name;
    private final List<Endpoint> endpoints;
    private final Penalties penalties = new Penalties(System::nanoTime);
    private final ReachabilityReporter reporter;
    private final DriverPlaces places;
    private final Absences absences = new Absences();

    /** TaskManagers that this executor has reached through a Unix socket of its host. */
    private final Set<String> besides = ConcurrentHashMap.newKeySet();

    private ExecutorRuntime(Installed plugin, SluiceSettings settings, String applicationId) {
        this.context = plugin.context();
        this.settings = settings;
        // PluginContext.hostname() needs an RPC server, which executors do not have.
        this.hostname = SparkEnv.get().blockManager().blockManagerId().host();
        this.endpoints = settings.endpointsFor(hostname);
        this.name = "executor " + context.executorID() + " on " + hostname;
        this.pool =
                new ConnectionPool(
                        new ClientOptions(
                                applicationId,
                                name,
                                settings.io().connectTimeoutMillis(),
                                settings.io().timeoutMillis(),
                                new ChunkPool(IDLE_CHUNKS),
                                settings.ssl().load(),
                                plugin.credential()),
                        settings.io().idleConnections());
        this.producerConnections =
                new TaskConnections(
                        this, Message.ROLE_PRODUCER, settings.writer().returnTimeoutMillis());
        this.consumerConnections =
                new TaskConnections(
                        this, Message.ROLE_CONSUMER, settings.reader().returnTimeoutMillis());
        int tasks =
                TaskSlots.of(
                        key -> context.conf().get(key, null),
                        Runtime.getRuntime().availableProcessors());
        // A running map task has at most two regions: one that is being secured and one that is
        // being filled.
        this.regions =
                new RegionPool(
                        settings.writer().regionBytes(),
                        tasks,
                        settings.writer().regionArea() ? 2 * tasks : 0);
        this.places =
                new DriverPlaces(
                        context::ask,
                        ExecutorRuntime::forgetStatuses,
                        settings.io().connectTimeoutMillis());
        this.reporter =
                new ReachabilityReporter(
                        context, this::probe, settings.liveness().pingIntervalMillis());
    }

    /**
     * What Spark hands to the executor's plugin.
     *
     * @param credential what the tasks prove; null for nothing
     */
    private record Installed(PluginContext context, Credential credential) {}

    private static volatile Installed installed;

    /**
     * Remembers the context and the credential of tasks; called by the executor's plugin. The
     * runtime is made later, when the application's id is known.
     */
    public static void install(PluginContext context, Credential credential) {
        installed = new Installed(context, credential);
    }

    /** Returns the runtime of this executor. */
    public static ExecutorRuntime get() {
        ExecutorRuntime runtime = current;
        return runtime != null ? runtime : create();
    }

    private static synchronized ExecutorRuntime create() {
        if (current == null) {
            Installed plugin = installed;
            if (plugin == null) {
                throw new IllegalStateException(
                        "the Sluice plugin is not loaded on this executor: set spark.plugins="
                                + SluicePlugin.class.getName());
            }
            current =
                    new ExecutorRuntime(
                            plugin,
                            SluiceSettings.of(plugin.context().conf()),
                            SparkEnv.get().conf().getAppId());
        }
        return current;
    }

    /** Closes the runtime; called by the executor's plugin at its end. */
    public static synchronized void uninstall() {
        if (current != null) {
            current.close();
            current = null;
        }
        installed = null;
    }

    public SluiceSettings settings() {
        return settings;
    }

    public ConnectionPool pool() {
        return pool;
    }

    /** Returns the connections for map tasks. */
    public ConnectionSource producerConnections() {
        return producerConnections;
    }

    /** Returns the connections for reduce tasks. */
    public ConnectionSource consumerConnections() {
        return consumerConnections;
    }

    public RegionPool regions() {
        return regions;
    }

    /**
     * Leases a connection to this executor's TaskManager, or to another one if that does not
     * answer. Called by the thread of a task.
     *
     * @param returnTimeoutMillis how long to wait if none answers and one did before; a task that
     *     fails at once would use up its attempts before a restarted TaskManager is ready
     * @throws NoTaskManagerException if none of the known TaskManagers answers; the driver has been
     *     told
     * @throws ClientException.Interrupted if the task was interrupted meanwhile
     */
    public TaskManagerConnection lease(int role, long returnTimeoutMillis) throws IOException {
        Patience patience = new Patience(returnTimeoutMillis);
        while (true) {
            try {
                return leaseNow(role);
            } catch (NoTaskManagerException e) {
                if (!reporter.everReached() || !patience.pause("a TaskManager's return")) {
                    reporter.unreachable(e.reasons());
                    tellThatTaskFails();
                    throw e;
                }
            }
        }
    }

    /**
     * Tries the configured endpoints, then those that the driver knows, and last the endpoints that
     * did not answer lately.
     */
    private TaskManagerConnection leaseNow(int role) throws IOException {
        Map<Endpoint, ClientException.ConnectFailed> failures = new LinkedHashMap<>();
        Set<Endpoint> penalised = new LinkedHashSet<>();
        TaskManagerConnection connection = leaseWell(endpoints, role, failures, penalised);
        if (connection == null) {
            connection = leaseWell(endpointsOfDriver(), role, failures, penalised);
        }
        for (Endpoint endpoint : penalised) {
            connection = connection == null ? tryLease(endpoint, role, failures) : connection;
        }
        if (connection == null) {
            throw new NoTaskManagerException("from " + name, reasons(failures), settings);
        }
        if (!failures.isEmpty()) {
            SluiceMetrics.INSTANCE.endpointFailovers.increment();
            // Every task meets the same failures while an endpoint is away: warn only of the first.
            boolean isNews =
                    failures.keySet().stream()
                            .anyMatch(each -> penalties.failuresInARow(each, role) == 1);
            LOG.atLevel(isNews ? Level.WARN : Level.DEBUG)
                    .log(
                            "Using the TaskManager at {} because others do not answer: {}",
                            connection.endpoint(),
                            reasons(failures));
        }
        Message.HelloAck taskManager = connection.taskManager();
        if (connection.endpoint().isUnix()) {
            besides.add(taskManager.taskManagerId());
        }
        reporter.reached(taskManager, hostBeside(taskManager));
        return connection;
    }

    /**
     * Returns the host that Spark's scheduler is to prefer for readers of this TaskManager: this
     * executor's own if it is also the TaskManager's.
     *
     * @return null if the TaskManager is on another host
     */
    public String hostBeside(Message.HelloAck taskManager) {
        return besides.contains(taskManager.taskManagerId())
                        || taskManager.advertisedHost().equals(hostname)
                ? hostname
                : null;
    }

    private TaskManagerConnection leaseWell(
            List<Endpoint> candidates,
            int role,
            Map<Endpoint, ClientException.ConnectFailed> failures,
            Set<Endpoint> penalised)
            throws IOException {
        for (Endpoint endpoint :
                EndpointChooser.order(candidates, hostname, context.executorID())) {
            if (penalties.has(endpoint, role)) {
                if (!failures.containsKey(endpoint)) {
                    penalised.add(endpoint);
                }
                continue;
            }
            TaskManagerConnection connection = tryLease(endpoint, role, failures);
            if (connection != null) {
                return connection;
            }
        }
        return null;
    }

    /** Leases a connection, or returns null and puts the reason into {@code failures}. */
    private TaskManagerConnection tryLease(
            Endpoint endpoint, int role, Map<Endpoint, ClientException.ConnectFailed> failures)
            throws IOException {
        long began = penalties.now();
        try {
            TaskManagerConnection connection = pool.lease(endpoint, role);
            penalties.answered(endpoint, role);
            return connection;
        } catch (ClientException.ConnectFailed e) {
            penalties.failed(endpoint, role, began);
            failures.put(endpoint, e);
            return null;
        }
    }

    /** Lets tasks use other TaskManagers for a while, as far as there are any. */
    void passOver(Endpoint endpoint, int role) {
        penalties.passOver(endpoint, role);
        LOG.warn("The TaskManager at {} has no room: others are tried first", endpoint);
    }

    private static String reasons(Map<Endpoint, ClientException.ConnectFailed> failures) {
        return failures.values().stream()
                .map(ClientException.ConnectFailed::summary)
                .collect(Collectors.joining("; "));
    }

    /**
     * Tells the driver, which cancels the task's jobs if no executor reaches a TaskManager, because
     * more attempts would fail too.
     */
    private void tellThatTaskFails() {
        TaskContext task = TaskContext.get();
        if (task == null) {
            return;
        }
        try {
            context.ask(DriverMessages.taskUnreachable(task.stageId()));
        } catch (Exception e) {
            // The task fails anyway; without this message Spark only makes more attempts.
            LOG.warn("The driver could not be told that a task reached no TaskManager", e);
        }
    }

    /** Tells the driver, from another thread, which TaskManager this executor reaches, if any. */
    public void reportReachability() {
        reporter.start();
    }

    private void probe() throws IOException {
        pool.giveBack(leaseNow(Message.ROLE_PRODUCER));
    }

    private List<Endpoint> endpointsOfDriver() {
        try {
            List<Endpoint> known = new ArrayList<>();
            for (String text : (String[]) context.ask(DriverMessages.endpoints())) {
                known.add(Endpoint.parse(text, hostname));
            }
            return known;
        } catch (Exception e) {
            LOG.warn("The driver could not be asked for the TaskManagers it knows", e);
            return List.of();
        }
    }

    /**
     * Lets the tasks that begin on this executor from now on ask Spark's tracker, which names other
     * places than what the executor knows.
     */
    private static void forgetStatuses(int shuffleId) {
        MapOutputTracker tracker = SparkEnv.get().mapOutputTracker();
        if (!(tracker instanceof MapOutputTrackerMaster)) {
            tracker.unregisterShuffle(shuffleId);
        }
    }

    /** Returns the directory of other places of map outputs. */
    PlaceDirectory places() {
        return places;
    }

    /** Returns the TaskManagers that were out of reach of a reader lately. */
    Absences absences() {
        return absences;
    }

    /**
     * Tells the driver that a task fails because it cannot read map outputs anywhere. Spark then
     * unregisters all map outputs of the TaskManager that its tracker had named. When the driver
     * has answered, Spark's tracker no longer has map outputs that other TaskManagers have lost.
     */
    public void leave(String taskManagerId, int shuffleId, long[] attempts) {
        try {
            places.leave(taskManagerId, shuffleId, attempts);
        } catch (ClientException.Interrupted e) {
            LOG.debug("the task is ended meanwhile", e);
        }
    }

    /** Asks the driver to forget one lost map output. */
    public void forgetMapOutput(int shuffleId, long mapId, int mapIndex) {
        try {
            Object answer = context.ask(DriverMessages.lostOutput(shuffleId, mapId, mapIndex));
            LOG.info(
                    "Map output {} of shuffle {} is lost; unregistered: {}",
                    mapId,
                    shuffleId,
                    answer);
        } catch (Exception e) {
            // Spark fails the stage anyway; without this message it only makes more attempts.
            LOG.warn("The driver could not be told that map output {} is lost", mapId, e);
        }
    }

    @Override
    public void close() {
        reporter.close();
        places.close();
        pool.close();
    }
}
