package io.sluice.spark.common;

import io.sluice.client.wire.Endpoint;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.function.Predicate;

/**
 * Orders the endpoints for an executor: an existing Unix socket, then its own host, then the others
 * by rendezvous hashing, so that executors spread evenly and keep their choice.
 */
public final class EndpointChooser {
    private EndpointChooser() {}

    public static List<Endpoint> order(
            List<Endpoint> endpoints, String ownHost, String executorId) {
        return order(endpoints, ownHost, executorId, Endpoint::socketExists);
    }

    /**
     * Orders the endpoints as above.
     *
     * @param socketExists whether a Unix socket of the TaskManager exists
     */
    public static List<Endpoint> order(
            List<Endpoint> endpoints,
            String ownHost,
            String executorId,
            Predicate<Endpoint> socketExists) {
        List<Endpoint> ordered = new ArrayList<>(endpoints);
        // The sort is stable: equal ranks and weights keep the order of the setting.
        ordered.sort(
                Comparator.comparingInt(
                                (Endpoint endpoint) -> rank(endpoint, ownHost, socketExists))
                        .thenComparing(endpoint -> -weight(endpoint, executorId)));
        return ordered;
    }

    /** Returns whether the endpoint is a different TaskManager on each host. */
    public static boolean isOfEachHost(Endpoint endpoint) {
        if (endpoint.isUnix()) {
            return true;
        }
        String host = endpoint.host();
        return host.equals("localhost") || host.startsWith("127.") || host.equals("::1");
    }

    private static int rank(Endpoint endpoint, String ownHost, Predicate<Endpoint> socketExists) {
        if (endpoint.isUnix()) {
            return socketExists.test(endpoint) ? 0 : 3;
        }
        return endpoint.host().equals(ownHost) ? 1 : 2;
    }

    private static long weight(Endpoint endpoint, String executorId) {
        if (endpoint.isUnix()) {
            return 0;
        }
        return hash(executorId + "@" + endpoint) >>> 1;
    }

    /**
     * FNV-1a with mixed bits. The checksums of two endpoints would differ in the same bits for
     * every executor, so too many executors would agree on their order.
     */
    private static long hash(String text) {
        long hash = 0xCBF2_9CE4_8422_2325L;
        for (byte b : text.getBytes(java.nio.charset.StandardCharsets.UTF_8)) {
            hash = (hash ^ (b & 0xFF)) * 0x0000_0100_0000_01B3L;
        }
        hash = (hash ^ hash >>> 33) * 0xFF51_AFD7_ED55_8CCDL;
        hash = (hash ^ hash >>> 33) * 0xC4CE_B9FE_1A85_EC53L;
        return hash ^ hash >>> 33;
    }
}
