package io.sluice.spark;

import io.sluice.client.ChunkPool;
import io.sluice.client.ClientException;
import io.sluice.client.ClientOptions;
import io.sluice.client.ConnectionPool;
import io.sluice.client.Endpoint;
import io.sluice.client.Message;
import io.sluice.client.RegionPool;
import io.sluice.client.TaskManagerConnection;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.plugin.PluginContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** What the tasks of one executor share: connections, buffers, and which TaskManager is theirs. Thread safe. */
final class ExecutorRuntime implements AutoCloseable {
  private static final Logger LOG = LoggerFactory.getLogger(ExecutorRuntime.class);

  /** An endpoint that did not answer is tried last for this long. */
  private static final long PENALTY_NANOS = TimeUnit.SECONDS.toNanos(10);

  /** Idle buffers kept: 1024 of 32 KiB are 32 MiB. */
  private static final int IDLE_CHUNKS = 1024;

  private static volatile ExecutorRuntime current;

  private final PluginContext context;
  private final SluiceSettings settings;
  private final ConnectionPool pool;
  private final RegionPool regions;
  private final String hostname;
  private final List<Endpoint> endpoints;
  private final Map<Endpoint, Long> penalties = new ConcurrentHashMap<>();
  private final Set<String> reported = ConcurrentHashMap.newKeySet();
  private final Map<Long, MapTask> mapTasks = new ConcurrentHashMap<>();

  private ExecutorRuntime(PluginContext context, SluiceSettings settings, String applicationId) {
    this.context = context;
    this.settings = settings;
    // Not PluginContext.hostname(): it needs an RPC server, and executors have none.
    this.hostname = SparkEnv.get().blockManager().blockManagerId().host();
    this.endpoints = settings.endpointsFor(hostname);
    String name = "executor " + context.executorID() + " on " + hostname;
    this.pool =
        new ConnectionPool(
            new ClientOptions(
                applicationId,
                name,
                settings.connectTimeoutMillis(),
                settings.ioTimeoutMillis(),
                new ChunkPool(IDLE_CHUNKS)),
            settings.idleConnections());
    this.regions =
        new RegionPool(settings.regionBytes(), Math.max(2, Runtime.getRuntime().availableProcessors()));
  }

  private static volatile PluginContext pluginContext;

  /** Called by the executor's plugin; the rest is made when the application's id is known. */
  static void install(PluginContext context) {
    pluginContext = context;
  }

  /** The runtime of this executor. */
  static ExecutorRuntime get() {
    ExecutorRuntime runtime = current;
    return runtime != null ? runtime : create();
  }

  private static synchronized ExecutorRuntime create() {
    if (current == null) {
      PluginContext context = pluginContext;
      if (context == null) {
        throw new IllegalStateException(
            "the Sluice plugin is not loaded on this executor: set spark.plugins="
                + SluicePlugin.class.getName());
      }
      current =
          new ExecutorRuntime(
              context, SluiceSettings.of(context.conf()), SparkEnv.get().conf().getAppId());
    }
    return current;
  }

  /** Called by the executor's plugin at its end. */
  static synchronized void uninstall() {
    if (current != null) {
      current.close();
      current = null;
    }
    pluginContext = null;
  }

  SluiceSettings settings() {
    return settings;
  }

  ConnectionPool pool() {
    return pool;
  }

  RegionPool regions() {
    return regions;
  }

  void add(MapTask task) {
    mapTasks.put(task.mapId(), task);
  }

  void remove(MapTask task) {
    mapTasks.remove(task.mapId(), task);
  }

  /** The running map task of that attempt if its shuffle goes through Sluice, else null. */
  static MapTask mapTask(long mapId) {
    ExecutorRuntime runtime = current;
    return runtime == null ? null : runtime.mapTasks.get(mapId);
  }

