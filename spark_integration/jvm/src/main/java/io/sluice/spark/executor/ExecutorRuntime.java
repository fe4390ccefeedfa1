package io.sluice.spark.executor;

import io.sluice.client.auth.Credential;
import io.sluice.client.connection.ClientOptions;
import io.sluice.client.connection.ConnectionPool;
import io.sluice.client.connection.ConnectionSource;
import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.failover.ReplicaLocator;
import io.sluice.client.failover.RetryDeadline;
import io.sluice.client.failover.UnreachableCache;
import io.sluice.client.output.RegionPool;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.EndpointChooser;
import io.sluice.spark.common.NoTaskManagerException;
import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.settings.ChangedSettings;
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

/** Connections and buffers that the tasks of one executor share. Thread safe. */
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
    private final EndpointBackoff backoff = new EndpointBackoff(System::nanoTime);
    private final ReachabilityReporter reporter;
    private final DriverReplicaLocator replicas;
    private final UnreachableCache unreachable = new UnreachableCache();

    /** TaskManagers that this executor has reached through a Unix socket. */
    private final Set<String> localTaskManagers = ConcurrentHashMap.newKeySet();

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
                        this,
                        Message.ROLE_PRODUCER,
                        settings.writer().returnTimeoutMillis(),
                        settings.writer().returnTimeoutMillis());
        this.consumerConnections =
                new TaskConnections(
                        this,
                        Message.ROLE_CONSUMER,
                        settings.reader().returnTimeoutMillis(),
                        settings.reader().refusedTimeoutMillis());
        int tasks =
                TaskSlots.of(
                        key -> context.conf().get(key, null),
                        Runtime.getRuntime().availableProcessors());
        // A running map task has at most two regions: one being secured and one being filled.
        this.regions =
                new RegionPool(
                        settings.writer().regionBytes(),
                        tasks,
                        settings.writer().regionArea() ? 2 * tasks : 0);
        this.replicas =
                new DriverReplicaLocator(
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
     * @param credential the credential of tasks; null for none
     */
    private record Installed(PluginContext context, Credential credential) {}

    private static volatile Installed installed;

    /**
     * Called by the executor's plugin. The runtime is made later, when the application has an id.
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
                                + ChangedSettings.PLUGIN);
            }
            current =
                    new ExecutorRuntime(
                            plugin,
                            SluiceSettings.of(plugin.context().conf()),
                            SparkEnv.get().conf().getAppId());
        }
        return current;
    }

    /** Closes the runtime at the end of the executor's plugin. */
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
     * Leases a connection to this executor's TaskManager, or to another one if it does not answer.
     *
     * @param returnTimeoutMillis how long to wait for a TaskManager if one has answered before: it
     *     may be restarting
     * @throws NoTaskManagerException if no known TaskManager answers; the driver has been notified
     * @throws ClientException.Interrupted if the task was interrupted meanwhile
     */
    public TaskManagerConnection lease(int role, long returnTimeoutMillis) throws IOException {
        RetryDeadline deadline = new RetryDeadline(returnTimeoutMillis);
        while (true) {
            try {
                return leaseNow(role);
            } catch (NoTaskManagerException e) {
                if (!reporter.everReached() || !deadline.pause("a TaskManager's return")) {
                    reporter.unreachable(e.reasons());
                    reportTaskFailure();
                    throw e;
                }
            }
        }
    }

    /**
     * Tries the configured endpoints, then those of the driver, then those that failed recently.
     */
    private TaskManagerConnection leaseNow(int role) throws IOException {
        Map<Endpoint, ClientException.ConnectFailed> failures = new LinkedHashMap<>();
        Set<Endpoint> backedOff = new LinkedHashSet<>();
        TaskManagerConnection connection = leaseAnswering(endpoints, role, failures, backedOff);
        if (connection == null) {
            connection = leaseAnswering(endpointsOfDriver(), role, failures, backedOff);
        }
        for (Endpoint endpoint : backedOff) {
            connection = connection == null ? tryLease(endpoint, role, failures) : connection;
        }
        if (connection == null) {
            throw new NoTaskManagerException("from " + name, reasons(failures), settings);
        }
        if (!failures.isEmpty()) {
            SluiceMetrics.INSTANCE.endpointFailovers.increment();
            // All tasks see the same failures: warn only of the first.
            boolean isOutdated =
                    failures.keySet().stream()
                            .anyMatch(each -> backoff.failuresInARow(each, role) == 1);
            LOG.atLevel(isOutdated ? Level.WARN : Level.DEBUG)
                    .log(
                            "Using the TaskManager at {} because others do not answer: {}",
                            connection.endpoint(),
                            reasons(failures));
        }
        Message.HelloAck taskManager = connection.taskManager();
        if (connection.endpoint().isUnix()) {
            localTaskManagers.add(taskManager.taskManagerId());
        }
        reporter.reached(taskManager, preferredHost(taskManager));
        return connection;
    }

    /** Returns this executor's host if the TaskManager is on it; null otherwise. */
    public String preferredHost(Message.HelloAck taskManager) {
        return localTaskManagers.contains(taskManager.taskManagerId())
                        || taskManager.advertisedHost().equals(hostname)
                ? hostname
                : null;
    }

    private TaskManagerConnection leaseAnswering(
            List<Endpoint> candidates,
            int role,
            Map<Endpoint, ClientException.ConnectFailed> failures,
            Set<Endpoint> backedOff)
            throws IOException {
        for (Endpoint endpoint :
                EndpointChooser.order(candidates, hostname, context.executorID())) {
            if (backoff.has(endpoint, role)) {
                if (!failures.containsKey(endpoint)) {
                    backedOff.add(endpoint);
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
        long began = backoff.now();
        try {
            TaskManagerConnection connection = pool.lease(endpoint, role);
            backoff.answered(endpoint, role);
            return connection;
        } catch (ClientException.ConnectFailed e) {
            backoff.failed(endpoint, role, began);
            failures.put(endpoint, e);
            return null;
        }
    }

    /** Makes tasks prefer other TaskManagers for a while. */
    void avoid(Endpoint endpoint, int role) {
        backoff.avoid(endpoint, role);
        LOG.warn("The TaskManager at {} has no room: trying others first", endpoint);
    }

    private static String reasons(Map<Endpoint, ClientException.ConnectFailed> failures) {
        return failures.values().stream()
                .map(ClientException.ConnectFailed::summary)
                .collect(Collectors.joining("; "));
    }

    /** Notifies the driver, which cancels the task's jobs if no executor reaches a TaskManager. */
    private void reportTaskFailure() {
        TaskContext task = TaskContext.get();
        if (task == null) {
            return;
        }
        try {
            context.ask(DriverMessages.taskUnreachable(task.stageId()));
        } catch (Exception e) {
            // The task fails anyway, and Spark makes more attempts.
            LOG.warn("Could not notify the driver that a task reached no TaskManager", e);
        }
    }

    /** Reports to the driver, from another thread, which TaskManager this executor reaches. */
    public void reportReachability() {
        reporter.start();
    }

    private void probe() throws IOException {
        pool.release(leaseNow(Message.ROLE_PRODUCER));
    }

    private List<Endpoint> endpointsOfDriver() {
        try {
            List<Endpoint> known = new ArrayList<>();
            for (String text : (String[]) context.ask(DriverMessages.endpoints())) {
                known.add(Endpoint.parse(text, hostname));
            }
            return known;
        } catch (Exception e) {
            LOG.warn("Could not ask the driver for the TaskManagers it knows", e);
            return List.of();
        }
    }

    /** Drops cached map statuses, so that new tasks ask Spark's tracker on the driver. */
    private static void forgetStatuses(int shuffleId) {
        MapOutputTracker tracker = SparkEnv.get().mapOutputTracker();
        if (!(tracker instanceof MapOutputTrackerMaster)) {
            tracker.unregisterShuffle(shuffleId);
        }
    }

    ReplicaLocator replicas() {
        return replicas;
    }

    UnreachableCache unreachable() {
        return unreachable;
    }

    /**
     * Reports to the driver that a task fails because it cannot read map outputs from any
     * TaskManager. After the answer, Spark's tracker has no other lost map outputs either.
     */
    public void reportUnreadable(String taskManagerId, int shuffleId, long[] attempts) {
        try {
            replicas.reportUnreadable(taskManagerId, shuffleId, attempts);
        } catch (ClientException.Interrupted e) {
            LOG.debug("the task has ended", e);
        }
    }

    /** Asks the driver to unregister one lost map output. */
    public void forgetMapOutput(int shuffleId, long mapId, int mapIndex) {
        try {
            Object answer = context.ask(DriverMessages.lostOutput(shuffleId, mapId, mapIndex));
            LOG.info(
                    "Map output {} of shuffle {} is lost; unregistered: {}",
                    mapId,
                    shuffleId,
                    answer);
        } catch (Exception e) {
            // Spark fails the stage anyway, and makes more attempts.
            LOG.warn("Could not notify the driver that map output {} is lost", mapId, e);
        }
    }

    @Override
    public void close() {
        reporter.close();
        replicas.close();
        pool.close();
    }
}
