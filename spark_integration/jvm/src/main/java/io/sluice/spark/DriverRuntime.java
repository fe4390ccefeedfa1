package io.sluice.spark;

import io.sluice.client.ChunkPool;
import io.sluice.client.ClientOptions;
import io.sluice.client.Endpoint;
import io.sluice.client.Message;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
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
 * The driver's side: one connection to every known TaskManager keeps the application alive there and releases its data.
 *
 * <p>Thread safe. The connections are used by a few threads of its own, each link by one of them at a time.
 */
final class DriverRuntime {
  private static final Logger LOG = LoggerFactory.getLogger(DriverRuntime.class);
  private static final int THREADS = 4;

  private static volatile DriverRuntime current;

  private final SluiceSettings settings;
  private final List<Endpoint> configured;
  private final boolean localMaster;
  private final Map<String, DriverLink> links = new ConcurrentHashMap<>();
  private final ScheduledThreadPoolExecutor threads;
  private volatile ClientOptions options;
  private boolean released;

  DriverRuntime(SluiceSettings settings, String ownHost, boolean localMaster) {
    this.settings = settings;
    this.configured = settings.endpointsFor(ownHost);
    this.localMaster = localMaster;
    this.threads =
        new ScheduledThreadPoolExecutor(
            THREADS,
            work -> {
              Thread thread = new Thread(work, "sluice-driver");
              thread.setDaemon(true);
              return thread;
            });
    this.threads.setRemoveOnCancelPolicy(true);
  }

  /** The runtime of this driver; null outside of a driver and after its end. */
  static DriverRuntime current() {
    return current;
  }

  static void install(DriverRuntime runtime) {
    current = runtime;
  }

  /** The application's id is known: connects to the configured TaskManagers and keeps doing so. */
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
    for (Endpoint endpoint : configured) {
      if (!endpoint.isUnix() || endpoint.socketExists()) {
        add(endpoint);
      }
    }
  }

  /** An executor uses that TaskManager. */
  void report(String taskManagerId, String host, int port) {
    boolean known =
        links.values().stream()
            .map(DriverLink::taskManager)
            .anyMatch(t -> t != null && t.taskManagerId().equals(taskManagerId));
    if (!known) {
      LOG.info("TaskManager {} at {}:{} serves this application", taskManagerId, host, port);
      add(Endpoint.tcp(host, port));
    }
  }

  private DriverLink add(Endpoint endpoint) {
    return links.computeIfAbsent(
        endpoint.toString(),
        key -> {
          DriverLink link = new DriverLink(endpoint, options);
          threads.scheduleWithFixedDelay(
              link::ping, 0, settings.pingIntervalMillis(), TimeUnit.MILLISECONDS);
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
   * Whether a new shuffle goes through Sluice.
   *
   * @throws IllegalStateException no TaskManager is reachable and the policy is to fail
   */
  boolean useSluice(int shuffleId) {
    start(SparkEnv.get().conf().getAppId());
    if (anyReachable()) {
      return true;
    }
    boolean onlyOnExecutors = configured.stream().allMatch(Endpoint::isUnix) && !localMaster;
    if (onlyOnExecutors) {
      // The sockets are on the executors' hosts; executors that find none say so themselves.
      return true;
    }
    String failures = failures();
    if (settings.fallbackToSpark()) {
      SluiceMetrics.INSTANCE.fallbackShuffles.increment();
      LOG.warn(
          "Shuffle {} uses Spark's own shuffle: no TaskManager is reachable ({}). It is the policy {}=spark",
          shuffleId,
          failures,
          SluiceSettings.FALLBACK_POLICY);
      return false;
    }
    throw new IllegalStateException(
        "no TaskManager is reachable for shuffle "
            + shuffleId
            + ": "
            + failures
            + ". Start TaskManagers (sluice taskmanager), correct "
            + SluiceSettings.ENDPOINTS
            + " (now "
            + settings.endpoints()
            + "), or set "
            + SluiceSettings.FALLBACK_POLICY
            + "=spark to use Spark's own shuffle");
  }

  private boolean anyReachable() {
    for (DriverLink link : links.values()) {
      if (link.isConnected()) {
        return true;
      }
    }
    // None is known to be well: ask all at once, the first that answers is enough.
    List<Future<Boolean>> answers = new ArrayList<>();
    for (DriverLink link : links.values()) {
      answers.add(threads.submit(link::ping));
    }
    for (Future<Boolean> answer : answers) {
      if (Boolean.TRUE.equals(await(answer))) {
        return true;
      }
    }
    return false;
  }

  private String failures() {
    List<String> all = new ArrayList<>();
    links.values().forEach(link -> all.add(link.endpoint() + ": " + link.lastFailure()));
    return all.isEmpty() ? "none of the Unix sockets exists here" : String.join("; ", all);
  }

  /** Releases a shuffle everywhere; with {@code blocking} waits for it, within the deadlines of the links. */
  void releaseShuffle(int shuffleId, boolean blocking) {
    List<Future<Boolean>> answers = new ArrayList<>();
    for (DriverLink link : links.values()) {
      if (link.isConnected()) {
        answers.add(threads.submit(() -> link.releaseShuffle(shuffleId)));
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
          settings.connectTimeoutMillis() * 2 + settings.ioTimeoutMillis(), TimeUnit.MILLISECONDS);
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

  /** Ends the connections. */
  void close() {
    threads.shutdownNow();
    links.values().forEach(DriverLink::close);
    if (current == this) {
      current = null;
    }
  }
}
