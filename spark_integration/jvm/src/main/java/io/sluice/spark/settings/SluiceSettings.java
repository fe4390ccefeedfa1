package io.sluice.spark.settings;

import io.sluice.client.output.Replicas;
import io.sluice.spark.members.EndpointList;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import org.apache.spark.SparkConf;

/**
 * The settings {@code spark.sluice.*}; their meanings are in {@link #ENTRIES}. A wrong setting
 * fails the application at its start.
 *
 * @param taskManagerUrl form of the links to TaskManagers' own pages; empty for no links
 * @param traces whether tasks ask the TaskManagers for traces
 */
public record SluiceSettings(
        Routing routing,
        Io io,
        Writer writer,
        Reader reader,
        Copies copies,
        Liveness liveness,
        Pipelined pipelined,
        Place place,
        SslSettings ssl,
        String taskManagerUrl,
        boolean traces) {

    /** Which shuffles go through Sluice, and where its TaskManagers are. */
    public record Routing(
            boolean enabled,
            String endpoints,
            long resolveIntervalMillis,
            boolean fallbackToSpark,
            long fallbackBelowBytes) {}

    /** Connections to TaskManagers. */
    public record Io(
            long connectTimeoutMillis,
            long timeoutMillis,
            long silenceTimeoutMillis,
            int idleConnections) {}

    /** Map tasks. */
    public record Writer(
            int maxBufferBytes,
            int blockBytes,
            int regionBytes,
            boolean regionArea,
            long returnTimeoutMillis) {
        /** What most tasks gather: more makes a pass of few partitions no better. */
        private static final int USUAL_BUFFER_BYTES = 16 << 20;

        /** A disk reads pieces of this size well, and each costs system calls and a block. */
        private static final int PIECE_BYTES = 64 << 10;

        /** Returns the bytes that a map task gathers before it sends them. */
        public int bufferBytes(int numPartitions) {
            long wanted = Math.max(USUAL_BUFFER_BYTES, (long) numPartitions * PIECE_BYTES);
            return (int) Math.min(maxBufferBytes, wanted);
        }
    }

    /** When reduce tasks prefer the hosts that have their input. */
    public enum LocalityMode {
        /** If each executor has a TaskManager on its host. */
        AUTO,
        ALWAYS,
        NEVER
    }

    /** Reduce tasks. */
    public record Reader(
            int creditPerChannel,
            int maxBuffers,
            long returnTimeoutMillis,
            long refusedTimeoutMillis,
            boolean mapOrder,
            LocalityMode locality) {
        /** Buffers of 256 KiB in a message of stored data, which costs one credit. */
        private static final int BUFFERS_OF_A_MESSAGE = 4;

        /** Returns the credit of each channel of a gate of stored data: messages in flight. */
        public int storedCreditFor(int channels) {
            return Math.max(1, pipelinedCreditFor(channels) / BUFFERS_OF_A_MESSAGE);
        }

        /** Returns the credit of each channel of a gate whose buffers are sent one by one. */
        public int pipelinedCreditFor(int channels) {
            return Math.max(2, Math.min(creditPerChannel, maxBuffers / Math.max(1, channels)));
        }
    }

    /** Copies of map outputs. */
    public record Copies(Replicas replicas, long lostAfterMillis) {}

    /** Pings and reports of TaskManagers. */
    public record Liveness(long pingIntervalMillis, long reachabilityTimeoutMillis) {}

    /** Pipelined shuffles. */
    public record Pipelined(boolean enabled, long flushIntervalMillis) {}

    /** Where executors run: node and zone of the settings; empty if not set. */
    public record Place(String node, String zone) {}

    public static final String PREFIX = "spark.sluice.";
    public static final String ENABLED = "spark.sluice.enabled";
    public static final String ACTIVE = "spark.sluice.active";
    public static final String ENDPOINTS = "spark.sluice.endpoints";
    public static final String RESOLVE_INTERVAL = "spark.sluice.resolveInterval";
    public static final String NODE = "spark.sluice.node";
    public static final String ZONE = "spark.sluice.zone";
    public static final String FALLBACK_POLICY = "spark.sluice.fallback.policy";
    public static final String FALLBACK_BELOW = "spark.sluice.fallback.belowSize";
    public static final String CONNECT_TIMEOUT = "spark.sluice.io.connectTimeout";
    public static final String IO_TIMEOUT = "spark.sluice.io.timeout";
    public static final String SILENCE_TIMEOUT = "spark.sluice.io.silenceTimeout";
    public static final String IDLE_CONNECTIONS = "spark.sluice.io.idleConnections";
    public static final String WRITER_BUFFER = "spark.sluice.writer.bufferSize";
    public static final String BLOCK_SIZE = "spark.sluice.writer.blockSize";
    public static final String REGION_SIZE = "spark.sluice.writer.regionSize";
    public static final String REGION_AREA = "spark.sluice.regionArea.enabled";
    public static final String CREDIT_PER_CHANNEL = "spark.sluice.reader.creditPerChannel";
    public static final String MAX_READER_BUFFERS = "spark.sluice.reader.maxBuffers";
    public static final String RETURN_TIMEOUT = "spark.sluice.reader.returnTimeout";
    public static final String REFUSED_TIMEOUT = "spark.sluice.reader.refusedTimeout";
    public static final String MAP_ORDER = "spark.sluice.reader.mapOrder";
    public static final String LOCALITY = "spark.sluice.reader.locality";
    public static final String WRITER_RETURN_TIMEOUT = "spark.sluice.writer.returnTimeout";
    public static final String REPLICAS = "spark.sluice.replicas";
    public static final String REPLICAS_MODE = "spark.sluice.replicas.mode";
    public static final String REPLICAS_REMOTE = "spark.sluice.replicas.remote";
    public static final String REPLICAS_LOST_AFTER = "spark.sluice.replicas.lostAfter";
    public static final String PING_INTERVAL = "spark.sluice.driver.pingInterval";
    public static final String PIPELINED = "spark.sluice.pipelined.enabled";
    public static final String FLUSH_INTERVAL = "spark.sluice.pipelined.flushInterval";
    public static final String REACHABILITY_TIMEOUT = "spark.sluice.reachability.timeout";
    public static final String TASK_MANAGER_URL = "spark.sluice.ui.taskManagerUrl";
    public static final String TRACES = "spark.sluice.traces";

    public static final String TOKEN_FILE = "spark.sluice.auth.tokenFile";
    public static final String TOKEN = "spark.sluice.auth.token";

    private static final long KIB = 1024;
    private static final long MIB = 1024 * KIB;

    /** A setting for the reference page: key, default, unit or form, meaning. */
    public record Entry(String key, String defaultValue, String form, String meaning) {
        private static final Pattern ENTRY =
                Pattern.compile("(\\S+) \\| (.*?) ?\\| (.*)((?:\n    .+)+)");

        /** Reads entries from a text of the form of {@link #TABLE}. */
        static List<Entry> parse(String table) {
            return ENTRY.matcher(table)
                    .results()
                    .map(
                            found ->
                                    new Entry(
                                            found.group(1),
                                            found.group(2),
                                            found.group(3),
                                            found.group(4).strip().replaceAll("\\s+", " ")))
                    .toList();
        }
    }

    /** All settings except those of TLS: key, default and form, then the meaning. */
    private static final String TABLE =
            """
            spark.sluice.enabled | true | true or false
                whether shuffles go through Sluice; a session or a job may override it
            spark.sluice.active |  | true or false, set by the plugin
                whether the application's shuffles go through Sluice, unless a session or a job
                overrides it; your own value is replaced
            spark.sluice.endpoints | 127.0.0.1:7337 | comma list of HOST:PORT, dns:NAME[:PORT] and unix:/PATH
                where TaskManagers listen; a dns: item is each address of the name, at port 7337 by
                default; {host} in a path is the executor's host; * in its last part matches any
                text
            spark.sluice.resolveInterval | 30s | time, 1s to 1h
                time between two lookups of a dns: item by the driver, besides those after a lost
                connection
            spark.sluice.node |  | printable ASCII, up to 253 characters, or empty
                the node of all executors; if it is empty, each executor uses its environment
                variable SLUICE_NODE
            spark.sluice.zone |  | printable ASCII, up to 253 characters, or empty
                the zone of all executors; if it is empty, each executor uses its environment
                variable SLUICE_ZONE
            spark.sluice.fallback.policy | fail | fail or spark
                what a shuffle does if no TaskManager is reachable when it is registered: fail, or
                use Spark's own shuffle
            spark.sluice.fallback.belowSize | 0 | size, 0 to 1t
                a shuffle whose map tasks are known to read less uses Spark's own shuffle; 0: never
            spark.sluice.io.connectTimeout | 5s | time, 100ms to 10min
                deadline of a connect and of the handshake
            spark.sluice.io.timeout | 120s | time, 1s to 1h
                longest wait for a TaskManager without progress
            spark.sluice.io.silenceTimeout | 30s | time, 1s to 1h
                a task pings the TaskManager that it waits for after half of this time without a
                byte, and uses another one after all of it; stored shuffles have no such limit
                unless it is below spark.sluice.io.timeout
            spark.sluice.io.idleConnections | 16 | number, 0 to 1024
                maximum number of idle connections of an executor, for each data process of a
                TaskManager
            spark.sluice.writer.bufferSize | 64m | size, 256k to 1g
                most records that a map task of Sluice's writer keeps, in Spark's execution memory,
                before it sends them; up to that, it keeps 64k for each reduce task and at least 16m
            spark.sluice.writer.blockSize | 256k | size, 4k to 256k
                maximum size of a block, the unit that readers verify
            spark.sluice.writer.regionSize | 2m | size, 64k to 64m
                buffer of a map task; a full buffer is sent as one region
            spark.sluice.regionArea.enabled | true | true or false
                whether map tasks share region buffers with the TaskManager of their host, if it has
                a Unix socket, instead of sending regions
            spark.sluice.reader.creditPerChannel | 16 | number, 2 to 1024
                buffers in flight from one TaskManager to a reader; of stored data, one message of
                at most 1m for four buffers of 256k
            spark.sluice.reader.maxBuffers | 1024 | number, 2 to 65536
                buffers in flight to a reader in all, but one message for each TaskManager
            spark.sluice.reader.returnTimeout | 10s | time, 0s to 10min
                how long a reader waits for a lost TaskManager before its map tasks run again
            spark.sluice.reader.refusedTimeout | 2500ms | time, 0s to 10min
                how long a reader waits if the host of another TaskManager is alive and nothing
                listens at its port; at most as long as for any lost TaskManager
            spark.sluice.reader.mapOrder | false | true or false
                whether a reader takes the map outputs of several TaskManagers in the order of their
                tasks, as it always does for one TaskManager
            spark.sluice.reader.locality | auto | auto, always or never
                whether reduce tasks prefer hosts that have their input; auto: if each executor has
                a TaskManager on its host
            spark.sluice.writer.returnTimeout | 10s | time, 0s to 10min
                how long a map task waits for a lost TaskManager before it fails
            spark.sluice.replicas | 1 | number, 1 to 8
                how many TaskManagers, each on another node, keep a map output; 1: no copies
            spark.sluice.replicas.mode | async | async or sync
                whether a map task waits for the copies of its output
            spark.sluice.replicas.remote | false | true or false
                whether each map output gets a copy in the remote tier of its TaskManager, from which
                any other TaskManager with the same remote tier serves it
            spark.sluice.replicas.lostAfter | 5s | time, 0s to 10min
                how long the driver waits for a lost TaskManager before new tasks read the copies;
                running tasks read them at once
            spark.sluice.driver.pingInterval | 10s | time, 1s to 30s
                time between two pings of the driver to a TaskManager
            spark.sluice.pipelined.enabled | false | true or false
                Spark 4.3: whether the pipelined shuffles of real-time queries go through
                TaskManagers, too
            spark.sluice.pipelined.flushInterval | 5ms | time, 0ms to 10s
                minimum time between two flushes of a pipelined partition; after it, a record is
                sent at once
            spark.sluice.reachability.timeout | 30s | time, 0s to 10min
                how long a new shuffle waits for the executors' reports on TaskManagers if the
                driver reaches none
            spark.sluice.ui.taskManagerUrl |  | http or https URL, {host} in it replaced, or empty
                URL of the TaskManagers' own pages, for links on the Sluice page of Spark's UI
            spark.sluice.traces | false | true or false
                whether tasks ask the TaskManagers for traces; the local property traceparent of the
                job's thread is the parent of their spans
            spark.sluice.auth.tokenFile |  | path on the driver's host, or empty
                file with a submit token or cluster secret, the driver's credential
            spark.sluice.auth.token |  | text of a submit token, or empty
                the same as a text; other users may see it in the command line, and executors get
                it, too
            """;

    /**
     * All settings, in the order of the reference page (docs/reference/spark-settings.md; a test
     * compares them).
     */
    public static final List<Entry> ENTRIES = entries();

    private static List<Entry> entries() {
        List<Entry> entries = new ArrayList<>(Entry.parse(TABLE));
        entries.addAll(SslSettings.ENTRIES);
        return List.copyOf(entries);
    }

    /** Returns whether Sluice is off for the application; its other settings may be wrong. */
    public static boolean isOff(SparkConf conf) {
        return conf.get(ENABLED, "true").trim().equalsIgnoreCase("false");
    }

    /** Reads all settings; the exception lists every problem. */
    public static SluiceSettings of(SparkConf conf) {
        SettingsReader reading = new SettingsReader(conf, ENTRIES);
        SluiceSettings settings =
                new SluiceSettings(
                        new Routing(
                                reading.isTrue(ENABLED),
                                reading.endpoints(ENDPOINTS),
                                reading.time(RESOLVE_INTERVAL, 1_000, 3_600_000),
                                reading.oneOf(FALLBACK_POLICY, "fail", "spark").equals("spark"),
                                reading.size(FALLBACK_BELOW, 0, 1024 * 1024 * MIB)),
                        new Io(
                                reading.time(CONNECT_TIMEOUT, 100, 600_000),
                                reading.time(IO_TIMEOUT, 1_000, 3_600_000),
                                reading.time(SILENCE_TIMEOUT, 1_000, 3_600_000),
                                (int) reading.number(IDLE_CONNECTIONS, 0, 1024)),
                        new Writer(
                                (int) reading.size(WRITER_BUFFER, 256 * KIB, 1024 * MIB),
                                (int) reading.size(BLOCK_SIZE, 4 * KIB, 256 * KIB),
                                (int) reading.size(REGION_SIZE, 64 * KIB, 64 * MIB),
                                reading.isTrue(REGION_AREA),
                                reading.time(WRITER_RETURN_TIMEOUT, 0, 600_000)),
                        new Reader(
                                (int) reading.number(CREDIT_PER_CHANNEL, 2, 1024),
                                (int) reading.number(MAX_READER_BUFFERS, 2, 65536),
                                reading.time(RETURN_TIMEOUT, 0, 600_000),
                                reading.time(REFUSED_TIMEOUT, 0, 600_000),
                                reading.isTrue(MAP_ORDER),
                                switch (reading.oneOf(LOCALITY, "auto", "always", "never")) {
                                    case "always" -> LocalityMode.ALWAYS;
                                    case "never" -> LocalityMode.NEVER;
                                    default -> LocalityMode.AUTO;
                                }),
                        new Copies(
                                new Replicas(
                                        (int) reading.number(REPLICAS, 1, Replicas.MAX),
                                        reading.oneOf(REPLICAS_MODE, "async", "sync")
                                                .equals("sync"),
                                        reading.isTrue(REPLICAS_REMOTE)),
                                reading.time(REPLICAS_LOST_AFTER, 0, 600_000)),
                        new Liveness(
                                reading.time(PING_INTERVAL, 1_000, 30_000),
                                reading.time(REACHABILITY_TIMEOUT, 0, 600_000)),
                        new Pipelined(
                                reading.isTrue(PIPELINED), reading.time(FLUSH_INTERVAL, 0, 10_000)),
                        new Place(reading.place(NODE), reading.place(ZONE)),
                        SslSettings.read(reading::given, reading.text(ENDPOINTS), reading::problem),
                        reading.url(TASK_MANAGER_URL),
                        reading.isTrue(TRACES));
        reading.unknownKeys(PREFIX);
        reading.refuse(
                "spark.shuffle.push.enabled", "push-based shuffle needs Spark's own shuffle files");
        reading.refuse(
                "spark.shuffle.useOldFetchProtocol",
                "map attempts need unique numbers, which this setting removes");
        reading.finish();
        return settings;
    }

    /**
     * Parses a size as Spark's settings write it.
     *
     * @throws IllegalArgumentException if the text is not a size
     */
    public static long sizeInBytes(String text) {
        return new SparkConf(false).set("size", text).getSizeAsBytes("size");
    }

    /** Returns the endpoints as seen from {@code localHost}. */
    public EndpointList endpointsFor(String localHost) {
        return EndpointList.parse(routing.endpoints(), localHost);
    }
}
