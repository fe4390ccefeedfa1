package io.sluice.spark.driver;

import io.sluice.client.auth.Credential;
import io.sluice.client.connection.ClientOptions;
import io.sluice.client.failover.RetryDeadline;
import io.sluice.client.tls.Tls;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.spark.common.DaemonThreads;
import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.EndpointChooser;
import io.sluice.spark.common.NoTaskManagerException;
import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.members.EndpointList;
import io.sluice.spark.members.NameResolver;
import io.sluice.spark.outputs.Locality;
import io.sluice.spark.outputs.OutputRegistry;
import io.sluice.spark.outputs.SparkTracker;
import io.sluice.spark.registration.FallbackPolicies;
import io.sluice.spark.registration.ShuffleRegistrar;
import io.sluice.spark.registration.ShuffleTable;
import io.sluice.spark.settings.ChangedSettings;
import io.sluice.spark.settings.SluiceSettings;
import java.net.InetAddress;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorCompletionService;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.LongSupplier;
import org.apache.spark.SparkEnv;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.slf4j.event.Level;

/**
 * The driver's side of the plugin: a connection to every known TaskManager keeps the application
 * alive there and releases its data. Thread safe.
 */
public final class DriverRuntime {
    private static final Logger LOG = LoggerFactory.getLogger(DriverRuntime.class);

    private static volatile DriverRuntime current;

    private final SluiceSettings settings;
    private final Credential credential;
    private final Tls tls;
    private final EndpointList configured;
    private final boolean localMaster;
    private final Reachability reachability;
    private final StageCanceller canceller;
    private final LongSupplier nextTaskId;
    private final DriverLinks links;
    private final Members members;
    private final ExecutorService lookups =
            Executors.newCachedThreadPool(DaemonThreads.named("sluice-names"));
    private final Locality locality;
    private final OutputRegistry outputs;
    private final ScheduledThreadPoolExecutor threads;

    private final ShuffleTable shuffles = new ShuffleTable();
    private final ApplicationCounters counters = new ApplicationCounters(SluiceMetrics.INSTANCE);
    private final ShuffleRegistrar registrar;
    private boolean released;

    /** Cancels the jobs of a stage. */
    @FunctionalInterface
    public interface StageCanceller {
        void cancel(int stageId, String reason);
    }

    /**
     * @param credential what the driver proves; null for nothing
     * @param localMaster whether tasks run in this process
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
        this.configured = settings.endpointsFor(ownHost);
        this.localMaster = localMaster;
        this.reachability = reachability;
        this.canceller = canceller;
        this.nextTaskId = nextTaskId;
        this.threads =
                new ScheduledThreadPoolExecutor(
                        DriverLinks.FIXED_THREADS, DaemonThreads.named("sluice-driver"));
        this.threads.setRemoveOnCancelPolicy(true);
        this.links =
                new DriverLinks(
                        threads,
                        settings.liveness().pingIntervalMillis(),
                        settings.copies().lostAfterMillis(),
                        new DriverLinks.ReturnTimeouts(
                                settings.reader().returnTimeoutMillis(),
                                settings.reader().refusedTimeoutMillis()),
                        DriverLinks.SHARED_CHECK_MILLIS);
        NameResolver names =
                new NameResolver(
                        configured.names(),
                        InetAddress::getAllByName,
                        lookups,
                        settings.routing().resolveIntervalMillis(),
                        settings.io().connectTimeoutMillis(),
                        System::nanoTime,
                        this::updateMembers);
        this.tls = settings.ssl().load().withNames(names::hostOf);
        this.members = new Members(configured, links, names);
        links.setMembership(members);
        this.locality = new Locality(settings.reader().locality(), SparkTracker::hideHosts);
        this.outputs = new OutputRegistry(new SparkTracker(locality::hostOf), links);
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

    public ShuffleRegistrar registrar() {
        return registrar;
    }

    public Locality locality() {
        return locality;
    }

    public OutputRegistry outputs() {
        return outputs;
    }

    public ShuffleTable shuffles() {
        return shuffles;
    }

    public ApplicationCounters counters() {
        return counters;
    }

    /** Returns the connections to TaskManagers, in no particular order. */
    public List<DriverLink> links() {
        return List.copyOf(links.values());
    }

    /** Returns the runtime of this driver; null on executors and after the end. */
    public static DriverRuntime current() {
        return current;
    }