  /**
   * A connection to this executor's TaskManager, or to another one when it does not answer.
   *
   * @throws ClientException.ConnectFailed none of the known ones answers
   */
  TaskManagerConnection lease(int role) throws IOException {
    Set<Endpoint> tried = new LinkedHashSet<>();
    ClientException.ConnectFailed failure = null;
    for (boolean askDriver : new boolean[] {false, true}) {
      List<Endpoint> candidates = askDriver ? endpointsOfDriver() : endpoints;
      for (Endpoint endpoint : candidateOrder(candidates)) {
        if (!tried.add(endpoint)) {
          continue;
        }
        try {
          TaskManagerConnection connection = pool.lease(endpoint, role);
          if (failure != null) {
            SluiceMetrics.INSTANCE.endpointFailovers.increment();
            LOG.warn("Using the TaskManager at {} because {}", endpoint, failure.getMessage());
          }
          penalties.remove(endpoint);
          report(connection.taskManager());
          return connection;
        } catch (ClientException.ConnectFailed e) {
          penalties.put(endpoint, System.nanoTime());
          if (failure == null) {
            failure = e;
          } else {
            failure.addSuppressed(e);
          }
        }
      }
    }
    throw failure;
  }

  /**
   * Whether that TaskManager answers there; waits for it up to {@code spark.sluice.reader.returnTimeout}. A restarted one
   * has its data again, which costs less than running map tasks again.
   *
   * @throws ClientException.Interrupted the task was interrupted meanwhile
   */
  boolean isThereOrReturns(Endpoint endpoint, String taskManagerId) throws ClientException {
    long deadline =
        System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(settings.returnTimeoutMillis());
    long pauseMillis = 100;
    while (true) {
      try {
        TaskManagerConnection connection = pool.lease(endpoint, Message.ROLE_CONSUMER);
        boolean same = connection.taskManager().taskManagerId().equals(taskManagerId);
        pool.giveBack(connection);
        return same;
      } catch (ClientException.ConnectFailed e) {
        LOG.debug("Not yet there", e);
      }
      long leftMillis = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
      if (leftMillis <= 0) {
        return false;
      }
      try {
        Thread.sleep(Math.min(pauseMillis, leftMillis));
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        throw new ClientException.Interrupted("the task was interrupted while it waited for " + endpoint);
      }
      pauseMillis = Math.min(pauseMillis * 2, 1_000);
    }
  }

  /** Connects once, so that the driver learns which TaskManager this executor uses. */
  void probe() throws IOException {
    pool.giveBack(lease(Message.ROLE_PRODUCER));
  }

  private List<Endpoint> candidateOrder(List<Endpoint> candidates) {
    List<Endpoint> well = new ArrayList<>();
    List<Endpoint> ill = new ArrayList<>();
    long now = System.nanoTime();
    for (Endpoint endpoint :
        EndpointChooser.order(candidates, hostname, context.executorID())) {
      Long since = penalties.get(endpoint);
      boolean punished = since != null && now - since < PENALTY_NANOS;
      (punished ? ill : well).add(endpoint);
    }
    well.addAll(ill);
    return well;
  }

  private List<Endpoint> endpointsOfDriver() {
    try {
      List<Endpoint> known = new ArrayList<>();
      for (String text : (String[]) context.ask(DriverMessages.endpoints())) {
        known.add(Endpoint.parse(text, hostname));
      }
      return known;
    } catch (Exception e) {
      LOG.warn("The driver does not say which TaskManagers it knows", e);
      return List.of();
    }
  }

  private void report(Message.HelloAck taskManager) {
    if (reported.add(taskManager.taskManagerId())) {
      try {
        context.send(
            DriverMessages.report(
                taskManager.taskManagerId(), taskManager.advertisedHost(), taskManager.dataPort()));
      } catch (IOException e) {
        // The next connection says it again.
        reported.remove(taskManager.taskManagerId());
        LOG.warn("The driver was not told of TaskManager {}", taskManager.taskManagerId(), e);
      }
    }
  }

  /** Asks the driver to forget one lost map output. */
  void forgetMapOutput(int shuffleId, long mapId, int mapIndex) {
    try {
      Object answer = context.ask(DriverMessages.lostOutput(shuffleId, mapId, mapIndex));
      LOG.info("Map output {} of shuffle {} is lost; unregistered: {}", mapId, shuffleId, answer);
    } catch (Exception e) {
      // Spark fails the stage anyway; without this it only takes more attempts.
      LOG.warn("The driver was not told that map output {} is lost", mapId, e);
    }
  }

  @Override
  public void close() {
    pool.close();
  }
}
