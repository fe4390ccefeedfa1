package io.sluice.spark.settings;

import io.sluice.client.output.Replicas;
import io.sluice.client.wire.Endpoint;
import io.sluice.spark.outputs.Locality;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.SparkConf;

/**
 * The settings {@code spark.sluice.*}, read and checked once; a wrong setting fails the application
 * at its start.
 *
 * @param routing which shuffles go through Sluice, and where its TaskManagers are
 * @param io connections to TaskManagers
 * @param writer map tasks
 * @param reader reduce tasks
 * @param copies how many TaskManagers keep a map output
 * @param liveness how driver and executors watch the TaskManagers
 * @param pipelined pipelined shuffles (Spark 4.3)
 * @param ssl encryption of TCP connections
 * @param taskManagerUrl form of the links to TaskManagers' own pages; empty for no links
 */
public record SluiceSettings(
        Routing routing,
        Io io,
        Writer writer,
        Reader reader,
        Copies copies,
        Liveness liveness,
        Pipelined pipelined,
        SslSettings ssl,
        String taskManagerUrl) {

    /**
     * Which shuffles go through Sluice, and where its TaskManagers are.
     *
     * @param enabled whether shuffles go through Sluice unless a session or a job says otherwise
     * @param endpoints the text of {@code spark.sluice.endpoints}
     * @param fallbackToSpark whether a shuffle may use Spark's own shuffle when no TaskManager is
     *     reachable
     * @param fallbackBelowBytes a shuffle whose map tasks are known to read less uses Spark's own
     *     shuffle; 0 for none
     */
    public record Routing(
            boolean enabled, String endpoints, boolean fallbackToSpark, long fallbackBelowBytes) {}

    /**
     * Connections to TaskManagers.
     *
     * @param connectTimeoutMillis deadline of a connect and of a handshake
     * @param timeoutMillis longest wait without progress
     * @param idleConnections unused connections that an executor keeps
     */
    public record Io(long connectTimeoutMillis, long timeoutMillis, int idleConnections) {}

    /**
     * Settings of map tasks.
     *
     * @param isSluice whether Sluice's own writer takes the shuffles it can take
     * @param bufferBytes records that a map task of that writer keeps before it sends them
     * @param blockBytes most bytes of a block
     * @param regionBytes size of a region buffer
     * @param regionArea whether map tasks share region buffers with the TaskManager of their host
     * @param returnTimeoutMillis how long a map task waits for a TaskManager that went away
     */
    public record Writer(
            boolean isSluice,
            int bufferBytes,
            int blockBytes,
            int regionBytes,
            boolean regionArea,
            long returnTimeoutMillis) {}

    /**
     * Settings of reduce tasks.
     *
     * @param creditPerChannel buffers that one channel may have under way
     * @param maxBuffers buffers that all channels together may have under way
     * @param returnTimeoutMillis how long a reader waits for a TaskManager that went away
     * @param mapOrder whether map outputs of several TaskManagers are read in the order of their
     *     tasks
     * @param locality when reduce tasks prefer the hosts that have their input
     */
    public record Reader(
            int creditPerChannel,
            int maxBuffers,
            long returnTimeoutMillis,
            boolean mapOrder,
            Locality.Mode locality) {
        /** Returns the credit of each channel of a gate with the given number of channels. */
        public int creditFor(int channels) {
            return Math.max(2, Math.min(creditPerChannel, maxBuffers / Math.max(1, channels)));
        }
    }

    /**
     * Copies of map outputs.
     *
     * @param replicas how many TaskManagers keep a map output, and whether a map task waits for it
     * @param lostAfterMillis how long the driver waits for a TaskManager before tasks are sent to
     *     the copies
     */
    public record Copies(Replicas replicas, long lostAfterMillis) {}

    /**
     * How driver and executors watch the TaskManagers.
     *
     * @param pingIntervalMillis time between two pings of the driver
     * @param reachabilityTimeoutMillis how long a shuffle's registration waits for the executors'
     *     reports on TaskManagers
     */
    public record Liveness(long pingIntervalMillis, long reachabilityTimeoutMillis) {}

    /**
     * Settings of pipelined shuffles.
     *
     * @param enabled whether pipelined shuffles go through Sluice
     * @param flushIntervalMillis shortest time between two flushes of a partition
     */
    public record Pipelined(boolean enabled, long flushIntervalMillis) {}

    public static final String PREFIX = "spark.sluice.";
    public static final String ENABLED = "spark.sluice.enabled";
    public static final String ACTIVE = "spark.sluice.active";
    public static final String ENDPOINTS = "spark.sluice.endpoints";
    public static final String FALLBACK_POLICY = "spark.sluice.fallback.policy";
    public static final String FALLBACK_BELOW = "spark.sluice.fallback.belowSize";
    public static final String CONNECT_TIMEOUT = "spark.sluice.io.connectTimeout";
    public static final String IO_TIMEOUT = "spark.sluice.io.timeout";
    public static final String IDLE_CONNECTIONS = "spark.sluice.io.idleConnections";
    public static final String WRITER = "spark.sluice.writer.implementation";
    public static final String WRITER_BUFFER = "spark.sluice.writer.bufferSize";
    public static final String BLOCK_SIZE = "spark.sluice.writer.blockSize";
    public static final String REGION_SIZE = "spark.sluice.writer.regionSize";
    public static final String REGION_AREA = "spark.sluice.regionArea.enabled";
    public static final String CREDIT_PER_CHANNEL = "spark.sluice.reader.creditPerChannel";
    public static final String MAX_READER_BUFFERS = "spark.sluice.reader.maxBuffers";
    public static final String RETURN_TIMEOUT = "spark.sluice.reader.returnTimeout";
    public static final String MAP_ORDER = "spark.sluice.reader.mapOrder";
    public static final String LOCALITY = "spark.sluice.reader.locality";
    public static final String WRITER_RETURN_TIMEOUT = "spark.sluice.writer.returnTimeout";
    public static final String REPLICAS = "spark.sluice.replicas";
    public static final String REPLICAS_MODE = "spark.sluice.replicas.mode";
    public static final String REPLICAS_LOST_AFTER = "spark.sluice.replicas.lostAfter";
    public static final String PING_INTERVAL = "spark.sluice.driver.pingInterval";
    public static final String PIPELINED = "spark.sluice.pipelined.enabled";
    public static final String FLUSH_INTERVAL = "spark.sluice.pipelined.flushInterval";
    public static final String REACHABILITY_TIMEOUT = "spark.sluice.reachability.timeout";
    public static final String TASK_MANAGER_URL = "spark.sluice.ui.taskManagerUrl";

    public static final String TOKEN_FILE = "spark.sluice.auth.tokenFile";
    public static final String TOKEN = "spark.sluice.auth.token";

    private static final long KIB = 1024;
    private static final long MIB = 1024 * KIB;

    /** A setting for the reference page: key, default, unit or form, meaning. */
    public record Entry(String key, String defaultValue, String form, String meaning) {}

    /**
     * All settings, in the order of the reference page (docs/reference/spark-settings.md; a test
     * compares them).
     */
    public static final List<Entry> ENTRIES = entries();

    private static List<Entry> entries() {
        List<Entry> entries =
                new ArrayList<>(
                        List.of(
                                new Entry(
                                        ENABLED,
                                        "true",
                                        "true or false",
                                        "whether shuffles go through Sluice; a session or a job may"
                                                + " say otherwise for itself"),
                                new Entry(
                                        ACTIVE,
                                        "",
                                        "true or false, set by the plugin",
                                        "whether the application's shuffles go through Sluice"
                                                + " unless a session or a job says otherwise; a"
                                                + " value of yours is replaced"),
                                new Entry(
                                        ENDPOINTS,
                                        "127.0.0.1:7337",
                                        "comma list of HOST:PORT and unix:/PATH",
                                        "where TaskManagers listen; {host} in a path is the"
                                                + " executor's host"),
                                new Entry(
                                        FALLBACK_POLICY,
                                        "fail",
                                        "fail or spark",
                                        "what a shuffle does when no TaskManager is reachable at"
                                                + " its registration"),
                                new Entry(
                                        FALLBACK_BELOW,
                                        "0",
                                        "size, 0 to 1t",
                                        "a shuffle whose map tasks are known to read less than this"
                                                + " is Spark's own; 0: none is"),
                                new Entry(
                                        CONNECT_TIMEOUT,
                                        "5s",
                                        "time, 100ms to 10min",
                                        "deadline of a connect and of a handshake"),
                                new Entry(
                                        IO_TIMEOUT,
                                        "120s",
                                        "time, 1s to 1h",
                                        "longest wait for a TaskManager without progress"),
                                new Entry(
                                        IDLE_CONNECTIONS,
                                        "16",
                                        "number, 0 to 1024",
                                        "unused connections an executor keeps"),
                                new Entry(
                                        WRITER,
                                        "sluice",
                                        "sluice or spark",
                                        "who writes what needs no map-side aggregation and has a"
                                                + " relocatable serializer; the rest is Spark's"
                                                + " writers' anyway"),
                                new Entry(
                                        WRITER_BUFFER,
                                        "16m",
                                        "size, 256k to 1g",
                                        "records a map task of Sluice's writer keeps, in Spark's"
                                                + " execution memory, before it sends them"),
                                new Entry(
                                        BLOCK_SIZE,
                                        "256k",
                                        "size, 4k to 256k",
                                        "most bytes of a block, which is what a reader verifies at"
                                                + " a time"),
                                new Entry(
                                        REGION_SIZE,
                                        "2m",
                                        "size, 64k to 64m",
                                        "a map task's buffer; what is full is sent as one region"),
                                new Entry(
                                        REGION_AREA,
                                        "true",
                                        "true or false",
                                        "whether a map task fills memory shared with its host's"
                                            + " TaskManager, when that has a Unix socket, instead"
                                            + " of sending regions"),
                                new Entry(
                                        CREDIT_PER_CHANNEL,
                                        "16",
                                        "number, 2 to 1024",
                                        "buffers a reader may have under way from one TaskManager"),
                                new Entry(
                                        MAX_READER_BUFFERS,
                                        "1024",
                                        "number, 2 to 65536",
                                        "buffers a reader may have under way in all"),
                                new Entry(
                                        RETURN_TIMEOUT,
                                        "10s",
                                        "time, 0s to 10min",
                                        "how long a reader waits for a TaskManager that went away"
                                                + " before its map tasks run again"),
                                new Entry(
                                        MAP_ORDER,
                                        "false",
                                        "true or false",
                                        "whether a reader takes the map outputs of several"
                                            + " TaskManagers in the order of their tasks; those of"
                                            + " one TaskManager come in this order anyway"),
                                new Entry(
                                        LOCALITY,
                                        "auto",
                                        "auto, always or never",
                                        "whether reduce tasks prefer hosts that have their input;"
                                                + " auto: if each executor has a TaskManager on its"
                                                + " host"),
                                new Entry(
                                        WRITER_RETURN_TIMEOUT,
                                        "10s",
                                        "time, 0s to 10min",
                                        "how long a map task waits for a TaskManager that went away"
                                                + " before it fails"),
                                new Entry(
                                        REPLICAS,
                                        "1",
                                        "number, 1 to 8",
                                        "how many TaskManagers, each on another host, keep a map"
                                                + " output; 1: only the one it is written to"),
                                new Entry(
                                        REPLICAS_MODE,
                                        "async",
                                        "async or sync",
                                        "whether a map task ends before the copies of its output"
                                                + " are made, or waits for them"),
                                new Entry(
                                        REPLICAS_LOST_AFTER,
                                        "5s",
                                        "time, 0s to 10min",
                                        "how long the driver waits for a TaskManager that went away"
                                                + " before it sends new tasks to the copies; tasks"
                                                + " under way turn to them at once"),
                                new Entry(
                                        PING_INTERVAL,
                                        "10s",
                                        "time, 1s to 30s",
                                        "signs of life of the driver to each TaskManager"),
                                new Entry(
                                        PIPELINED,
                                        "false",
                                        "true or false",
                                        "Spark 4.3: whether the pipelined shuffles of real-time"
                                                + " queries go through TaskManagers too"),
                                new Entry(
                                        FLUSH_INTERVAL,
                                        "5ms",
                                        "time, 0ms to 10s",
                                        "least time between two flushes of a pipelined partition; a"
                                                + " record that comes later goes at once"),
                                new Entry(
                                        REACHABILITY_TIMEOUT,
                                        "30s",
                                        "time, 0s to 10min",
                                        "how long a shuffle waits for the executors' word on"
                                                + " TaskManagers when the driver cannot tell"),
                                new Entry(
                                        TASK_MANAGER_URL,
                                        "",
                                        "http or https URL, {host} in it replaced, or empty",
                                        "where TaskManagers have their own pages; the Sluice page"
                                                + " in Spark's UI links to them"),
                                new Entry(
                                        TOKEN_FILE,
                                        "",
                                        "path on the driver's host, or empty",
                                        "the file of a submit token or cluster secret, with which"
                                                + " the driver proves itself"),
                                new Entry(
                                        TOKEN,
                                        "",
                                        "text of a submit token, or empty",
                                        "the same without a file; it shows in a command line, and"
                                                + " executors get it too")));
        entries.addAll(SslSettings.ENTRIES);
        return List.copyOf(entries);
    }

    /** Returns whether Sluice is off for the application; its other settings may be wrong. */
    public static boolean isOff(SparkConf conf) {
        return conf.get(ENABLED, "true").trim().equalsIgnoreCase("false");
    }

    /** Reads and checks all settings; one message lists everything that is wrong. */
    public static SluiceSettings of(SparkConf conf) {
        SettingsReader reading = new SettingsReader(conf, ENTRIES);
        SluiceSettings settings =
                new SluiceSettings(
                        new Routing(
                                reading.isTrue(ENABLED),
                                reading.endpoints(ENDPOINTS),
                                reading.oneOf(FALLBACK_POLICY, "fail", "spark").equals("spark"),
                                reading.size(FALLBACK_BELOW, 0, 1024 * 1024 * MIB)),
                        new Io(
                                reading.time(CONNECT_TIMEOUT, 100, 600_000),
                                reading.time(IO_TIMEOUT, 1_000, 3_600_000),
                                (int) reading.number(IDLE_CONNECTIONS, 0, 1024)),
                        new Writer(
                                reading.oneOf(WRITER, "sluice", "spark").equals("sluice"),
                                (int) reading.size(WRITER_BUFFER, 256 * KIB, 1024 * MIB),
                                (int) reading.size(BLOCK_SIZE, 4 * KIB, 256 * KIB),
                                (int) reading.size(REGION_SIZE, 64 * KIB, 64 * MIB),
                                reading.isTrue(REGION_AREA),
                                reading.time(WRITER_RETURN_TIMEOUT, 0, 600_000)),
                        new Reader(
                                (int) reading.number(CREDIT_PER_CHANNEL, 2, 1024),
                                (int) reading.number(MAX_READER_BUFFERS, 2, 65536),
                                reading.time(RETURN_TIMEOUT, 0, 600_000),
                                reading.isTrue(MAP_ORDER),
                                switch (reading.oneOf(LOCALITY, "auto", "always", "never")) {
                                    case "always" -> Locality.Mode.ALWAYS;
                                    case "never" -> Locality.Mode.NEVER;
                                    default -> Locality.Mode.AUTO;
                                }),
                        new Copies(
                                new Replicas(
                                        (int) reading.number(REPLICAS, 1, Replicas.MAX),
                                        reading.oneOf(REPLICAS_MODE, "async", "sync")
                                                .equals("sync")),
                                reading.time(REPLICAS_LOST_AFTER, 0, 600_000)),
                        new Liveness(
                                reading.time(PING_INTERVAL, 1_000, 30_000),
                                reading.time(REACHABILITY_TIMEOUT, 0, 600_000)),
                        new Pipelined(
                                reading.isTrue(PIPELINED), reading.time(FLUSH_INTERVAL, 0, 10_000)),
                        SslSettings.read(reading::given, reading.text(ENDPOINTS), reading::problem),
                        reading.url(TASK_MANAGER_URL));
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
     * @throws IllegalArgumentException if the text is not a size; the message says what a size is
     */
    public static long sizeInBytes(String text) {
        return new SparkConf(false).set("size", text).getSizeAsBytes("size");
    }

    /** Returns the endpoints as seen from {@code localHost}. */
    public List<Endpoint> endpointsFor(String localHost) {
        return Endpoint.parseList(routing.endpoints(), localHost);
    }
}
