package io.sluice.spark;

import io.sluice.client.auth.Credential;
import io.sluice.spark.common.Compat;
import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.driver.ApplicationListener;
import io.sluice.spark.driver.DriverRuntime;
import io.sluice.spark.driver.Reachability;
import io.sluice.spark.executor.CounterReporter;
import io.sluice.spark.executor.ExecutorRuntime;
import io.sluice.spark.outputs.ExecutorOutputs;
import io.sluice.spark.outputs.SparkTracker;
import io.sluice.spark.settings.Activation;
import io.sluice.spark.settings.CallerSettings;
import io.sluice.spark.settings.ChangedSettings;
import io.sluice.spark.settings.Credentials;
import io.sluice.spark.settings.SluiceSettings;
import io.sluice.spark.ui.StatusRecorder;
import io.sluice.spark.ui.StatusTab;
import java.util.Map;
import java.util.function.IntPredicate;
import org.apache.spark.ExecutorAllocationManager;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskFailedReason;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.plugin.SparkPlugin;
import org.apache.spark.shuffle.ShuffleManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;

/**
 * The entry point, {@code spark.plugins=io.sluice.spark.SluicePlugin}. On Spark 4 it sets all other
 * settings. On 3.5, where Spark makes the shuffle manager before plugins, it checks that they are
 * set.
 */
public final class SluicePlugin implements SparkPlugin {
    private static final Logger LOG = LoggerFactory.getLogger(SluicePlugin.class);

    /** The key that tells executors that no session can turn Sluice on. */
    private static final String INACTIVE = "inactive";

    private static final String INACTIVE_SETTING =
            "spark.plugins.internal.conf." + SluicePlugin.class.getName() + "." + INACTIVE;

    @Override
    public DriverPlugin driverPlugin() {
        return new Driver();
    }

    @Override
    public ExecutorPlugin executorPlugin() {
        return new Executor();
    }

    /**
     * @throws IllegalStateException if Spark is older than 3.5
     */
    static void requireSupported(String version) {
        String[] numbers = version.split("\\.", -1);
        int major = Integer.parseInt(numbers[0]);
        if (major < 3 || (major == 3 && Integer.parseInt(numbers[1]) < 5)) {
            throw new IllegalStateException(
                    String.format(
                            "Spark %s is not supported by this sluice-spark.jar (3.5 to 4.3 are):"
                                    + " use one of these, or remove %s from spark.plugins",
                            version, SluicePlugin.class.getName()));
        }
    }

    private static final class Driver implements DriverPlugin {
        /** Null if Sluice is off and cannot be turned on. */
        private DriverRuntime runtime;

        /** Null if there is no event log. */
        private StatusRecorder recorder;

        @Override
        public Map<String, String> init(SparkContext context, PluginContext pluginContext) {
            try {
                return activate(context, pluginContext);
            } catch (IllegalArgumentException | IllegalStateException e) {
                if (!SluiceSettings.isOff(context.conf())) {
                    throw e;
                }
                LOG.warn(
                        "Sluice is off ({}=false) and no session can turn it on: {}",
                        SluiceSettings.ENABLED,
                        e.getMessage());
                context.conf().set(SluiceSettings.ACTIVE, "false");
                return Map.of(INACTIVE, "true");
            }
        }

        private Map<String, String> activate(SparkContext context, PluginContext pluginContext) {
            requireSupported(context.version());
            SparkConf conf = context.conf();
            SluiceSettings settings = SluiceSettings.of(conf);
            Credential credential =
                    Credentials.ofDriver(key -> conf.get(key, null), System.getenv());
            // The settings may be copied from another application.
            conf.remove(Credentials.TASK_SETTING);
            conf.remove(INACTIVE_SETTING);
            boolean localMaster =
                    context.master().equals("local") || context.master().startsWith("local[");
            ChangedSettings.Mode mode =
                    new ChangedSettings.Mode(
                            settings.routing().enabled(),
                            settings.pipelined().enabled(),
                            localMaster);
            Map<String, String> changes = ChangedSettings.in(key -> conf.get(key, null), mode);
            if (mode.pipelined()) {
                Compat.requirePipelinedShuffles();
            }
            ShuffleManager existing = SparkEnv.get().shuffleManager();
            if (existing != null
                    && !(existing instanceof SluiceShuffleManager
                            && conf.get(ChangedSettings.DATA_IO, "")
                                    .equals(ChangedSettings.DATA_IO_CLASS))) {
                throw new IllegalStateException(
                        String.format(
                                "Spark %s makes its shuffle manager before plugins are loaded, so"
                                    + " Sluice needs these settings too: %s=%s %s=%s and the jar on"
                                    + " spark.driver.extraClassPath and"
                                    + " spark.executor.extraClassPath (sluice spark-conf"
                                    + " --spark-version %s prints them)",
                                context.version(),
                                ChangedSettings.SHUFFLE_MANAGER,
                                ChangedSettings.MANAGER_CLASS,
                                ChangedSettings.DATA_IO,
                                ChangedSettings.DATA_IO_CLASS,
                                context.version()));
            }
            Reachability reachability =
                    new Reachability(initialExecutors(conf), Reachability.SETTLE_MILLIS);
            runtime =
                    new DriverRuntime(
                            settings,
                            credential,
                            pluginContext.hostname(),
                            localMaster,
                            reachability,
                            (stageId, reason) -> context.cancelStage(stageId, reason),
                            () -> Compat.nextTaskId(context));
            changes.forEach(conf::set);
            SluiceMetrics.INSTANCE.reset();
            context.addSparkListener(
                    new ApplicationListener(
                            reachability,
                            runtime.locality(),
                            runtime.shuffles(),
                            runtime.outputs()));
            context.listenerBus()
                    .addToQueue(executorOutputs(context, runtime), ExecutorOutputs.QUEUE);
            DriverRuntime.install(runtime);
            StatusTab.attach(context, runtime);
            recorder = StatusRecorder.start(context, runtime);
            CallerSettings.declare(SluiceSettings.ENTRIES);
            Activation.announce(conf::set, settings.routing());
            return Credentials.forExecutors(credential);
        }

