package io.sluice.spark;

import io.sluice.client.ChunkPool;
import io.sluice.client.ClientException;
import io.sluice.client.ClientOptions;
import io.sluice.client.Endpoint;
import io.sluice.client.Message;
import io.sluice.client.Patience;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.spark.MapOutputTrackerMaster;
import org.apache.spark.SparkEnv;
import org.apache.spark.storage.BlockManagerId;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;

/**
 * The driver's side: one connection to every known TaskManager keeps the application alive there
 * and releases its data.
 *
 * <p>Thread safe. The connections are used by a few threads of its own, each link by one of them at
 * a time.
 */
public final class DriverRuntime {
    private static final Logger LOG = LoggerFactory.getLogger(DriverRuntime.class);
    private static final int THREADS = 4;

    private static volatile DriverRuntime current;

    private final SluiceSettings settings;
    private final List<Endpoint> configured;
    private final boolean localMaster;
    private final Reachability reachability;
    private final StageCanceller canceller;
    private final Map<String, DriverLink> links = new ConcurrentHashMap<>();
    private final ScheduledThreadPoolExecutor threads;
    private volatile ClientOptions options;
    private final ShuffleTable shuffles = new ShuffleTable();
    private final ApplicationCounters counters = new ApplicationCounters(SluiceMetrics.INSTANCE);
    private final ShuffleRegistrar registrar;
    private boolean released;

    /** Ends the jobs of a stage. */
    @FunctionalInterface
    interface StageCanceller {
        void cancel(int stageId, String reason);
    }

    /**
     * @param localMaster whether tasks run in this process, so that what the driver reaches is what
     *     they reach
     * @param reachability what executors say they reach
     */
    DriverRuntime(
            SluiceSettings settings,
            String ownHost,
            boolean localMaster,
            Reachability reachability,
            StageCanceller canceller) {
        this.settings = settings;
        this.configured = settings.endpointsFor(ownHost);
        this.localMaster = localMaster;
        this.reachability = reachability;
        this.canceller = canceller;
        this.threads =
                new ScheduledThreadPoolExecutor(
                        THREADS,
                        work -> {
                            Thread thread = new Thread(work, "sluice-driver");
                            thread.setDaemon(true);
                            return thread;
                        });
        this.threads.setRemoveOnCancelPolicy(true);
        this.registrar =
                new ShuffleRegistrar(
                        FallbackPolicies.of(
                                settings.enabled(),
                                settings.fallbackBelowBytes(),
                                SluiceSettings::sizeInBytes,
                                shuffle -> whyUnreachable(shuffle.shuffleId())),
                        shuffles);
    }

    public SluiceSettings settings() {
        return settings;
    }

    /** Decides on new shuffles. */
    ShuffleRegistrar registrar() {
        return registrar;
    }

    /** What became of the application's shuffles. */
    public ShuffleTable shuffles() {
        return shuffles;
    }

    /** The counters of the whole application. */
    public ApplicationCounters counters() {
        return counters;
    }

    /** The connections to TaskManagers, in no order. */
    public List<DriverLink> links() {
        return List.copyOf(links.values());
    }

    /** The runtime of this driver; null outside of a driver and after its end. */
    static DriverRuntime current() {
        return current;
    }

    static void install(DriverRuntime runtime) {
        current = runtime;
    }

    /**
     * The application's id is known: connects to the configured TaskManagers and keeps doing so.
     */
    synchronized void start(String applicationId) {
        if (options != null) {
            return;
        }
        options =
                new ClientOptions(
                        applicationId,
                        "driver of " + applicationId,
                        settings.connectTimeoutMillis(),
                        Math.min(settings.ioTimeoutMillis(), 30_000),
                        new ChunkPool(1));
        addConfigured();
    }

    private void addConfigured() {
        for (Endpoint endpoint : configured) {
            if (!endpoint.isUnix() || endpoint.socketExists()) {
                add(endpoint);
            }
        }
    }

    /** An executor uses that TaskManager. */
    void reached(String executorId, String taskManagerId, String host, int port) {
        boolean known =
                links.values().stream()
                        .map(DriverLink::taskManager)
                        .anyMatch(t -> t != null && t.taskManagerId().equals(taskManagerId));
        if (!known) {
            LOG.info("TaskManager {} at {}:{} serves this application", taskManagerId, host, port);
            add(Endpoint.tcp(host, port));
        }
        reachability.reached(executorId, taskManagerId);
    }

    /** An executor reaches no TaskManager. */
    void unreachable(String executorId, String why) {
        if (reachability.unreachable(executorId, why)) {
            LOG.warn("Executor {} reaches no TaskManager: {}", executorId, why);
        }
    }

    private DriverLink add(Endpoint endpoint) {
        return links.computeIfAbsent(
                endpoint.toString(),
                key -> {
                    DriverLink link = new DriverLink(endpoint, options);
                    // It runs until the threads are shut down.
                    ScheduledFuture<?> unused =
                            threads.scheduleWithFixedDelay(
                                    link::ping,
                                    0,
                                    settings.pingIntervalMillis(),
                                    TimeUnit.MILLISECONDS);
                    return link;
                });
    }

