package io.sluice.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.ChunkPool;
import io.sluice.client.ClientOptions;
import io.sluice.client.Endpoint;
import io.sluice.client.Message;
import io.sluice.client.Tls;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ScheduledExecutorService;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class DriverLinksTest {
    private static final int DEADLINE_MILLIS = 30_000;
    private static final ClientOptions OPTIONS =
            new ClientOptions("app-1", "driver", 300, 300, new ChunkPool(1), Tls.OFF, null);

    private final ScheduledExecutorService threads = Executors.newScheduledThreadPool(1);
    private final BlockingQueue<Message.OutputsLost> lost = new LinkedBlockingQueue<>();
    private final DriverLinks links = new DriverLinks(threads, 1, lost::add);

    @AfterEach
    void end() {
        threads.shutdownNow();
        links.close();
    }

    private static ServerSocket listener() throws Exception {
        ServerSocket listener = new ServerSocket(0, 8, InetAddress.getLoopbackAddress());
        listener.setSoTimeout(DEADLINE_MILLIS);
        return listener;
    }

    private static Endpoint endpointOf(ServerSocket listener) {
        return Endpoint.tcp("127.0.0.1", listener.getLocalPort());
    }

    private static void assertGreeted(ServerSocket listener) throws Exception {
        try (Socket connection = listener.accept()) {
            connection.setSoTimeout(DEADLINE_MILLIS);
            assertTrue(connection.getInputStream().read() >= 0, "the link says Hello");
        }
    }

    @Test
    void anEndpointThatComesBeforeTheOptionsIsConnectedToAfterwards() throws Exception {
        try (ServerSocket listener = listener()) {
            links.add(endpointOf(listener));
            assertTrue(links.values().isEmpty());
            assertTrue(links.start(OPTIONS));
            assertGreeted(listener);
            assertFalse(links.start(OPTIONS));
            links.add(endpointOf(listener));
            assertEquals(1, links.values().size());
        }
    }

    @Test
    void aLinkIsPingedAgainAfterEachFailure() throws Exception {
        links.start(OPTIONS);
        try (ServerSocket listener = listener()) {
            links.add(endpointOf(listener));
            for (int time = 0; time < 3; time++) {
                assertGreeted(listener);
            }
        }
    }
}
