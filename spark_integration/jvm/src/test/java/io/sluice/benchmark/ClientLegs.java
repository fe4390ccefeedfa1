package io.sluice.benchmark;

import com.sun.management.HotSpotDiagnosticMXBean;
import com.sun.management.OperatingSystemMXBean;
import io.sluice.client.connection.ClientOptions;
import io.sluice.client.connection.ConnectionPool;
import io.sluice.client.connection.ConnectionSource;
import io.sluice.client.connection.DriverClient;
import io.sluice.client.connection.OutputEvents;
import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.failover.UnreachableCache;
import io.sluice.client.gate.BlockStream;
import io.sluice.client.gate.InputGate;
import io.sluice.client.gate.Source;
import io.sluice.client.output.MapOutputWriter;
import io.sluice.client.output.RegionPool;
import io.sluice.client.tls.Tls;
import io.sluice.client.tls.TlsSettings;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.stream.LongStream;

/**
 * Writes map outputs to a TaskManager by TCP and reads them back, as the tasks of an executor do,
 * without Spark: the JVM legs of {@code make bench-tls}, which runs this file from its source
 * against the plugin's jar.
 *
 * <p>Arguments: HOST PORT, and with TLS the files of authority, certificate and key. Each line of
 * the input is a command, {@code write SHUFFLE MAP_OUTPUTS}, {@code read SHUFFLE MAP_OUTPUTS} or
 * {@code release SHUFFLE}, in quotation marks or not; each has one line of JSON as its answer. It
 * uses public classes only, because a class loader of its own has it.
 */
public final class ClientLegs {
    private static final String APPLICATION = "jvm-legs";
    private static final int SUBPARTITIONS = 16;
    private static final int SUBPARTITION_BYTES = 2 * 1024 * 1024;

    /** A writer gets its bytes in such pieces, and a reader takes them. */
    private static final int PIECE_BYTES = 64 * 1024;

    // The defaults of spark.sluice.writer and spark.sluice.reader.
    private static final int BLOCK_BYTES = 256 * 1024;
    private static final int REGION_BYTES = 2 * 1024 * 1024;
    private static final int CREDIT = 16;

    private static final int IDLE_CHUNKS = 1024;
    private static final int IDLE_CONNECTIONS = 16;
    private static final int TIMEOUT_MILLIS = 30_000;

    private final Endpoint endpoint;
    private final ClientOptions options;
    private final ConnectionPool pool;
    private final RegionPool regions = new RegionPool(REGION_BYTES, 2, 0);
    private final byte[] data = new byte[SUBPARTITION_BYTES];
    private final byte[] piece = new byte[PIECE_BYTES];
    private String taskManagerId;

    private ClientLegs(Endpoint endpoint, Tls tls) {
        this.endpoint = endpoint;
        options =
                new ClientOptions(
                        APPLICATION,
                        "bench-tls",
                        TIMEOUT_MILLIS,
                        TIMEOUT_MILLIS,
                        new ChunkPool(IDLE_CHUNKS),
                        tls,
                        null);
        pool = new ConnectionPool(options, IDLE_CONNECTIONS);
        new Random(1).nextBytes(data);
    }

    /** Leases connections to the one TaskManager for a role. */
    private final class Connections implements ConnectionSource {
        private final int role;
        private final UnreachableCache absences = new UnreachableCache();

        Connections(int role) {
            this.role = role;
        }

        @Override
        public TaskManagerConnection lease() throws IOException {
            return pool.lease(endpoint, role);
        }

        @Override
        public TaskManagerConnection leaseAgain(Endpoint again, String id) throws IOException {
            throw lost();
        }

        @Override
        public long returnTimeoutMillis() {
            return 0;
        }

        @Override
        public long refusedTimeoutMillis() {
            return 0;
        }

        @Override
        public void release(TaskManagerConnection connection) {
            pool.release(connection);
        }

        @Override
        public UnreachableCache unreachable() {
            return absences;
        }

        @Override
        public void avoid(Endpoint full) {
            throw new IllegalStateException(full + " has no room");
        }

        // Bytes that are moved twice would spoil the rate.
        @Override
        public void reconnected() {
            throw new IllegalStateException(lost());
        }

        @Override
        public void refetched() {
            throw new IllegalStateException("data came damaged");
        }

        private static IOException lost() {
            return new IOException("a connection was lost during the measurement");
        }
    }