    /** HOST:PORT of every TaskManager that answered. */
    String[] endpoints() {
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
     * Why no TaskManager is reachable for a new shuffle; empty when one is.
     *
     * @throws IllegalStateException none is reachable and the policy is to fail
     */
    Optional<String> whyUnreachable(int shuffleId) {
        start(SparkEnv.get().conf().getAppId());
        // A TaskManager may have been started on this host since.
        addConfigured();
        if (isSomebodyReachable(shuffleId)) {
            return Optional.empty();
        }
        if (settings.fallbackToSpark()) {
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

    private boolean isSomebodyReachable(int shuffleId) {
        // With the policy to fail, an executor's outdated word must not keep out a TaskManager that
        // was just started.
        boolean driverDecides =
                localMaster || !settings.fallbackToSpark() || !reachability.nobody(this::isGone);
        if (anyReachableOrReturns()) {
            if (driverDecides) {
                return true;
            }
        } else if (localMaster || configured.stream().noneMatch(EndpointChooser::isOfEachHost)) {
            return false;
        }
        Reachability.Verdict verdict = askExecutors();
        if (verdict == Reachability.Verdict.UNKNOWN) {
            if (settings.fallbackToSpark() && reachability.lastSaidNobody()) {
                return false;
            }
            LOG.warn(
                    "Whether a TaskManager is reachable for shuffle {} is not known: no executor"
                        + " has said so yet. If none is, the first task fails and its job with it",
                    shuffleId);
        }
        return verdict != Reachability.Verdict.NOBODY;
    }

    private Reachability.Verdict askExecutors() {
        // Where the job would fail, what was said before a TaskManager was started must not decide.
        long maxAgeMillis =
                settings.fallbackToSpark() ? Long.MAX_VALUE : Reachability.SETTLE_MILLIS;
        try {
            return reachability.await(
                    this::isGone, settings.reachabilityTimeoutMillis(), maxAgeMillis);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(
                    "interrupted while waiting for an executor that reaches a TaskManager", e);
        }
    }

    /** Whether the driver was connected to that TaskManager and is no more. */
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
     * A task met no TaskManager: cancels the jobs of its stage when no executor reaches one; says
     * whether it did. Otherwise the task is tried again, perhaps on another executor.
     */
    boolean cancelIfNobody(int stageId) {
        if (!reachability.nobody(this::isGone)) {
            // Those that executors say they reach may have gone since the last sign of life.
            pingAll().forEach(this::await);
            if (!reachability.nobody(this::isGone)) {
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
        // None is known to be well: ask all at once, the first that answers is enough.
        for (Future<Boolean> answer : pingAll()) {
            if (Boolean.TRUE.equals(await(answer))) {
                return true;
            }
        }
        return false;
    }

    /**
     * As {@link #anyReachable}. With the policy to fail, one that was there before gets {@code
     * spark.sluice.reader.returnTimeout} to return, as a task would wait for it.
     */
    private boolean anyReachableOrReturns() {
        Patience patience = new Patience(settings.returnTimeoutMillis());
        boolean patient =
                !settings.fallbackToSpark()
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
            if (!links.containsKey(endpoint.toString())) {
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
     * Releases a shuffle everywhere, where a TaskManager is away as soon as it is back; with {@code
     * blocking} waits for those that are there, within the deadlines of the links.
     */
    void releaseShuffle(int shuffleId, boolean blocking) {
        shuffles.released(shuffleId);
        List<Future<Boolean>> answers = new ArrayList<>();
        for (DriverLink link : links.values()) {
            link.addRelease(shuffleId);
            if (link.isConnected()) {
                answers.add(threads.submit(link::release));
            }
        }
        if (blocking) {
            answers.forEach(this::await);
        }
    }

    /** Releases everything, once. */
    void releaseApplication() {
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
                    settings.connectTimeoutMillis() * 2 + settings.ioTimeoutMillis(),
                    TimeUnit.MILLISECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return false;
        } catch (ExecutionException | TimeoutException e) {
            LOG.warn("A TaskManager did not answer", e);
            return false;
        }
    }

    /** Forgets one map output if it still is the registered one; says whether it was. */
    static boolean forgetMapOutput(int shuffleId, long mapId, int mapIndex) {
        MapOutputTrackerMaster tracker = (MapOutputTrackerMaster) SparkEnv.get().mapOutputTracker();
        Option<BlockManagerId> location = tracker.getMapOutputLocation(shuffleId, mapId);
        if (location.isEmpty()) {
            return false;
        }
        tracker.unregisterMapOutput(shuffleId, mapIndex, location.get());
        return true;
    }

    /**
     * Unregisters all outputs of a shuffle whose data is about to be removed though Spark still
     * knows the shuffle. Who uses it once more then finds that its map tasks have to run again, and
     * not one lost output after the other.
     */
    static void forgetMapOutputs(int shuffleId) {
        MapOutputTrackerMaster tracker = (MapOutputTrackerMaster) SparkEnv.get().mapOutputTracker();
        if (tracker.containsShuffle(shuffleId)) {
            tracker.unregisterAllMapAndMergeOutput(shuffleId);
        }
    }

    /** Ends the connections. */
    void close() {
        threads.shutdownNow();
        links.values().forEach(DriverLink::close);
        if (current == this) {
            current = null;
        }
    }
}
