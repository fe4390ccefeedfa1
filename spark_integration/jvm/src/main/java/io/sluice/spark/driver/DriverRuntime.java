package io.sluice.spark.driver;

import io.sluice.client.auth.Credential;
import io.sluice.client.connection.ClientOptions;
import io.sluice.client.failover.Patience;
import io.sluice.client.tls.Tls;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.EndpointChooser;
import io.sluice.spark.common.NoTaskManagerException;
import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.outputs.Locality;
import io.sluice.spark.outputs.OutputRegistry;
import io.sluice.spark.outputs.SparkTracker;
import io.sluice.spark.registration.FallbackPolicies;
import io.sluice.spark.registration.ShuffleRegistrar;
import io.sluice.spark.registration.ShuffleTable;
import io.sluice.spark.settings.SluiceSettings;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.LongSupplier;
import org.apache.spark.SparkEnv;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.slf4j.event.Level;

/**
 * The driver's side of the plugin. One connection to every known TaskManager keeps the application
 * alive there and releases its data.
 *
 * <p>Thread safe. A few threads of this class use the connections, each connection by one thread at
 * a time.
 */
public final class DriverRuntime {
    private static final Logger LOG = LoggerFactory.getLogger(DriverRuntime.class);
    private static final int THREADS = 4;

    private static volatile DriverRuntime current;

    private final SluiceSettings settings;
    private final Credential credential;
    private final Tls tls;
    private final List<Endpoint> configured;
    private final boolean localMaster;
    private final Reachability reachability;
    private final StageCanceller canceller;
    private final LongSupplier nextTaskId;
    private final DriverLinks links;
    private final Locality locality;
    private final OutputRegistry outputs;
    private final ScheduledThreadPoolExecutor threads;

    private final ShuffleTable shuffles = new ShuffleTable();
    private final ApplicationCounters counters = new ApplicationCounters(SluiceMetrics.INSTANCE);
    private final ShuffleRegistrar registrar;
    private boolean released;

    /** Ends the jobs of a stage. */
    @FunctionalInterface
    public interface StageCanceller {
        void cancel(int stageId, String reason);
    }

    /**
     * @param credential what the driver proves; null for nothing
     * @param localMaster whether tasks run in this process, and reach exactly the TaskManagers that
     *     the driver reaches
     * @param reachability the executors' reports of the TaskManagers they reach
     * @param nextTaskId returns the id of the task that Spark starts next, above all earlier ids
     */
    public DriverRuntime(
            SluiceSettings settings,
            Credential credential,
            String ownHost,
            boolean localMaster,
            Reachability reachability,
            StageCanceller canceller,
            LongSupplier nextTaskId) {
        this.settings = settings;
        this.credential = credential;
        this.tls = settings.ssl().load();
        this.configured = settings.endpointsFor(ownHost);
        this.localMaster = localMaster;
        this.reachability = reachability;
        this.canceller = canceller;
        this.nextTaskId = nextTaskId;
        this.threads =
                new ScheduledThreadPoolExecutor(
                        THREADS,
                        work -> {
                            Thread thread = new Thread(work, "sluice-driver");
                            thread.setDaemon(true);
                            return thread;
                        });
        this.threads.setRemoveOnCancelPolicy(true);
        this.links =
                new DriverLinks(
                        threads,
                        settings.liveness().pingIntervalMillis(),
                        settings.copies().lostAfterMillis(),
                        DriverLinks.SHARED_CHECK_MILLIS);
        this.locality = new Locality(settings.reader().locality(), SparkTracker::hideHosts);
        this.outputs =
                new OutputRegistry(
                        new SparkTracker(locality::hostOf), links, settings.copies().replicas());
        this.registrar =
                new ShuffleRegistrar(
                        FallbackPolicies.of(
                                settings.routing().enabled(),
                                settings.routing().fallbackBelowBytes(),
                                SluiceSettings::sizeInBytes,
                                shuffle -> whyUnreachable(shuffle.shuffleId())),
                        shuffles);
    }

    public SluiceSettings settings() {
        return settings;
    }

    /** Returns the registrar that decides on new shuffles. */
    public ShuffleRegistrar registrar() {
        return registrar;
    }

    /** Returns what decides whether tasks prefer the hosts that have their input. */
    public Locality locality() {
        return locality;
    }

    /** Returns the registry of where map outputs are. */
    public OutputRegistry outputs() {
        return outputs;
    }

    /** Returns the table of the application's shuffles. */
    public ShuffleTable shuffles() {
        return shuffles;
    }

    /** Returns the counters of the whole application. */
    public ApplicationCounters counters() {
        return counters;
    }

    /** Returns the connections to TaskManagers, in no particular order. */
    public List<DriverLink> links() {
        return List.copyOf(links.values());
    }

    /** Returns the runtime of this driver; null outside of a driver and after its end. */
    public static DriverRuntime current() {
        return current;
    }

    public static void install(DriverRuntime runtime) {
        current = runtime;
    }

