package io.sluice.client;

import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Leases of connections. */
@Timeout(60)
class ConnectionPoolTest extends ShuffleTestCase {
    @Test
    void aRefusedConnectionNamesTheSetting() throws IOException {
        Endpoint gone = daemon.endpoint();
        daemon.close();
        ClientException.ConnectFailed error =
                assertThrows(
                        ClientException.ConnectFailed.class,
                        () -> pool.lease(gone, Message.ROLE_DRIVER));
        assertTrue(error.getMessage().contains("spark.sluice.endpoints"), error.getMessage());
        assertThrows(
                ClientException.ConnectFailed.class,
                () ->
                        pool.lease(
                                new Endpoint("/nonexistent/socket", null, 0), Message.ROLE_DRIVER));
    }
}
