package io.sluice.spark;

import io.sluice.client.Credential;
import io.sluice.spark.ui.StatusTab;
import java.util.Map;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskFailedReason;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.plugin.SparkPlugin;
import org.apache.spark.shuffle.ShuffleManager;

/**
 * The entry point, {@code spark.plugins=io.sluice.spark.SluicePlugin}. On Spark 4 it sets all other
 * settings. On 3.5, where Spark makes the shuffle manager before plugins, it checks that they are
 * set.
 */
public final class SluicePlugin implements SparkPlugin {
    static final String SHUFFLE_MANAGER = "spark.shuffle.manager";
    static final String DATA_IO = "spark.shuffle.sort.io.plugin.class";
    static final String INCREMENTAL_MANAGER = "spark.shuffle.manager.incremental";

    /** A name and not the class, which only Spark 4.3 can load. */
    static final String STREAMING_MANAGER = "io.sluice.spark.SluiceStreamingShuffleManager";

    static final String LOCALITY_WAIT = "spark.locality.wait";
    static final String SHUFFLE_TRACKING = "spark.dynamicAllocation.shuffleTracking.enabled";

    @Override
    public DriverPlugin driverPlugin() {
        return new Driver();
    }

    @Override
    public ExecutorPlugin executorPlugin() {
        return new Executor();
    }

    /**
     * Checks that the line of Spark has all that the plugin needs.
     *
     * @throws IllegalStateException it is older than 3.5
     */
    static void requireSupported(String version) {
        String[] numbers = version.split("\\.", -1);
        int major = Integer.parseInt(numbers[0]);
        if (major < 3 || (major == 3 && Integer.parseInt(numbers[1]) < 5)) {
            throw new IllegalStateException(
                    "Spark "
                            + version
                            + " is not supported by this sluice-spark.jar (3.5 to 4.3 are): use one"
                            + " of these, or remove "
                            + SluicePlugin.class.getName()
                            + " from spark.plugins");
        }
    }

    private static void require(SparkConf conf, String key, String wanted, String sparkDefault) {
        String value = conf.get(key, sparkDefault);
        if (!value.equals(wanted) && !value.equals(sparkDefault)) {
            throw new IllegalArgumentException(
                    key
                            + " is "
                            + value
                            + ": with Sluice it must be "
                            + wanted
                            + "; remove the setting or the plugin");
        }
    }

    private static final class Driver implements DriverPlugin {
        private DriverRuntime runtime;

        @Override
        public Map<String, String> init(SparkContext context, PluginContext pluginContext) {
            requireSupported(context.version());
            SparkConf conf = context.conf();
            SluiceSettings settings = SluiceSettings.of(conf);
            Credential credential =
                    Credentials.ofDriver(key -> conf.get(key, null), System.getenv());
            // Settings may be a copy of another application's.
            conf.remove(Credentials.TASK_SETTING);
            String manager = SluiceShuffleManager.class.getName();
            String dataIo = SluiceShuffleDataIO.class.getName();
            require(conf, SHUFFLE_MANAGER, manager, "sort");
            require(
                    conf,
                    DATA_IO,
                    dataIo,
                    "org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO");
            ShuffleManager existing = SparkEnv.get().shuffleManager();
            if (existing != null
                    && !(existing instanceof SluiceShuffleManager
                            && conf.get(DATA_IO, "").equals(dataIo))) {
                throw new IllegalStateException(
                        "Spark "
                                + context.version()
                                + " makes its shuffle manager before plugins are loaded, so Sluice"
                                + " needs these settings too: "
                                + SHUFFLE_MANAGER
                                + "="
                                + manager
                                + " "
                                + DATA_IO
                                + "="
                                + dataIo
                                + " and the jar on spark.driver.extraClassPath and"
                                + " spark.executor.extraClassPath (sluice spark-conf"
                                + " --spark-version "
                                + context.version()
                                + " prints them)");
            }
            conf.set(SHUFFLE_MANAGER, manager);
            conf.set(DATA_IO, dataIo);
            if (settings.pipelined().enabled()) {
                Compat.requirePipelinedShuffles();
                require(conf, INCREMENTAL_MANAGER, STREAMING_MANAGER, "streaming");
                conf.set(INCREMENTAL_MANAGER, STREAMING_MANAGER);
            }
            // Otherwise executors that wrote map outputs would never be released.
            conf.set(SHUFFLE_TRACKING, "false");
            boolean localMaster =
                    context.master().equals("local") || context.master().startsWith("local[");
            if (localMaster) {
                // A reduce task prefers the TaskManager's host, which need not be the name of the
                // executor's. In local mode nothing offers the executor again when the wait for a
                // preferred host is over, and a task would wait for ever.
                conf.setIfMissing(LOCALITY_WAIT, "0s");
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
                            (stageId, reason) -> context.cancelStage(stageId, reason));
            context.addSparkListener(
                    new ApplicationListener(reachability, runtime.shuffles(), runtime.outputs()));
            DriverRuntime.install(runtime);
            StatusTab.attach(context, runtime);
            return Credentials.forExecutors(credential);
        }

        /**
         * Returns the number of executors that dynamic allocation starts with, as Spark computes
         * it; -1 without it.
         */
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
            runtime.counters().register(pluginContext.metricRegistry());
            runtime.start(applicationId);
        }

        @Override
        public Object receive(Object message) {
            String[] parts = (String[]) message;
            return switch (parts[0]) {
                case DriverMessages.REACHED -> {
                    runtime.reached(parts[1], parts[2], parts[3], Integer.parseInt(parts[4]));
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
                case DriverMessages.ENDPOINTS -> runtime.endpoints();
                case DriverMessages.PLACES -> {
                    DriverMessages.PlacesQuestion question =
                            DriverMessages.PlacesQuestion.read(parts);
                    yield runtime.outputs()
                            .places(question.shuffleId(), question.attempts(), question.avoided())
                            .message();
                }
                case DriverMessages.LEAVE -> {
                    DriverMessages.Leave leave = DriverMessages.Leave.read(parts);
                    runtime.outputs()
                            .leave(leave.taskManagerId(), leave.shuffleId(), leave.attempts());
                    yield null;
                }
                case DriverMessages.LOST_OUTPUT ->
                        Boolean.toString(
                                DriverRuntime.forgetMapOutput(
                                        Integer.parseInt(parts[1]),
                                        Long.parseLong(parts[2]),
                                        Integer.parseInt(parts[3])));
                default -> throw new IllegalArgumentException("unknown message " + parts[0]);
            };
        }

        @Override
        public void shutdown() {
            if (runtime != null) {
                runtime.releaseApplication();
                runtime.close();
            }
        }
    }

    private static final class Executor implements ExecutorPlugin {
        /** Null in a local application, where executor and driver share their counters. */
        private CounterReporter counters;

        @Override
        public void init(PluginContext context, Map<String, String> extraConf) {
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
