package io.sluice.spark;

import io.sluice.client.Endpoint;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.zip.CRC32C;

/**
 * In which order an executor tries endpoints: an existing Unix socket, then its own host, then the others by rendezvous
 * hashing, so that executors without a TaskManager of their own spread evenly and stay where they are.
 */
final class EndpointChooser {
  private EndpointChooser() {}

  static List<Endpoint> order(List<Endpoint> endpoints, String ownHost, String executorId) {
    List<Endpoint> ordered = new ArrayList<>(endpoints);
    // The sort is stable: equal ranks and weights keep the order of the setting.
    ordered.sort(
        Comparator.comparingInt((Endpoint endpoint) -> rank(endpoint, ownHost))
            .thenComparing(endpoint -> -weight(endpoint, executorId)));
    return ordered;
  }

  /** Whether the endpoint means another TaskManager on each host, so that no host can try it for another. */
  static boolean isOfEachHost(Endpoint endpoint) {
    if (endpoint.isUnix()) {
      return true;
    }
    String host = endpoint.host();
    return host.equals("localhost") || host.startsWith("127.") || host.equals("::1");
  }

  private static int rank(Endpoint endpoint, String ownHost) {
    if (endpoint.isUnix()) {
      return endpoint.socketExists() ? 0 : 3;
    }
    return endpoint.host().equals(ownHost) ? 1 : 2;
  }

  private static long weight(Endpoint endpoint, String executorId) {
    if (endpoint.isUnix()) {
      return 0;
    }
    CRC32C hash = new CRC32C();
    hash.update((executorId + "@" + endpoint).getBytes(java.nio.charset.StandardCharsets.UTF_8));
    return hash.getValue();
  }
}