    /**
     * Returns the registrar of this driver.
     *
     * @throws IllegalStateException if the plugin is not loaded on the driver
     */
    public static ShuffleRegistrar currentRegistrar() {
        if (current == null) {
            throw new IllegalStateException(
                    "the Sluice plugin is not loaded on the driver: set spark.plugins="
                            + ChangedSettings.PLUGIN);
        }
        return current.registrar;
    }

    public static void install(DriverRuntime runtime) {
        current = runtime;
    }

    /** Connects to the configured TaskManagers. Called when the application's id is known. */
    public void start(String applicationId) {
        ClientOptions options =
                new ClientOptions(
                        applicationId,
                        "driver of " + applicationId,
                        settings.io().connectTimeoutMillis(),
                        Math.min(settings.io().timeoutMillis(), 30_000),
                        Math.min(settings.io().timeoutMillis(), 30_000),
                        new ChunkPool(1),
                        tls,
                        credential,
                        settings.copies().replicas().isRemote());
        if (links.start(options, outputs)) {
            members.warnOfCache();
            members.addWanted();
            // It runs until the threads are shut down.
            ScheduledFuture<?> unused =
                    threads.scheduleWithFixedDelay(
                            this::updateMembers,
                            0,
                            NameResolver.MIN_PAUSE_MILLIS,
                            TimeUnit.MILLISECONDS);
        }
    }

    private void updateMembers() {
        try {
            members.update();
        } catch (RuntimeException e) {
            // A scheduled update that throws would be the last one.
            LOG.warn("Could not update the TaskManagers of the application", e);
        }
    }

    /**
     * Returns the message with the connected TaskManagers.
     *
     * @param version the version that the executor has
     */
    public String[] membersSince(long version) {
        return members.since(version);
    }

    /** Called when an executor uses a TaskManager, perhaps before {@link #start}. */
    public void reached(DriverMessages.Reached reached) {
        String id = reached.taskManagerId();
        Endpoint endpoint = Endpoint.tcp(reached.taskManager().host(), reached.port());
        members.reached(id, endpoint);
        reachability.reached(reached);
        locality.reached(reached);
    }

    /** Called when an executor reaches no TaskManager. */
    public void unreachable(String executorId, String why) {
        if (reachability.unreachable(executorId, why)) {
            LOG.atLevel(settings.routing().enabled() ? Level.WARN : Level.INFO)
                    .log("Executor {} reaches no TaskManager: {}", executorId, why);
        }
    }

    /**
     * Returns why no TaskManager is reachable for a new shuffle; empty if one is.
     *
     * @throws IllegalStateException if none is reachable and the policy is to fail
     */
    Optional<String> whyUnreachable(int shuffleId) {
        start(SparkEnv.get().conf().getAppId());
        // A TaskManager may have started on this host.
        members.addWanted();
        awaitNames();
        if (isReachableFor(shuffleId)) {
            return Optional.empty();
        }
        if (settings.routing().fallbackToSpark()) {
            return Optional.of(
                    String.format(
                            "no TaskManager is reachable (%s) and %s=spark",
                            failures(), SluiceSettings.FALLBACK_POLICY));
        }
        throw new IllegalStateException(
                NoTaskManagerException.message("for shuffle " + shuffleId, failures(), settings));
    }

    /** Waits for the first addresses of names, at most for the connect timeout. */
    private void awaitNames() {
        try {
            members.awaitNames(settings.io().connectTimeoutMillis());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted while names are resolved", e);
        }
    }

    private boolean isReachableFor(int shuffleId) {
        // With the policy to fail, an outdated report must not hide a TaskManager that has started.
        boolean driverDecides =
                localMaster
                        || !settings.routing().fallbackToSpark()
                        || !reachability.noneReachable(this::isGone);
        if (anyReachableOrReturns()) {
            if (driverDecides) {
                return true;
            }
        } else if (localMaster || !hasOneOfEachHost()) {
            return false;
        }
        Reachability.Verdict verdict = askExecutors();
        if (verdict == Reachability.Verdict.UNKNOWN) {
            if (settings.routing().fallbackToSpark() && reachability.lastReportedUnreachable()) {
                return false;
            }
            LOG.warn(
                    "It is unknown whether a TaskManager is reachable for shuffle {}, because no"
                        + " executor has reported yet. If none is, the job fails at its first task",
                    shuffleId);
        }
        return verdict != Reachability.Verdict.UNREACHABLE;
    }

