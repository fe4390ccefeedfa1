package io.sluice.spark.ui;

import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import io.sluice.spark.driver.DriverLink;
import io.sluice.spark.driver.DriverRuntime;
import io.sluice.spark.outputs.SparkTracker;
import io.sluice.spark.registration.ShuffleTable;
import io.sluice.spark.settings.SluiceSettings;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;

/**
 * A snapshot of the driver's state for the page in Spark's UI.
 *
 * @param registered number of registered shuffles
 * @param shuffles the newest shuffles, the newest first
 * @param counters sums over driver and executors
 * @param settings settings in force
 */
record ApplicationStatus(
        List<TaskManager> taskManagers,
        long registered,
        List<ShuffleTable.Row> shuffles,
        Map<String, Long> counters,
        List<Setting> settings) {

    /** Maximum number of block sizes to sum for a page. */
    private static final long MAX_SIZES = 2_000_000;

    /**
     * A data process of a TaskManager, or an endpoint that has never answered.
     *
     * @param id empty for an endpoint that has never answered
     * @param address HOST:PORT for other hosts and, of several, the process; or the endpoint
     * @param url URL of its own page, or empty
     * @param failure why it is not reachable, or empty
     * @param mapOutputs number of its map outputs in Spark's tracker
     * @param bytes their size as Spark estimates it; -1 if there are too many to sum
     */
    record TaskManager(
            String id,
            String address,
            String url,
            boolean reachable,
            String failure,
            long mapOutputs,
            long bytes) {}

    /** A setting, and whether the user has set it. */
    record Setting(String key, String value, boolean isSet, String meaning) {}

    static ApplicationStatus of(DriverRuntime runtime) {
        SparkConf conf = SparkEnv.get().conf();
        List<ShuffleTable.Row> shuffles = runtime.shuffles().newest();
        return new ApplicationStatus(
                taskManagers(runtime, shuffles),
                runtime.shuffles().registered(),
                shuffles,
                runtime.counters().sums(),
                SluiceSettings.ENTRIES.stream()
                        .map(
                                entry ->
                                        new Setting(
                                                entry.key(),
                                                conf.get(entry.key(), entry.defaultValue()),
                                                conf.contains(entry.key()),
                                                entry.meaning()))
                        .toList());
    }

    private static List<TaskManager> taskManagers(
            DriverRuntime runtime, List<ShuffleTable.Row> shuffles) {
        Map<String, Held> held = held(shuffles);
        Map<String, TaskManager> known = new TreeMap<>();
        Map<String, TaskManager> strangers = new TreeMap<>();
        for (DriverLink link : runtime.links()) {
            Message.HelloAck peer = link.taskManager();
            String failure = link.isConnected() ? "" : link.lastFailure();
            if (peer == null) {
                String address = link.endpoint().toString();
                strangers.put(address, new TaskManager("", address, "", false, failure, 0, 0));
                continue;
            }
            Held holds = held.getOrDefault(peer.taskManagerId(), new Held());
            TaskManager row =
                    new TaskManager(
                            peer.taskManagerId(),
                            address(peer),
                            runtime.settings()
                                    .taskManagerUrl()
                                    .replace("{host}", peer.advertisedHost()),
                            link.isConnected(),
                            failure,
                            holds.mapOutputs,
                            holds.exact ? holds.bytes : -1);
            // A TaskManager may have two links, by its socket and by its address.
            known.merge(row.id(), row, (a, b) -> a.reachable() ? a : b);
        }
        List<TaskManager> all = new ArrayList<>(known.values());
        all.addAll(strangers.values());
        return all;
    }

    private static String address(Message.HelloAck peer) {
        Endpoint endpoint = Endpoint.tcp(peer.advertisedHost(), peer.dataPort());
        return peer.processes() == 1
                ? endpoint.toString()
                : String.format("%s, process %d of %d", endpoint, peer.process(), peer.processes());
    }

    private static final class Held {
        long mapOutputs;
        long bytes;
        boolean exact = true;
    }

    /** Sums the map outputs of each TaskManager in Spark's tracker. */
    private static Map<String, Held> held(List<ShuffleTable.Row> shuffles) {
        Map<Integer, Integer> partitions = new LinkedHashMap<>();
        shuffles.forEach(row -> partitions.put(row.shuffleId(), row.partitions()));
        Map<String, Held> held = new TreeMap<>();
        AtomicLong sizes = new AtomicLong();
        SparkTracker.forEachShuffle(
                (shuffleId, shuffle) -> {
                    int blocks = partitions.getOrDefault(shuffleId, -1);
                    boolean sums =
                            blocks >= 0
                                    && sizes.addAndGet(
                                                    (long) blocks
                                                            * shuffle.numAvailableMapOutputs())
                                            <= MAX_SIZES;
                    SparkTracker.forEachOutput(
                            shuffle,
                            (taskManagerId, output) -> {
                                Held of = held.computeIfAbsent(taskManagerId, id -> new Held());
                                of.mapOutputs++;
                                of.exact &= sums;
                                for (int block = 0; sums && block < blocks; block++) {
                                    of.bytes += output.getSizeForBlock(block);
                                }
                            });
                });
        return held;
    }
}