    /**
     * Connects to the configured TaskManagers and keeps the connections alive. Called when the
     * application's id is known.
     */
    public void start(String applicationId) {
        ClientOptions options =
                new ClientOptions(
                        applicationId,
                        "driver of " + applicationId,
                        settings.io().connectTimeoutMillis(),
                        Math.min(settings.io().timeoutMillis(), 30_000),
                        new ChunkPool(1),
                        tls,
                        credential);
        if (links.start(options, outputs)) {
            addConfigured();
        }
    }

    private void addConfigured() {
        for (Endpoint endpoint : configured) {
            if (!endpoint.isUnix() || endpoint.socketExists()) {
                links.add(endpoint);
            }
        }
    }

    /**
     * Called when an executor uses the given TaskManager; perhaps before the application's id is
     * known, because executors begin while Spark waits for enough of them.
     */
    public void reached(String executorId, String taskManagerId, String host, int port) {
        boolean known =
                links.values().stream()
                        .map(DriverLink::taskManager)
                        .anyMatch(
                                t ->
                                        t != null
                                                && t.taskManagerId().equals(taskManagerId)
                                                && DriverLinks.isAt(t, host, port));
        if (!known) {
            LOG.info("TaskManager {} at {}:{} serves this application", taskManagerId, host, port);
            links.add(Endpoint.tcp(host, port));
        }
        reachability.reached(executorId, taskManagerId);
    }

    /** Called when an executor reaches no TaskManager. */
    public void unreachable(String executorId, String why) {
        if (reachability.unreachable(executorId, why)) {
            // With Sluice off, only a session that turns it on needs one.
            LOG.atLevel(settings.routing().enabled() ? Level.WARN : Level.INFO)
                    .log("Executor {} reaches no TaskManager: {}", executorId, why);
        }
    }

    /** Returns HOST:PORT of every TaskManager that has answered. */
    public String[] endpoints() {
        List<String> known = new ArrayList<>();
        for (DriverLink link : links.values()) {
            Message.HelloAck taskManager = link.taskManager();
            if (link.isConnected() && taskManager != null) {
                known.add(taskManager.advertisedHost() + ":" + taskManager.dataPort());
            }
        }
        return known.toArray(new String[0]);
    }

    /**
     * Returns why no TaskManager is reachable for a new shuffle; empty if one is.
     *
     * @throws IllegalStateException if none is reachable and the policy is to fail
     */
    Optional<String> whyUnreachable(int shuffleId) {
        start(SparkEnv.get().conf().getAppId());
        // A TaskManager may have been started on this host meanwhile.
        addConfigured();
        if (isReachableFor(shuffleId)) {
            return Optional.empty();
        }
        if (settings.routing().fallbackToSpark()) {
            return Optional.of(
                    "no TaskManager is reachable ("
                            + failures()
                            + ") and "
                            + SluiceSettings.FALLBACK_POLICY
                            + "=spark");
        }
        throw new IllegalStateException(
                NoTaskManagerException.message("for shuffle " + shuffleId, failures(), settings));
    }

    private boolean isReachableFor(int shuffleId) {
        // With the policy to fail, an outdated report must not hide a TaskManager that has just
        // been started.
        boolean driverDecides =
                localMaster
                        || !settings.routing().fallbackToSpark()
                        || !reachability.noneReachable(this::isGone);
        if (anyReachableOrReturns()) {
            if (driverDecides) {
                return true;
            }
        } else if (localMaster || configured.stream().noneMatch(EndpointChooser::isOfEachHost)) {
            return false;
        }
        Reachability.Verdict verdict = askExecutors();
        if (verdict == Reachability.Verdict.UNKNOWN) {
            if (settings.routing().fallbackToSpark() && reachability.lastReportedUnreachable()) {
                return false;
            }
            LOG.warn(
                    "It is unknown whether a TaskManager is reachable for shuffle {}, because no"
                        + " executor has reported yet. If none is reachable, the first task fails,"
                        + " and its job with it",
                    shuffleId);
        }
        return verdict != Reachability.Verdict.UNREACHABLE;
    }

    private Reachability.Verdict askExecutors() {
        // With the policy to fail, reports from before a TaskManager was started must not decide.
        long maxAgeMillis =
                settings.routing().fallbackToSpark() ? Long.MAX_VALUE : Reachability.SETTLE_MILLIS;
        try {
            return reachability.await(
                    this::isGone, settings.liveness().reachabilityTimeoutMillis(), maxAgeMillis);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(
                    "interrupted while waiting for an executor that reaches a TaskManager", e);
        }
    }

    /** Returns whether the driver was once connected to the TaskManager and has lost it. */
    private boolean isGone(String taskManagerId) {
        boolean known = false;
        for (DriverLink link : links.values()) {
            Message.HelloAck taskManager = link.taskManager();
            if (taskManager != null && taskManager.taskManagerId().equals(taskManagerId)) {
                if (link.isConnected()) {
                    return false;
                }
                known = true;
            }
        }
        return known;
    }