    private long write(int shuffleId, int mapOutputs) throws IOException {
        long total = 0;
        for (int attempt = 0; attempt < mapOutputs; attempt++) {
            MapOutputWriter writer =
                    new MapOutputWriter(
                            new Connections(Message.ROLE_PRODUCER),
                            regions,
                            shuffleId,
                            attempt,
                            SUBPARTITIONS,
                            BLOCK_BYTES);
            for (int subpartition = 0; subpartition < SUBPARTITIONS; subpartition++) {
                writer.beginPartition(subpartition);
                for (int at = 0; at < data.length; at += PIECE_BYTES) {
                    writer.write(data, at, PIECE_BYTES);
                }
                writer.endPartition();
                total += data.length;
            }
            taskManagerId = writer.commit().taskManagerId();
        }
        return total;
    }

    private long read(int shuffleId, int mapOutputs) throws IOException {
        int[] streams = new int[mapOutputs];
        Arrays.fill(streams, SUBPARTITIONS);
        Source source =
                new Source(
                        taskManagerId,
                        endpoint.host(),
                        endpoint.port(),
                        LongStream.range(0, mapOutputs).toArray(),
                        streams);
        long total = 0;
        InputGate gate =
                new InputGate(
                        new Connections(Message.ROLE_CONSUMER),
                        shuffleId,
                        0,
                        SUBPARTITIONS,
                        CREDIT,
                        false,
                        List.of(source));
        try {
            for (BlockStream stream = gate.next(); stream != null; stream = gate.next()) {
                for (int n = stream.read(piece, 0, PIECE_BYTES);
                        n >= 0;
                        n = stream.read(piece, 0, PIECE_BYTES)) {
                    total += n;
                }
            }
        } finally {
            gate.close();
        }
        return total;
    }

    private long release(int shuffleId) throws IOException {
        try (DriverClient driver = new DriverClient(endpoint, options, new OutputEvents() {})) {
            return driver.releaseShuffle(shuffleId);
        }
    }

    private String answer(String command) throws IOException {
        String[] words = command.replace("\"", "").trim().split(" ", -1);
        int shuffleId = Integer.parseInt(words[1]);
        long cpu = cpuNanos();
        long began = System.nanoTime();
        long bytes =
                switch (words[0]) {
                    case "write" -> write(shuffleId, Integer.parseInt(words[2]));
                    case "read" -> read(shuffleId, Integer.parseInt(words[2]));
                    case "release" -> release(shuffleId);
                    default -> throw new IllegalArgumentException(command);
                };
        long nanos = System.nanoTime() - began;
        return String.format(
                Locale.ROOT,
                "{\"bytes\": %d, \"seconds\": %.9f, \"cpu_seconds\": %.9f}",
                bytes,
                nanos / 1e9,
                (cpuNanos() - cpu) / 1e9);
    }

    private static long cpuNanos() {
        return ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class).getProcessCpuTime();
    }

    /** Returns whether the JVM uses the processor's instructions for AES. */
    private static String usesAes() {
        HotSpotDiagnosticMXBean machine =
                ManagementFactory.getPlatformMXBean(HotSpotDiagnosticMXBean.class);
        return machine.getVMOption("UseAES").getValue();
    }

    private static Tls tls(String[] arguments) {
        if (arguments.length == 2) {
            return Tls.OFF;
        }
        TlsSettings.PemKey key =
                new TlsSettings.PemKey(Path.of(arguments[3]), Path.of(arguments[4]), null);
        return Tls.of(
                new TlsSettings(null, key, null, Path.of(arguments[2]), TlsSettings.TLS_1_3, true),
                false);
    }

    public static void main(String[] arguments) throws IOException {
        Endpoint endpoint = Endpoint.tcp(arguments[0], Integer.parseInt(arguments[1]));
        ClientLegs legs = new ClientLegs(endpoint, tls(arguments));
        System.out.printf(
                "{\"jdk\": \"%s %s\", \"aes\": %s}%n",
                System.getProperty("java.vm.name"),
                System.getProperty("java.vm.version"),
                usesAes());
        try (BufferedReader commands =
                        new BufferedReader(
                                new InputStreamReader(System.in, StandardCharsets.UTF_8));
                ConnectionPool pool = legs.pool) {
            for (String command = commands.readLine();
                    command != null;
                    command = commands.readLine()) {
                System.out.println(legs.answer(command));
            }
        }
    }
}