        private static ExecutorOutputs executorOutputs(
                SparkContext context, DriverRuntime runtime) {
            IntPredicate goesThroughSluice = runtime.registrar()::goesThroughSluice;
            // With Spark's external shuffle service, outputs survive their executors.
            boolean outliveExecutors =
                    context.conf().getBoolean("spark.shuffle.service.enabled", false);
            return new ExecutorOutputs(
                    goesThroughSluice,
                    executorId ->
                            outliveExecutors
                                    ? 0
                                    : SparkTracker.forgetExecutor(
                                            executorId, goesThroughSluice.negate()),
                    shuffleId -> {
                        Option<ExecutorAllocationManager> allocation =
                                context.executorAllocationManager();
                        if (allocation.isDefined()) {
                            allocation.get().executorMonitor().shuffleCleaned(shuffleId);
                        }
                    });
        }

        /** Returns the number of executors that dynamic allocation starts with; -1 without it. */
        private static int initialExecutors(SparkConf conf) {
            if (!conf.getBoolean("spark.dynamicAllocation.enabled", false)) {
                return -1;
            }
            int least = conf.getInt("spark.dynamicAllocation.minExecutors", 0);
            int initial = conf.getInt("spark.dynamicAllocation.initialExecutors", least);
            return Math.max(Math.max(initial, least), conf.getInt("spark.executor.instances", 0));
        }

        @Override
        public void registerMetrics(String applicationId, PluginContext pluginContext) {
            if (runtime != null) {
                runtime.counters().register(pluginContext.metricRegistry());
                runtime.start(applicationId);
            }
        }

        @Override
        public Object receive(Object message) {
            String[] parts = (String[]) message;
            return switch (parts[0]) {
                case DriverMessages.REACHED -> {
                    runtime.reached(DriverMessages.Reached.read(parts));
                    yield null;
                }
                case DriverMessages.UNREACHABLE -> {
                    runtime.unreachable(parts[1], parts[2]);
                    yield null;
                }
                case DriverMessages.TASK_UNREACHABLE ->
                        Boolean.toString(runtime.cancelIfUnreachable(Integer.parseInt(parts[1])));
                case DriverMessages.COUNTERS -> {
                    runtime.counters().add(parts, 1);
                    yield null;
                }
                case DriverMessages.CREDIT_WAITS -> {
                    runtime.counters().addCreditWaits(DriverMessages.readCreditWaits(parts));
                    yield null;
                }
                case DriverMessages.MEMBERS -> runtime.membersSince(Long.parseLong(parts[1]));
                case DriverMessages.REPLICAS -> {
                    DriverMessages.ReplicasQuestion question =
                            DriverMessages.ReplicasQuestion.read(parts);
                    yield runtime.outputs()
                            .replicas(
                                    question.shuffleId(),
                                    question.attempts(),
                                    question.avoided(),
                                    question.failed())
                            .message();
                }
                case DriverMessages.UNREADABLE -> {
                    runtime.onUnreadable(DriverMessages.Unreadable.read(parts));
                    yield null;
                }
                case DriverMessages.LOST_OUTPUT ->
                        Boolean.toString(
                                SparkTracker.forgetMapOutput(
                                        Integer.parseInt(parts[1]),
                                        Long.parseLong(parts[2]),
                                        Integer.parseInt(parts[3])));
                default -> throw new IllegalArgumentException("unknown message " + parts[0]);
            };
        }

        @Override
        public void shutdown() {
            try {
                if (recorder != null) {
                    recorder.applicationEnds();
                }
            } finally {
                if (runtime != null) {
                    runtime.releaseApplication();
                    runtime.close();
                }
            }
        }
    }

    private static final class Executor implements ExecutorPlugin {
        /** Null in a local application, where executor and driver share their counters. */
        private CounterReporter counters;

        @Override
        public void init(PluginContext context, Map<String, String> extraConf) {
            if (extraConf.containsKey(INACTIVE)) {
                return;
            }
            SluiceSettings.of(context.conf());
            ExecutorRuntime.install(context, Credentials.ofExecutor(extraConf));
            if (context.conf().contains("spark.app.id") && SparkEnv.get() != null) {
                ExecutorRuntime.get().reportReachability();
            }
            if (!"driver".equals(context.executorID())) {
                SluiceMetrics.INSTANCE.register(context.metricRegistry());
                counters = new CounterReporter(SluiceMetrics.INSTANCE, context::send);
            }
        }

        @Override
        public void onTaskSucceeded() {
            taskEnded();
        }

        @Override
        public void onTaskFailed(TaskFailedReason reason) {
            taskEnded();
        }

        private void taskEnded() {
            if (counters != null) {
                counters.taskEnded();
            }
        }

        @Override
        public void shutdown() {
            if (counters != null) {
                counters.close();
            }
            ExecutorRuntime.uninstall();
        }
    }
}