    /**
     * Cancels the jobs of a stage, one of whose tasks reached no TaskManager, if no executor
     * reaches one; returns whether it did. Otherwise Spark retries the task, perhaps on another
     * executor.
     */
    public boolean cancelIfUnreachable(int stageId) {
        if (!reachability.noneReachable(this::isGone)) {
            // The TaskManagers that executors have reported may have gone since the last ping.
            pingAll().forEach(this::await);
            if (!reachability.noneReachable(this::isGone)) {
                return false;
            }
        }
        String reason = NoTaskManagerException.message("from any executor", failures(), settings);
        LOG.warn("The jobs of stage {} are cancelled: {}", stageId, reason);
        canceller.cancel(stageId, reason);
        return true;
    }

    private boolean anyReachable() {
        for (DriverLink link : links.values()) {
            if (link.isConnected()) {
                return true;
            }
        }
        // No connection is known to work: ping all at once; the first answer is enough.
        for (Future<Boolean> answer : pingAll()) {
            if (Boolean.TRUE.equals(await(answer))) {
                return true;
            }
        }
        return false;
    }

    /** Waits also for the return of one that was there, with the policy to fail, as a task does. */
    private boolean anyReachableOrReturns() {
        Patience patience = new Patience(settings.reader().returnTimeoutMillis());
        boolean patient =
                !settings.routing().fallbackToSpark()
                        && links.values().stream().anyMatch(link -> link.taskManager() != null);
        try {
            do {
                if (anyReachable()) {
                    return true;
                }
            } while (patient && patience.pause("a TaskManager's return"));
            return false;
        } catch (ClientException.Interrupted e) {
            throw new IllegalStateException(e.getMessage(), e);
        }
    }

    private List<Future<Boolean>> pingAll() {
        List<Future<Boolean>> answers = new ArrayList<>();
        for (DriverLink link : links.values()) {
            answers.add(threads.submit(link::ping));
        }
        return answers;
    }

    private String failures() {
        List<String> all = new ArrayList<>();
        for (Endpoint endpoint : configured) {
            if (!links.contains(endpoint)) {
                all.add(endpoint + ": there is no such socket on the driver's host");
            }
        }
        links.values().stream()
                .filter(link -> !link.isConnected() && !link.lastFailure().isEmpty())
                .map(DriverLink::lastFailure)
                .forEach(all::add);
        all.addAll(reachability.failures());
        return String.join("; ", all);
    }

    /**
     * Releases a shuffle on every TaskManager, after its return if it is away. Spark's cleaner has
     * unregistered the shuffle already; the end of a query has not, and the query may run again.
     *
     * @param blocking whether to wait for those that are there, within the deadlines of the links
     */
    public void releaseShuffle(int shuffleId, boolean blocking) {
        // Before the outputs are unregistered: a map task that starts afterwards replaces one.
        long end = nextTaskId.getAsLong();
        SparkTracker.forgetMapOutputs(shuffleId);
        shuffles.released(shuffleId);
        outputs.released(shuffleId);
        List<Future<Boolean>> answers = new ArrayList<>();
        for (DriverLink link : links.values()) {
            link.addRelease(shuffleId, end);
            if (link.isConnected()) {
                answers.add(threads.submit(link::release));
            }
        }
        if (blocking) {
            answers.forEach(this::await);
        }
    }

    /**
     * Called before Spark hears that map outputs cannot be read anywhere. Finds all other losses
     * first, so that together they cost one fetch failure.
     */
    public void leave(DriverMessages.Leave lost) {
        // The task waits for the answer as long as for a connect. TaskManagers that have been away
        // for half of the time that a reader waits were probably lost with the reported one.
        Set<String> away =
                links.look(
                        settings.io().connectTimeoutMillis() / 2,
                        settings.reader().returnTimeoutMillis() / 2);
        outputs.leave(lost.taskManagerId(), lost.shuffleId(), lost.attempts());
        outputs.vacate(away);
    }

    /** Releases all data of the application, once. */
    public void releaseApplication() {
        synchronized (this) {
            if (released) {
                return;
            }
            released = true;
        }
        List<Future<Boolean>> answers = new ArrayList<>();
        for (DriverLink link : links.values()) {
            if (link.isConnected()) {
                answers.add(threads.submit(link::releaseApplication));
            }
        }
        answers.forEach(this::await);
    }

    private Boolean await(Future<Boolean> answer) {
        try {
            return answer.get(
                    settings.io().connectTimeoutMillis() * 2 + settings.io().timeoutMillis(),
                    TimeUnit.MILLISECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return false;
        } catch (ExecutionException | TimeoutException e) {
            LOG.warn("A TaskManager did not answer the driver", e);
            return false;
        }
    }

    /** Closes the connections. */
    public void close() {
        links.closing();
        threads.shutdownNow();
        links.close();
        if (current == this) {
            current = null;
        }
    }
}
