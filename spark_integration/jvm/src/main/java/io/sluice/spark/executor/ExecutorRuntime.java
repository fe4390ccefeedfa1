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
import io.sluice.client.wire.DataProcesses;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.EndpointChooser;
import io.sluice.spark.common.NoTaskManagerException;
import io.sluice.spark.members.Places;
import io.sluice.spark.settings.ChangedSettings;
import io.sluice.spark.settings.SluiceSettings;
import java.io.IOException;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.MapOutputTracker;
import org.apache.spark.MapOutputTrackerMaster;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.api.plugin.PluginContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Connections and buffers that the tasks of one executor share. Thread safe. */
public final class ExecutorRuntime implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(ExecutorRuntime.class);

    /** Idle buffers to keep: 1024 of 32 KiB are 32 MiB. */
    private static final int IDLE_CHUNKS = 1024;

    private static volatile ExecutorRuntime current;

    private final PluginContext context;
    private final SluiceSettings settings;
    private final ConnectionPool pool;
    private final ExecutorMembers members;
    private final TaskManagerLeases leases;
    private final RegionPool regions;
    private final String hostname;
    private final ReachabilityReporter reporter;
    private final DriverReplicaLocator replicas;
    private final UnreachableCache unreachable = new UnreachableCache();

    /** Numbers of the next tasks that write, and that read a pipelined shuffle. */
    private final AtomicLong nextProducer;

    private final AtomicLong nextConsumer;

    /** The data process that was leased last; null before the first one. */
    private volatile Message.HelloAck lastReached;

    /** TaskManagers that this executor has reached through a Unix socket. */
    private final Set<String> localTaskManagers = ConcurrentHashMap.newKeySet();

    private ExecutorRuntime(Installed plugin, SluiceSettings settings, String applicationId) {
        this.context = plugin.context();
        this.settings = settings;
        // PluginContext.hostname() needs an RPC server, which executors do not have.
        this.hostname = SparkEnv.get().blockManager().blockManagerId().host();
        String name = "executor " + context.executorID() + " on " + hostname;
        // Executors of one host start at different processes.
        this.nextProducer = new AtomicLong(context.executorID().hashCode());
        this.nextConsumer = new AtomicLong(context.executorID().hashCode());
        this.pool =
                new ConnectionPool(
                        new ClientOptions(
                                applicationId,
                                name,
                                settings.io().connectTimeoutMillis(),
                                settings.io().timeoutMillis(),
                                settings.io().silenceTimeoutMillis(),
                                new ChunkPool(IDLE_CHUNKS),
                                settings.ssl().load(),
                                plugin.credential(),
                                settings.copies().replicas().isRemote()),
                        settings.io().idleConnections());
        Places places =
                Places.of(settings.place().node(), settings.place().zone(), System.getenv());
        this.members =
                new ExecutorMembers(
                        settings.endpointsFor(hostname),
                        new EndpointChooser.Chooser(context.executorID(), hostname, places),
                        context::ask);
        this.leases =
                new TaskManagerLeases(
                        pool,
                        members,
                        reasons -> new NoTaskManagerException("from " + name, reasons, settings),
                        System::nanoTime);
        int taskSlots =
                TaskSlots.of(
                        key -> context.conf().get(key, null),
                        Runtime.getRuntime().availableProcessors());
        this.regions =
                new RegionPool(
                        settings.writer().regionBytes(),
                        taskSlots,
                        settings.writer().regionArea()
                                ? RegionPool.REGIONS_PER_TASK * taskSlots
                                : 0);
        this.replicas =
                new DriverReplicaLocator(
                        context::ask,
                        ExecutorRuntime::forgetStatuses,
                        settings.io().connectTimeoutMillis());
        this.reporter =
                new ReachabilityReporter(
                        context, this::probe, settings.liveness().pingIntervalMillis());
        this.reporter.every(ExecutorMembers.INTERVAL_MILLIS, this::refreshMembers);
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

    /**
     * Returns the number of the next task that writes, which chooses its data process. The ids of
     * task attempts would not spread: Spark deals them to the executors in turn, so with as many
     * executors as processes all tasks of an executor would have the same process.
     */
    public long nextProducer() {
        return nextProducer.getAndIncrement();
    }

    /**
     * Returns the connections of a map task.
     *
     * @param task chooses the data process, modulo their number
     */
    public ConnectionSource producerConnections(long task) {
        long timeout = settings.writer().returnTimeoutMillis();
        return new TaskConnections(this, Message.ROLE_PRODUCER, task, timeout, timeout);
    }

    /**
     * Returns the connections of a reduce task to one data process.
     *
     * @param process the process, modulo their number
     */
    public ConnectionSource consumerConnections(int process) {
        return new TaskConnections(
                this,
                Message.ROLE_CONSUMER,
                process,
                settings.reader().returnTimeoutMillis(),
                settings.reader().refusedTimeoutMillis());
    }

    /**
     * Returns the data processes of the TaskManager that this executor reached last. Connects if it
     * has not reached any.
     */
    public DataProcesses processes() throws IOException {
        if (lastReached == null) {
            // The gate that is opened next takes the connection from the pool.
            pool.release(lease(Message.ROLE_CONSUMER, 0, settings.reader().returnTimeoutMillis()));
        }
        return DataProcesses.of(lastReached);
    }

    /** Returns the region buffers of map tasks. */
    public RegionPool regions() {
        return regions;
    }

    /**
     * Returns the data process that a map task will have if that process answers. Before the first
     * connection the number of processes is unknown, and taken as 1.
     *
     * @param task as for {@link #producerConnections}
     */
    public int expectedProcess(long task) {
        Message.HelloAck known = lastReached;
        return known == null ? 0 : Math.floorMod(task, known.processes());
    }

    /**
     * Leases a connection for a task that writes or reads a pipelined shuffle. Consecutive tasks
     * have different data processes.
     */
    public TaskManagerConnection leasePipelined(int role) throws IOException {
        AtomicLong next = role == Message.ROLE_PRODUCER ? nextProducer : nextConsumer;
        return lease(role, next.getAndIncrement(), settings.reader().returnTimeoutMillis());
    }

    /**
     * Leases a connection to this executor's TaskManager, or to another one if it does not answer.
     *
     * @param task chooses the data process, modulo their number
     * @param returnTimeoutMillis how long to wait for a TaskManager if one has answered before: it
     *     may be restarting
     * @throws NoTaskManagerException if no known TaskManager answers; the driver has been notified
     * @throws ClientException.Interrupted if the task was interrupted meanwhile
     */
    TaskManagerConnection lease(int role, long task, long returnTimeoutMillis) throws IOException {
        RetryDeadline deadline = new RetryDeadline(returnTimeoutMillis);
        while (true) {
            try {
                return leaseNow(role, task);
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
     * @param task chooses the data process, modulo their number
     */
    private TaskManagerConnection leaseNow(int role, long task) throws IOException {
        TaskManagerConnection connection = leases.lease(role, task);
        Message.HelloAck taskManager = connection.taskManager();
        if (connection.endpoint().isUnix()) {
            localTaskManagers.add(taskManager.taskManagerId());
        }
        lastReached = taskManager;
        reporter.reached(taskManager, preferredHost(taskManager));
        return connection;
    }

    /**
     * Returns this executor's host if the TaskManager is on its node; null otherwise. Without a
     * node on both sides, hosts are compared.
     */
    public String preferredHost(Message.HelloAck taskManager) {
        if (localTaskManagers.contains(taskManager.taskManagerId())) {
            return hostname;
        }
        Places own = members.ownPlaces();
        Places other = members.placesOf(taskManager);
        boolean isNear =
                own.knowsNodes(other)
                        ? own.isSameNode(other)
                        : taskManager.advertisedHost().equals(hostname);
        return isNear ? hostname : null;
    }

    /** Asks the driver for the TaskManagers, and reports again if it does not know this one. */
    private void refreshMembers() {
        members.refresh();
        reporter.forgetUnless(members::mayHave);
    }

    /** Makes tasks prefer other TaskManagers for a while. */
    void avoid(Endpoint endpoint, int role) {
        leases.avoid(endpoint, role);
    }

    /** Makes tasks in all roles try a silent TaskManager last for a while. */
    void silent(Endpoint endpoint) {
        leases.silent(endpoint);
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
        pool.release(leaseNow(Message.ROLE_PRODUCER, 0));
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
