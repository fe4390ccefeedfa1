package io.sluice.spark.ui;

import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import io.sluice.spark.driver.DriverLink;
import io.sluice.spark.driver.DriverRuntime;
import io.sluice.spark.outputs.SparkTracker;
import io.sluice.spark.registration.ShuffleTable;
import io.sluice.spark.settings.Credentials;
import io.sluice.spark.ui.SluiceStatusEvent.TaskManager;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.util.kvstore.KVStore;

/** Reads the state of a running application on its driver. */
final class LiveStatus {
    /** Maximum number of block sizes to sum for a page. */
    private static final long MAX_SIZES = 2_000_000;

    private static final String REDACTED = "*********(redacted)";

    private LiveStatus() {}

    /**
     * @param store the store of Spark's UI
     */
    static ApplicationStatus of(DriverRuntime runtime, KVStore store) {
        SparkConf conf = SparkEnv.get().conf();
        SluiceStatusEvent now = event(runtime);
        return new ApplicationStatus(
                now,
                runtime.shuffles().newest().stream().map(SluiceShuffleEvent::of).toList(),
                StageRow.read(store, now.creditWaitNanos()),
                ApplicationStatus.settings(key -> shown(conf, key)));
    }

    private static String shown(SparkConf conf, String key) {
        String value = conf.get(key, null);
        return value != null && Credentials.isRedacted(name -> conf.get(name, null), key)
                ? REDACTED
                : value;
    }

    /** Returns TaskManagers and counters, as the event log records them. */
    static SluiceStatusEvent event(DriverRuntime runtime) {
        return new SluiceStatusEvent(
                taskManagers(runtime, runtime.shuffles().newest()),
                runtime.shuffles().registered(),
                runtime.counters().sums(),
                runtime.counters().creditWaitNanos());
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