    private boolean hasOneOfEachHost() {
        return !configured.globs().isEmpty()
                || configured.fixed().stream().anyMatch(EndpointChooser::isOfEachHost);
    }

    private Reachability.Verdict askExecutors() {
        // With the policy to fail, older reports must not hide a TaskManager that has started.
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

    /** Returns whether the driver has lost the connection to a TaskManager. */
    private boolean isGone(String taskManagerId) {
        return links.isKnown(taskManagerId) && links.connected(taskManagerId) == null;
    }

    /**
     * Called when a task reached no TaskManager. Cancels the jobs of its stage if no executor
     * reaches one, and returns whether it did; otherwise Spark retries the task.
     */
    public boolean cancelIfUnreachable(int stageId) {
        if (!reachability.noneReachable(this::isGone)) {
            // The reported TaskManagers may have gone since the last ping.
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
        // Ping all at once; the first answer is enough.
        ExecutorCompletionService<Boolean> answers = new ExecutorCompletionService<>(threads);
        int left = 0;
        for (DriverLink link : links.values()) {
            answers.submit(link::ping);
            left++;
        }
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(answerMillis());
        try {
            for (; left > 0; left--) {
                Future<Boolean> answer =
                        answers.poll(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
                if (answer == null) {
                    return false;
                }
                if (answer.get()) {
                    return true;
                }
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (ExecutionException e) {
            LOG.warn("A TaskManager did not answer the driver", e);
        }
        return false;
    }

    /** With the policy to fail, also waits for the return of a TaskManager, as a task does. */
    private boolean anyReachableOrReturns() {
        RetryDeadline deadline = new RetryDeadline(settings.reader().returnTimeoutMillis());
        boolean waits =
                !settings.routing().fallbackToSpark()
                        && links.values().stream().anyMatch(link -> link.taskManager() != null);
        try {
            do {
                if (anyReachable()) {
                    return true;
                }
            } while (waits && deadline.pause("a TaskManager's return"));
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
        List<String> all = new ArrayList<>(members.failures());
        links.values().stream()
                .filter(link -> !link.isConnected() && !link.lastFailure().isEmpty())
                .map(DriverLink::lastFailure)
                .forEach(all::add);
        all.addAll(reachability.failures());
        return String.join("; ", all);
    }

    /**
     * Releases a shuffle on every TaskManager, now or after its return. The shuffle may still be
     * registered: the end of a query does not unregister it, and the query may run again.
     *
     * @param blocking whether to wait for connected TaskManagers
     */
    public void releaseShuffle(int shuffleId, boolean blocking) {
        // Taken first: map tasks that start after the outputs are unregistered replace them.
        long end = nextTaskId.getAsLong();
        SparkTracker.forgetMapOutputs(shuffleId);
        shuffles.released(shuffleId);
        outputs.released(shuffleId);
        List<Future<Boolean>> answers = new ArrayList<>();
        for (DriverLink link : links.addRelease(shuffleId, end)) {
            answers.add(threads.submit(link::release));
        }
        if (blocking) {
            answers.forEach(this::await);
        }
    }

    /** Called before a fetch failure. Finds all other losses, so that they cost only this one. */
    public void onUnreadable(DriverMessages.Unreadable lost) {
        // The task waits for the answer as long as for a connect.
        Set<String> away = links.verifyAll(settings.io().connectTimeoutMillis() / 2);
        outputs.onUnreadable(lost.taskManagerId(), lost.shuffleId(), lost.attempts());
        outputs.unregisterLost(away);
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

    /** Returns the longest time that a TaskManager may take to answer, with a new connection. */
    private long answerMillis() {
        return settings.io().connectTimeoutMillis() * 2 + settings.io().timeoutMillis();
    }

    private Boolean await(Future<Boolean> answer) {
        try {
            return answer.get(answerMillis(), TimeUnit.MILLISECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return false;
        } catch (ExecutionException | TimeoutException e) {
            LOG.warn("A TaskManager did not answer the driver", e);
            return false;
        }
    }

    public void close() {
        links.closing();
        threads.shutdownNow();
        lookups.shutdownNow();
        links.close();
        if (current == this) {
            current = null;
        }
    }
}
